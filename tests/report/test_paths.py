"""Where reports are written to and read from: files and links, but neither FIFOs nor devices."""

import os
import stat

import pytest

from pytest_dataloader_faults.report import files
from pytest_dataloader_faults.report.command import main
from support.reports import MIXED
from support.rows import rows

WHOLE = files.as_json(MIXED)


@pytest.fixture(name="report")
def _report(tmp_path):
    """The path of a report in JSON."""
    path = tmp_path / "report.json"
    files.write(MIXED, str(path))
    return path


@rows("mode", [0o600, 0o640, 0o666, 0o755])
def test_a_report_keeps_its_mode(tmp_path, mode):
    path = tmp_path / "r.json"
    path.write_text("earlier")
    path.chmod(mode)
    files.write(MIXED, str(path))
    assert (stat.S_IMODE(path.stat().st_mode), path.read_text()) == (mode, WHOLE)


def test_a_new_report_has_the_mode_of_any_new_file(tmp_path):
    former = os.umask(0o027)
    try:
        files.write(MIXED, str(tmp_path / "r.json"))
    finally:
        os.umask(former)
    assert stat.S_IMODE((tmp_path / "r.json").stat().st_mode) == 0o640


def test_a_link_stays_one(tmp_path):
    path = tmp_path / "r.json"
    path.symlink_to("target")
    files.write(MIXED, str(path))
    assert os.readlink(path) == "target"
    assert (tmp_path / "target").read_text() == WHOLE


def test_a_file_that_may_not_be_written_stays(tmp_path, monkeypatch):
    path = tmp_path / "r.json"
    path.write_text("earlier")
    path.chmod(0o444)
    if os.geteuid() == 0:
        monkeypatch.setattr(files.os, "access", lambda *_: False)
    with pytest.raises(PermissionError, match=r"Permission denied: '.*r\.json'"):
        files.write(MIXED, str(path))
    assert path.read_text() == "earlier"


def _folder(path):
    path.mkdir()


def _full(path):
    path.symlink_to("/dev/full")


@pytest.mark.timeout(20)
@rows("make", [_folder, _full, os.mkfifo])
def test_what_is_no_regular_file_is_neither_read_nor_replaced(tmp_path, report, capsys, make):
    """Reading it might never end."""
    path = tmp_path / f"{make.__name__}.json"
    make(path)
    for arguments in (
        ["merge", str(path), "-o", str(tmp_path / "all.md")],
        ["merge", str(report), "-o", str(path)],
        ["compare", str(path), str(report)],
        ["compare", str(report), str(path)],
    ):
        before = os.stat(path)
        assert main(arguments) == 2
        assert "it must be a regular file, not a folder, a device or" in capsys.readouterr().err
        assert os.path.samestat(os.stat(path), before)
