"""Reports that another program wrote, two reports compared, and where reports may be."""

import json
import os
import stat

import pytest

from pytest_dataloader_faults.exceptions import InvalidArgumentError
from pytest_dataloader_faults.report import compare, files
from pytest_dataloader_faults.report.command import main
from pytest_dataloader_faults.report.model import Report
from support.reports import MIXED, RUN, events, failed, item
from support.rows import rows

SMALL = Report(
    versions={"python": "3.11.7", "torch": "2.13.0"},
    runs=(RUN,),
    items=(
        item(check="workers-agree", trials=(0.2,), notes=("a note",)),
        failed(check="hung-read", verdict="hung", timeline=events()),
        failed(check="persistent-workers", verdict="leaked"),
        item(check="pin-memory", status="not_applicable", verdict=None, cause="no file is read"),
    ),
)


def _changed(*path, value):
    data = json.loads(files.as_json(SMALL))
    part = data
    for step in path[:-1]:
        part = part[step]
    part[path[-1]] = value
    return json.dumps(data)


CHANGES = [
    (("versions",), "3.11"),
    (("versions", "torch"), 2),
    (("items", 1, "reason"), 5),
    (("items", 1, "without_fault"), 1),
    (("runs", 0, "seed"), True),
    (("runs", 0, "duration"), -1),
    (("items", 3), 5),
    (("items", 1, "verdict"), "odd"),
    (("items", 1, "status"), "odd"),
    (("items", 1, "line"), 0),
    (("items", 1, "line"), "9" * 10_000),
    (("items", 0, "trials", 0), "x"),
    (("items", 0, "notes"), "abc"),
    (("items", 1, "timeline", 2, "time"), {}),
    (("items", 1, "timeline", 2, "process"), "worker x"),
    (("items", 1, "timeline", 0), {}),
]
WHOLE_TEXTS = ["no", "[]", '{"items": []}', '{"version": 2, "items": []}']
WHOLE_TEXTS += [f'{{"version": 1, "versions": {{}}{more}}}' for more in ("", ', "items": 5')]


def test_a_refusal_names_the_field_and_what_is_allowed(golden, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    sources = {text: text for text in WHOLE_TEXTS}
    for path, value in CHANGES:
        sources[f"{'.'.join(map(str, path))} = {value!r:.20}"] = _changed(*path, value=value)
    texts = {}
    for title, source in sources.items():
        (tmp_path / "r.json").write_text(source)
        with pytest.raises(InvalidArgumentError) as caught:
            files.read("r.json")
        texts[title] = str(caught.value)
    golden("foreign_reports", texts)


def _error_of(data):
    with pytest.raises(InvalidArgumentError) as caught:
        Report.from_dict(data)
    return str(caught.value)


def test_an_item_that_is_there_twice_is_refused():
    twice = {"version": 1, "items": 2 * SMALL.to_dict()["items"][1:2]}
    message = "items[0] and items[1] are both about a.py::test[hung-read]. Remove one of them"
    assert _error_of(twice) == message


def test_what_only_a_later_version_knows_is_left_out(tmp_path):
    data = json.loads(files.as_json(SMALL))
    holders = [data, data["runs"][0], data["items"][1], data["items"][1]["timeline"][0]]
    for holder in holders:
        holder["later"] = {"a": 1}
    path = tmp_path / "r.json"
    path.write_text(json.dumps(data))
    assert files.read(str(path)) == SMALL


@rows("nodeid", ["test_\udcff.py::test", "\ud800", "\udcff\udcfe[open-error]"])
def test_an_id_may_hold_bytes_that_are_not_utf_8(tmp_path, nodeid):
    report = Report(items=(failed(nodeid=nodeid, test=nodeid),))
    for ending in files.RENDERERS:
        files.write(report, str(tmp_path / f"r{ending}"))
    assert files.read(str(tmp_path / "r.json")) == report


WITHOUT_FAULT = {"verdict": "fails_without_fault", "trials": (0.2,), "without_fault": True}


@rows(
    ("before", "now", "kind"),
    [
        (None, failed(), compare.NEW),
        (item(), failed(), compare.NEW),
        (item(), failed(status="error", verdict=None), compare.NEW),
        (failed(status="flaky"), failed(), compare.NEW),
        (failed(status="xfailed"), failed(), compare.NEW),
        (failed(), failed(sentence="another"), None),
        (failed(), failed(verdict="hung"), compare.OTHER_VERDICT),
        (failed(), item(), compare.FIXED),
        (failed(), failed(status="xfailed"), compare.NOT_FIXED),
        (failed(), None, compare.NOT_FIXED),
        (None, failed(status="xfailed"), None),
        (failed(check="pickles", **WITHOUT_FAULT), failed(**WITHOUT_FAULT), None),
        (failed(**WITHOUT_FAULT), item(check="workers-agree"), compare.FIXED),
    ],
)
def test_a_failure_is_compared_with_that_of_its_test_and_check(before, now, kind):
    """With others that are in both reports."""
    same = (failed(check="short-read"), item(check="two-epochs"))
    old, new = (Report(items=tuple(filter(None, (each, *same)))) for each in (before, now))
    assert list(compare.find_changes(old, new)) == [kind] * bool(kind)
    (line,) = [line for line in compare.compare_reports(old, new) if "failures: " in line]
    assert line.startswith(f"failures: {len(old.failed)} before, {len(new.failed)} now (")


WHOLE = files.as_json(MIXED)


@pytest.fixture(name="report")
def _report(tmp_path):
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
def test_what_is_no_regular_file_is_not_replaced(tmp_path, report, capsys, make):
    path = tmp_path / f"{make.__name__}.json"
    make(path)
    before = os.stat(path)
    assert main(["merge", str(report), "-o", str(path)]) == 4
    assert "it must be a regular file, not a folder, a device or" in capsys.readouterr().err
    assert os.path.samestat(os.stat(path), before)
