"""Each form of a report, from one model, and one report of several."""

import itertools
import json
from dataclasses import MISSING, asdict, fields, replace
from pathlib import Path
from unittest import mock

import pytest

from pytest_dataloader_faults.outcomes import (
    CheckResult,
    Event,
    Finding,
    Pass,
    Verdict,
)
from pytest_dataloader_faults.report import ci, files, html, terminal
from pytest_dataloader_faults.report.command import main
from pytest_dataloader_faults.report.compare import merge_reports
from pytest_dataloader_faults.report.model import Item, Report, group_by_cause, item_of
from support.facts import EPOCH_1, ordinary
from support.reports import HOSTILE, MIXED, failed, item
from support.rows import rows

_PACKAGE = Path(files.__file__).parent


def _lines(report):
    return [text for text, _ in terminal.summary(report)]


_FIXED = Report(
    items=(failed(fix="close the file"), failed(check="persistent-workers", fix="close the file"))
)
_UNFIXED = Report(items=(failed(fix=""),))


@rows(
    ("render", "line", "times"),
    [
        (lambda report: "\n".join(_lines(report)), "\n    fix: close the file\n    pytest ", 1),
        (html.render, '<p class="fix"><strong>fix:</strong> close the file</p>', 3),
        (
            lambda report: "\n".join(ci.github_commands(report)),
            "%0Afix: close the file%0Apytest ",
            1,
        ),
        (ci.render, "  <br>**fix:** close the file\n", 1),
    ],
)
def test_each_form_says_how_to_fix_a_cause(render, line, times):
    assert render(_FIXED).count(line) == times
    assert "close the file" not in render(_UNFIXED)


def test_a_time_stays_with_its_unit():
    for width in range(20, 60):
        lines = [text for text, _ in terminal.summary(Report(items=(item(),)), width)]
        assert any(line.endswith("0.5 s") for line in lines), lines


def test_json_is_as_its_schema_says(tmp_path):
    jsonschema = pytest.importorskip("jsonschema")
    schema = json.loads((_PACKAGE / "schema.json").read_text())
    jsonschema.Draft202012Validator(schema).validate(json.loads(files.as_json(MIXED)))
    assert schema["$defs"]["item"]["properties"].keys() == asdict(MIXED.items[0]).keys()
    required = [each.name for each in fields(Item) if each.default is MISSING]
    assert schema["$defs"]["item"]["required"] == required
    assert json.loads(files.as_json(MIXED))["items"][0].keys() == asdict(MIXED.items[0]).keys()
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.Draft202012Validator(schema).validate({"version": 2})


@rows(
    ("text", "problem"),
    [
        ("no", "it is not valid JSON: Expecting value: line 1 column 1 (char 0)"),
        ("[]", "the data must be an object, got []"),
        ('{"items": []}', "version must be 1, got None"),
        ('{"version": 2, "items": []}', "version must be 1, got 2"),
        ('{"version": 1, "versions": {}}', "the data must be an object with 'items'"),
        (
            files.as_json(MIXED).replace('"passed"', '"odd"'),
            "items[0].status must be one of 'failed', 'error', 'flaky', 'warned', ",
        ),
        ('{"version": 1, "versions": {}, "items": 5}', "items must be a list, got 5"),
    ],
)
def test_what_is_no_report_is_refused(tmp_path, capsys, text, problem):
    path, output = tmp_path / "r.json", tmp_path / "all.html"
    path.write_text(text)
    output.write_text("earlier")
    assert main(["merge", str(path), "-o", str(output)]) == 2
    error = capsys.readouterr().err
    assert f"{path} is not a JSON report written by this plugin: {problem}" in error
    assert "Pass a file that --dataloader-faults-report=NAME.json wrote" in error
    assert output.read_text() == "earlier"


def test_a_report_that_cannot_be_written_leaves_the_earlier_one(tmp_path, monkeypatch):
    path, link = tmp_path / "r.md", tmp_path / "link.md"
    link.symlink_to(path)
    files.write(MIXED, str(link))
    earlier = path.read_text()
    monkeypatch.setattr(files.os, "replace", mock.Mock(side_effect=OSError(28, "no space")))
    with pytest.raises(OSError, match="no space"):
        files.write(Report(), str(link))
    assert (path.read_text(), link.is_symlink()) == (earlier, True)
    assert sorted(tmp_path.iterdir()) == [link, path]


def test_an_item_has_the_course_of_the_trial_that_decided():
    trial = replace(
        ordinary(Pass(EPOCH_1)),
        timeline=(Event(0.5, "worker 1", "fault", "ReadError: read of /a"),),
    )
    result = CheckResult("persistent-workers", Finding(Verdict.LEAKED, ""), "leaked: .", trial)
    where = {"nodeid": "n", "test": "t", "where": ("a.py", 1), "duration": 0.1}
    item = item_of(result, **where)
    assert item.timeline == trial.timeline
    passing = replace(result, finding=Finding(Verdict.SURVIVED, ""))
    for nothing in (replace(result, outcome=None), passing):
        assert item_of(nothing, **where).timeline == ()


def test_github_gets_one_command_per_test_and_cause():
    place, again = "::error file=a.py,line=7", "%0Apytest 'a.py::test[open-error]'"
    zeros = "2 checks%3A gives zeros::sample 0 is wrong.%0Aopen-error, truncated-file"
    assert list(ci.github_commands(MIXED)) == [
        f"{place},title={zeros}{again}",
        f"{place},title=persistent-workers%3A leaked::sample 0 is wrong.{again}",
    ]


def test_causes_are_in_the_order_of_harm():
    unclear = {"verdict": "failed_unclearly", "cause": "hides its cause"}
    items = [failed(check=f"check-{number}", **unclear) for number in range(3)]
    items += [
        failed(check="persistent-workers"),
        failed(check="a", cause="b"),
        failed(check="c", cause="b"),
    ]
    causes = [group.cause for group in group_by_cause(items)]
    assert causes == ["b", "gives zeros", "hides its cause"]


def test_a_cause_with_two_fixes_is_two_groups():
    items = [failed(fix="raise the error"), failed(check="pickles", fix="remove the handler")]
    assert [(each.fix, each.names) for each in group_by_cause(items)] == [
        ("raise the error", "open-error"),
        ("remove the handler", "pickles"),
    ]


def test_markdown_shows_commands_as_they_are():
    command = "pytest 'a.py::test[*x*-`y`]<b>'"
    run = replace(MIXED.runs[0], command=command)
    text = ci.render(Report(runs=(run,), items=(failed(reproduce=command),)))
    escaped = r"<code>pytest 'a.py::test\[\*x\*-\`y\`\]&lt;b&gt;'</code>"
    assert text.count(escaped) == 2


def test_a_step_summary_has_at_most_what_github_takes():
    items = [failed(test=f"a.py::test_{number}", explanation="x" * 9000) for number in range(150)]
    small = Report(items=tuple(items[:3]))
    assert ci.step_summary(small, 0) == ci.render(small)
    assert "x" * 9000 not in ci.step_summary(small, (1 << 20) - 9000)
    for report in (Report(items=tuple(items)), Report(items=(failed(sentence="é" * (1 << 20)),))):
        text = ci.step_summary(report, 1000)
        assert len(text.encode()) <= (1 << 20) - 1000
        assert "checks failed**" in text.replace("check ", "checks ")
    items = [failed(test=f"a.py::test_{number}", cause="x" * 500) for number in range(3000)]
    text = ci.step_summary(Report(items=tuple(items)), 0)
    assert len(text.encode()) <= 1 << 20
    assert text.endswith("GitHub shows at most 1 MiB per step.\n")


def test_hostile_texts_are_only_texts():
    report = Report(items=(failed(sentence=HOSTILE, explanation=HOSTILE, cause=HOSTILE),))
    text = ci.render(report)
    assert "\x1b" not in text
    assert "<script>" not in text
    assert "](http" not in text
    (command,) = ci.github_commands(report)
    assert "\n" not in command
    assert "\x1b" not in command


def test_merging_loses_nothing():
    twice = Report(items=(item(), failed(check="pickles")), versions={"torch": "2.13"})
    newer = Report(items=(item(test="b.py::other"),), versions={"torch": "9"})
    assert _merged(twice) == twice
    report = _merged(_merged(twice, newer), twice)
    assert report.items == (*twice.items, *newer.items)
    assert report.versions == {"torch": "2.13, 9"}


def _merged(*reports):
    report, _ = merge_reports(reports)
    return report


PASSES = Report(items=(item(), item(check="truncated-file")))
FAILS = Report(items=(failed(), item(check="truncated-file")))
FROM_WORST = "failed error flaky xfailed passed not_run not_applicable".split()


@pytest.fixture(name="merge")
def _merge(tmp_path, monkeypatch, capsys):
    """The command, with reports by name: its exit status, what it printed, and the report."""
    monkeypatch.chdir(tmp_path)

    def merge(reports, *arguments):
        for name, report in reports.items():
            files.write(report, f"{name}.json")
        status = main(["merge", *arguments, "-o", "all.json"])
        return status, capsys.readouterr().out.splitlines(), files.read("all.json")

    return merge


def _statuses(report):
    return {each.nodeid: each.status for each in report.items}


def test_labels_keep_both(merge):
    reports = {"a": FAILS, "b": PASSES}
    status, printed, report = merge(reports, "py312=a.json", "py313=b.json")
    assert (status, printed) == (0, ["2 reports: 4 items, 1 failed"])
    assert _statuses(report)["py312: a.py::test[open-error]"] == "failed"
    assert _statuses(report)["py313: a.py::test[open-error]"] == "passed"
    assert list(report.tests) == ["py312: a.py::test", "py313: a.py::test"]
    assert report.items[0].reproduce == failed().reproduce


def test_the_worst_holds():
    for worse, better in itertools.pairwise(FROM_WORST):
        for order in ((worse, better), (better, worse)):
            report = _merged(*(Report(items=(item(status=each),)) for each in order))
            assert [each.status for each in report.items] == [worse]


def test_a_path_may_have_an_equals_sign(merge, tmp_path):
    (tmp_path / "a=1").mkdir()
    files.write(FAILS, "a=1/r.json")
    _, _, report = merge({}, "./a=1/r.json")
    assert report == FAILS


def test_no_report_is_an_error(merge, capsys):
    """An empty report would be green."""
    with pytest.raises(SystemExit):
        merge({})
    assert "the following arguments are required: [LABEL=]REPORT.json" in capsys.readouterr().err
