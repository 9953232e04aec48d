"""Where reports are written to and read from: files, links, devices, FIFOs and folders."""

import os
import stat
import subprocess
import sys
import threading
from unittest import mock

import pytest

from pytest_dataloader_faults.report import files
from pytest_dataloader_faults.report.command import main
from pytest_dataloader_faults.report.model import Report
from support.reports import MIXED
from support.rows import rows

WHOLE = files.as_json(MIXED)


@pytest.fixture(name="report")
def _report(tmp_path):
    """The path of a report in JSON."""
    path = tmp_path / "report.json"
    files.write(MIXED, str(path))
    return path


def _null_device(path):
    try:
        os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(1, 3))
        with open(path, "w"):
            pass
    except OSError as error:
        pytest.skip(f"no device can be made or opened here: {error}")


@pytest.mark.parametrize("is_linked", [False, True])
def test_a_device_stays_one(tmp_path, report, is_linked):
    device = tmp_path / ("null" if is_linked else "r.html")
    _null_device(device)
    target = tmp_path / "r.html"
    if is_linked:
        target.symlink_to(device)
    assert main(["merge", str(report), "-o", str(target)]) == 0
    assert stat.S_ISCHR(os.stat(target).st_mode)
    assert target.is_symlink() is is_linked
    assert sorted(tmp_path.iterdir()) == sorted({device, target, report})


@pytest.mark.parametrize("is_linked", [False, True])
def test_the_reader_of_a_fifo_gets_the_report(tmp_path, is_linked):
    fifo = tmp_path / ("fifo" if is_linked else "r.json")
    os.mkfifo(fifo)
    target = tmp_path / "r.json"
    if is_linked:
        target.symlink_to(fifo)
    large = Report(items=MIXED.items * 200)
    reader = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
    another_writer = os.open(fifo, os.O_WRONLY)  # Until it is closed, reads wait.
    os.set_blocking(reader, True)
    read = []
    with open(reader, encoding="utf-8") as file:
        thread = threading.Thread(target=lambda: read.append(file.read()))
        thread.start()
        try:
            files.write(large, str(target))
        finally:
            os.close(another_writer)
            thread.join(60)
    assert read == [files.as_json(large)]
    assert len(read[0]) > 1 << 16
    assert stat.S_ISFIFO(os.stat(target).st_mode)


def test_a_fifo_without_a_reader_is_an_error(tmp_path, report, capsys):
    fifo = tmp_path / "r.md"
    os.mkfifo(fifo)
    assert main(["merge", str(report), "-o", str(fifo)]) == 2
    message = f"no process reads this FIFO. Start its reader first: '{fifo}'"
    assert message in capsys.readouterr().err
    assert stat.S_ISFIFO(os.stat(fifo).st_mode)


def test_a_reader_that_does_not_read_is_not_waited_for_endlessly(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "_PATIENCE", 0.01)
    fifo = tmp_path / "r.json"
    os.mkfifo(fifo)
    reader = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
    try:
        with pytest.raises(TimeoutError, match="its reader has read nothing for 0"):
            files.write(Report(items=MIXED.items * 200), str(fifo))
    finally:
        os.close(reader)


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


def test_another_hard_link_keeps_the_former_text(tmp_path):
    path, backup = tmp_path / "r.json", tmp_path / "backup.json"
    path.write_text("earlier")
    os.link(path, backup)
    files.write(MIXED, str(path))
    assert (path.read_text(), backup.read_text()) == (WHOLE, "earlier")


def test_a_file_that_may_not_be_written_stays(tmp_path, monkeypatch):
    path = tmp_path / "r.json"
    path.write_text("earlier")
    path.chmod(0o444)
    refused = mock.Mock(side_effect=PermissionError(13, "Permission denied"))
    if os.geteuid() == 0:
        monkeypatch.setattr(files.os, "open", refused)
    with pytest.raises(PermissionError, match=r"Permission denied: '.*r\.json'"):
        files.write(MIXED, str(path))
    monkeypatch.undo()
    assert path.read_text() == "earlier"


def test_a_file_that_cannot_be_replaced_is_written_in_place(tmp_path, monkeypatch):
    path = tmp_path / "r.json"
    path.write_text("earlier" * 10_000)
    busy = mock.Mock(side_effect=OSError(16, "Device or resource busy"))
    monkeypatch.setattr(files.os, "replace", busy)
    files.write(MIXED, str(path))
    assert path.read_text() == WHOLE
    assert list(tmp_path.iterdir()) == [path]


def test_a_long_name_leaves_room_for_the_temporary_file(tmp_path):
    path = tmp_path / ("r" * 250 + ".json")
    files.write(MIXED, str(path))
    assert path.read_text() == WHOLE


PRINTS_AROUND = """
import sys
from pytest_dataloader_faults.report import files

print("before", flush=True)
files.write_text("text\\n", "/dev/stdout")
print("after", flush=True)
"""


@pytest.mark.parametrize("is_file", [False, True])
def test_standard_output_is_written_to(tmp_path, is_file):
    path = tmp_path / "out"
    with open(path, "w") as file:
        process = subprocess.run(
            [sys.executable, "-c", PRINTS_AROUND],
            stdout=file if is_file else subprocess.PIPE,
            text=True,
            check=True,
        )
    printed = path.read_text() if is_file else process.stdout
    assert printed == "before\ntext\nafter\n"


def _folder(path):
    path.mkdir()


def _full(path):
    path.symlink_to("/dev/full")


UNREADABLE = [(_folder, "a folder"), (_full, "a device")]


def test_a_report_may_come_through_a_fifo(report, capsys):
    """As from a command whose output the shell passes as /dev/fd/63; twice is an error."""
    reading, writing = os.pipe()
    os.write(writing, report.read_bytes())
    os.close(writing)
    assert main(["compare", f"/dev/fd/{reading}", str(report)]) == 0
    capsys.readouterr()
    assert main(["compare", f"/dev/fd/{reading}", str(report)]) == 2
    assert (
        "is not a JSON report written by this plugin: it is not valid JSON"
        in capsys.readouterr().err
    )
    os.close(reading)


def test_a_fifo_that_no_process_writes_to_is_an_error(tmp_path, report, capsys, monkeypatch):
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    monkeypatch.setattr(files, "_PATIENCE", 0.01)
    assert main(["compare", str(fifo), str(report)]) == 2
    assert "nothing was written to this FIFO for 0.01 s" in capsys.readouterr().err


@pytest.mark.timeout(20)
@rows(("make", "kind"), UNREADABLE)
def test_what_is_no_regular_file_is_not_read(tmp_path, report, capsys, make, kind):
    """Reading it might never end."""
    path = tmp_path / f"{make.__name__}.json"
    make(path)
    for arguments in (
        ["merge", str(path), "-o", str(tmp_path / "all.md")],
        ["compare", str(path), str(report)],
        ["compare", str(report), str(path)],
    ):
        assert main(arguments) == 2
        error = capsys.readouterr().err
        assert f"{path} is not a JSON report written by this plugin: it must be a re" in error
        assert f"got {kind}. Pass a file that --data" in error
