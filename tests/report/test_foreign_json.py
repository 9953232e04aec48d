"""Reports and files of known failures that another program wrote: read, or refused with advice."""

import json
import re

import pytest

from pytest_dataloader_faults.exceptions import InvalidArgumentError
from pytest_dataloader_faults.report import files
from pytest_dataloader_faults.report.command import main
from pytest_dataloader_faults.report.model import Report
from support.reports import EVERYTHING, RUN, events, failed, item
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
ADVICE = "Pass a file that --dataloader-faults-report=NAME.json wrote"


def _run(capsys, *arguments):
    """The exit status of the command, and what it says of an error."""
    status = main([*map(str, arguments)])
    return status, capsys.readouterr().err


def _changed(*path, value):
    """SMALL as plain data, with another value at *path*."""
    data = json.loads(files.as_json(SMALL))
    part = data
    for step in path[:-1]:
        part = part[step]
    part[path[-1]] = value
    return json.dumps(data)


@rows(
    ("path", "value", "message"),
    [
        (("versions",), "3.11", "versions must be an object, got '3.11'"),
        (("versions", "torch"), 2, "versions['torch'] must be a string, got 2"),
        (("items", 1, "reason"), 5, "items[1].reason must be a string, or null, got 5"),
        (("items", 1, "without_fault"), 1, "items[1].without_fault must be true or false, got 1"),
        (("runs", 0, "seed"), True, "runs[0].seed must be an integer, got True"),
        (("runs", 0, "duration"), -1, "runs[0].duration must be a number of seconds from 0 to "),
        (("items", 3), 5, "items[3] must be an object, got 5"),
        (("items", 1, "verdict"), "odd", "'not_exercised', or null, got 'odd'"),
        (("items", 1, "line"), 0, "items[1].line must be an int from 1 to 9"),
        (("items", 0, "trials", 0), "x", "items[0].trials[0] must be a number of seconds"),
        (("items", 0, "notes"), "abc", "items[0].notes must be a list, got 'abc'"),
        (("items", 1, "timeline", 2, "time"), {}, "items[1].timeline[2].time must be a number"),
        (("items", 1, "timeline", 2, "process"), "worker x", "must be 'loader', or a worker such"),
        (("items", 1, "timeline", 0), {}, "items[1].timeline[0] must be an object with 'time', "),
    ],
)
def test_a_refusal_names_the_field_and_what_is_allowed(tmp_path, capsys, path, value, message):
    report = tmp_path / "r.json"
    report.write_text(_changed(*path, value=value))
    status, error = _run(capsys, "merge", report, "-o", tmp_path / "all.md")
    assert status == 2
    assert f"{report} is not a JSON report written by this plugin: " in error
    assert message in error
    assert error.endswith(f". {ADVICE}\n")


def _error_of(data):
    with pytest.raises(InvalidArgumentError) as caught:
        Report.from_dict(data)
    return str(caught.value)


def test_an_item_that_is_there_twice_is_refused():
    twice = {"version": 1, "items": 2 * SMALL.to_dict()["items"][1:2]}
    message = "items[0] and items[1] are both about a.py::test[hung-read]. Remove one of them"
    assert _error_of(twice) == message


def test_a_long_value_is_shortened(tmp_path, capsys):
    report = tmp_path / "r.json"
    report.write_text(_changed("items", 1, "line", value="9" * 10_000))
    _, error = _run(capsys, "merge", report, "-o", tmp_path / "all.md")
    assert re.search(r"got '9{99} \.\.\. 9{99}'\. Pass", error)


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


def test_a_doubled_key_is_refused(tmp_path, capsys):
    """Python's json would keep the last of them."""
    path = tmp_path / "r.json"
    text = files.as_json(EVERYTHING)
    path.write_text(text.replace('"status": "failed"', '"status": "failed", "status": "passed"'))
    status, error = _run(capsys, "compare", path, path)
    assert status == 2
    assert "an object must not repeat a key, got 'status' more than once in {" in error
