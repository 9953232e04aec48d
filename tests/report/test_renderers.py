"""Each form of a report, from one model, and one report of several."""

from __future__ import annotations

import itertools
import json
import re
from dataclasses import asdict, replace
from pathlib import Path
from unittest import mock

import pytest

from pytest_dataloader_faults.outcomes import CheckResult, Event, Footprint, Pass, Verdict
from pytest_dataloader_faults.report import ci, files, html, terminal
from pytest_dataloader_faults.report.command import main
from pytest_dataloader_faults.report.merge import Source, merged
from pytest_dataloader_faults.report.model import Report, Usage, by_cause, item_of
from support.facts import ordinary
from support.reports import HOSTILE, MIXED, failed, item
from support.rows import rows

_PACKAGE = Path(files.__file__).parent
MIXED_COUNTED = (
    "3 of 4 checks failed (2 corrupted, 1 leaked), 1 passed (1 survived), 1 not applicable"
)


def _lines(report):
    return [text for text, _ in terminal.summary(report)]


def test_the_summary_has_a_line_for_each_test_and_one_for_each_cause():
    """The most frequent cause comes first; each has a command that repeats its first check."""
    assert _lines(MIXED) == [
        "kernel engine, Linux 6.18",
        f"a.py::test: {MIXED_COUNTED};",
        "    2.5 s",
        "  2 checks: gives zeros: open-error, truncated-half",
        "    pytest 'a.py::test[open-error]'",
        "  1 check: leaves something behind: growth",
        "    pytest 'a.py::test[open-error]'",
        "  note: 64 of 100 samples were looked at",
        "b.py::other: 1 check passed (1 survived); 0.5 s",
    ]


def test_the_summary_has_checks_that_do_not_reach_the_files():
    """Where a dataset has files, and checks of them were not asked, everybody is to know it."""
    reason = "its files were opened or mapped before the workers started"
    names = ("open-error", "truncated-half")
    items = [item(check=each, status="not_applicable", cause=reason) for each in names]
    lines = _lines(Report(items=(item(), *items, item(check="pinned", status="not_applicable"))))

    told = f"  2 checks not applicable: {reason}: open-error, truncated-half"
    assert "1 check passed (1 survived), 3 not applicable; 2.0 s" in lines[0]
    assert " ".join(" ".join(lines[1:]).split()) == " ".join(told.split())


@rows(
    ("statuses", "told"),
    [
        (["passed"], "1 check passed (1 survived); 0.5 s"),
        (["failed"], "1 check passed, though expected to fail (1 survived); 0.5 s"),
        (
            ["passed", "xfailed"],
            "1 of 2 checks passed (1 survived), 1 failed as expected (1 survived); ",
        ),
        (["error", "not_reproduced"], "1 of 2 checks failed in the test itself (1 survived), 1 f"),
        (["not_applicable"], "no check applies, 1 not applicable; 0.5 s"),
    ],
)
def test_the_summary_says_first_how_many_checks_failed(statuses, told):
    """Or else how many passed; what did neither is counted by itself."""
    lines = _lines(Report(items=tuple(item(status=each) for each in statuses)))
    assert lines[0].startswith(f"a.py::test: {told}")


def test_a_time_stays_with_its_unit():
    """Wherever a line is wrapped."""
    for width in range(20, 60):
        lines = [text for text, _ in terminal.summary(Report(items=(item(),)), width)]
        assert any(line.endswith("0.5 s") for line in lines), lines


def test_lines_are_at_most_100_columns_wide():
    """But for commands, which are to be copied."""
    many = [failed(check=f"check-number-{number}") for number in range(20)]
    lines = _lines(Report(items=tuple(many)))
    assert max(map(len, lines)) <= 100
    assert re.findall(r"check-number-\d+", " ".join(lines)) == [each.check for each in many]


def test_the_table_has_checks_down_and_tests_across():
    """What does not apply, or was not asked, is a dash."""
    rows = ["".join(text for text, _ in row).split() for row in terminal.table(MIXED)]
    assert rows[0] == ["test", "other"]
    assert ["open-error", "corrupted", "survived"] in rows
    assert ["pinned", "-", "-"] in rows


def test_the_columns_of_a_table_differ():
    """Names that are there twice have file and class, and are not cut where that hides it."""
    long = "c.py::test_the_records_of_the_first_"
    tests = ["a.py::test", "b.py::test", "a.py::T::test_z[1::2]", f"{long}year", f"{long}month"]
    found = list(terminal.table(Report(items=tuple(item(test=each) for each in tests)), width=200))
    assert [text.strip() for text, _ in found[0]] == [
        "",
        "a.py::test",
        "b.py::test",
        "test_z[1::2]",
        "test_the_records_of_the_first_year",
        "test_the_records_of_the_first_month",
    ]


def test_a_wide_table_goes_on_below():
    """Each part is at most 100 columns wide, and all tests are there."""
    names = [f"a.py::test_number_{number:02}" for number in range(12)]
    report = Report(items=tuple(item(test=name) for name in names))
    rows = ["".join(text for text, _ in row) for row in terminal.table(report)]
    assert max(map(len, rows)) <= 100
    assert re.findall(r"test_number_\d\d", "".join(rows)) == [each[6:] for each in names]


def test_the_slowest_trials_come_first():
    """As many as were asked for; 0 is all, as with --durations."""
    first, *_ = shown = list(terminal.slowest(MIXED, 2))
    assert (first, len(shown)) == ("0.60s trial    a.py::test[open-error]", 2)
    assert len(list(terminal.slowest(MIXED, 0))) == 3


def test_json_comes_back():
    """A report is plain data, both ways."""
    assert Report.from_dict(json.loads(files.as_json(MIXED))) == MIXED


def test_json_is_as_its_schema_says(tmp_path):
    """The schema is published with the package."""
    jsonschema = pytest.importorskip("jsonschema")
    schema = json.loads((_PACKAGE / "schema.json").read_text())
    jsonschema.Draft202012Validator(schema).validate(json.loads(files.as_json(MIXED)))
    assert schema["$defs"]["item"]["properties"].keys() == asdict(MIXED.items[0]).keys()
    assert schema["$defs"]["item"]["required"] == list(asdict(MIXED.items[0]))
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.Draft202012Validator(schema).validate({"version": 2})


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("no", "it is not JSON: Expecting value: line 1 column 1 (char 0)"),
        ("[]", "the data must be an object, got []"),
        ('{"items": []}', "version must be 1, got None"),
        ('{"version": 2, "items": []}', "version must be 1, got 2"),
        ('{"version": 1, "engine": "", "versions": {}}', "the data must be an object with 'items'"),
        (
            files.as_json(MIXED).replace('"passed"', '"odd"'),
            "items[0].status must be one of 'failed', 'error', 'not_reproduced', 'xfailed', ",
        ),
        (
            '{"version": 1, "engine": "", "versions": {}, "items": 5}',
            "items must be a list, got 5",
        ),
    ],
)
def test_what_is_no_report_is_refused(tmp_path, capsys, text, problem):
    """With the path, the problem and what to do; what an earlier run has written stays."""
    path, output = tmp_path / "r.json", tmp_path / "all.html"
    path.write_text(text)
    output.write_text("earlier")
    assert main(["merge", str(path), "-o", str(output)]) == 2
    said = capsys.readouterr().err
    assert f"{path} is not a JSON report written by this plugin: {problem}" in said
    assert "Pass a file that --dataloader-faults-report=NAME.json wrote" in said
    assert output.read_text() == "earlier"


def test_a_report_that_cannot_be_written_leaves_the_earlier_one(tmp_path, monkeypatch):
    """And no other file. A link stays one."""
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
    """Its timeline, and what its processes had after each epoch; not of one that passed."""
    trial = replace(
        ordinary(Pass()),
        timeline=(Event(0.5, "worker 1", "fetch", "batch 1"),),
        omitted_events=7,
        footprints=(Footprint(2, "worker 1", 4096, 5, 6, newly_open="x"),),
    )
    result = CheckResult("growth", Verdict.LEAKED, False, "", "leaked: .", trial)
    where = {"nodeid": "n", "test": "t", "where": ("a.py", 1), "duration": 0.1}
    item = item_of(result, **where)
    assert (item.timeline, item.omitted_events) == (trial.timeline, 7)
    assert item.usage == (Usage(2, "worker 1", 5, 4096, 6),)
    for nothing in (replace(result, outcome=None), replace(result, passed=True)):
        made = item_of(nothing, **where)
        assert (made.timeline, made.omitted_events, made.usage) == ((), 0, ())


def test_the_sentence_of_an_item_is_not_taken_from_the_explanation():
    """So another wording or layout of that changes neither the summary nor its causes."""
    result = CheckResult("growth", Verdict.LEAKED, False, "it leaks.", "Verdict leaked:\nreworded")
    item = item_of(result, nodeid="n", test="t", where=("a.py", 1), duration=0.1)
    assert (item.sentence, item.explanation) == ("it leaks.", result.explanation)


def test_github_gets_one_command_per_test_and_cause():
    """With the place of the test, and the checks: GitHub shows ten of a step."""
    place, again = "::error file=a.py,line=7", "%0Apytest 'a.py::test[open-error]'"
    zeros = "2 checks%3A gives zeros::sample 0 is wrong.%0Aopen-error, truncated-half"
    assert list(ci.of_github(MIXED)) == [
        f"{place},title={zeros}{again}",
        f"{place},title=growth%3A leaked::sample 0 is wrong.{again}",
    ]


def test_causes_are_in_the_order_of_harm():
    """Silent corruption before many unclear errors; of one harm, the frequent one first."""
    unclear = {"verdict": "failed_unclearly", "cause": "hides its cause"}
    items = [failed(check=f"check-{number}", **unclear) for number in range(3)]
    items += [failed(check="growth"), failed(check="a", cause="b"), failed(check="c", cause="b")]
    assert list(by_cause(items)) == ["b", "gives zeros", "hides its cause"]


def test_tests_of_long_names_share_a_table():
    """By numbers, which are explained above it."""
    tests = [f"a.py::test_of_a_long_name[and-a-long-parameter-{number}]" for number in range(4)]
    report = Report(items=tuple(item(test=each) for each in tests))
    rows = ["".join(text for text, _ in row).rstrip() for row in terminal.table(report)]
    assert rows[:4] == [f"{place}: {each[6:]}" for place, each in enumerate(tests, start=1)]
    assert rows[4:] == [
        "",
        "            1         2         3         4",
        "open-error  survived  survived  survived  survived",
    ]


def test_gitlab_gets_one_issue_per_failure():
    """Each with a fingerprint of its own, which stays."""
    issues = json.loads(ci.of_gitlab(MIXED))
    assert [each["check_name"] for each in issues] == ["open-error", "truncated-half", "growth"]
    assert len({each["fingerprint"] for each in issues}) == 3
    assert issues[0]["location"] == {"path": "a.py", "lines": {"begin": 7}}


def test_markdown_has_each_test_and_what_failed():
    """The evidence is folded."""
    text = ci.render(MIXED)
    assert "| :x: a.py::test | 2 corrupted, 1 survived, 1 leaked | 1 | 0 | 2.5 |" in text
    assert "- **gives zeros**: open-error, truncated-half" in text
    assert "<pre>corrupted: sample 0 is wrong.&#10;  evidence&#10;</pre>" in text


def test_markdown_says_which_failures_are_expected():
    """A test whose failures are all known is no failure, and has them in its row."""
    report = Report(items=(item(), failed(check="growth", status="xfailed")))
    assert ":white_check_mark: a.py::test | 1 survived, 1 corrupted \\(expected\\) |" in ci.render(
        report
    )


def test_an_item_that_was_never_judged_has_no_verdict(tmp_path):
    """Every form of a report says so, and none counts it as a verdict; merging keeps it."""
    report = Report(items=(item(), failed(check="growth", status="error", verdict=None, cause="")))
    path = tmp_path / "r.json"
    files.write(report, str(path))
    assert [each["verdict"] for each in json.loads(path.read_text())["items"]] == ["survived", None]
    assert files.read(str(path)) == report
    assert _merged(report, report).items == report.items
    assert "| 1 survived, 1 not judged \\(test failed\\) |" in ci.render(report)
    assert "not judged (test failed)" in html.render(report)
    shown = "\n".join(text for text, _ in terminal.summary(report))
    assert "1 check passed (1 survived), 1 could not be run (see the error above)" in shown


def test_hostile_texts_are_only_texts():
    """Whatever is in a path or in a message."""
    report = Report(items=(failed(sentence=HOSTILE, explanation=HOSTILE, cause=HOSTILE),))
    text = ci.render(report)
    assert "\x1b" not in text
    assert "<script>" not in text
    assert "](http" not in text
    (command,) = ci.of_github(report)
    assert "\n" not in command
    assert "\x1b" not in command
    assert json.loads(ci.of_gitlab(report))[0]["description"].endswith(HOSTILE)


def test_reports_are_merged():
    """Of an item that is in several, the worst result holds."""
    again = Report(engine="python engine", items=(item(),))
    both = _merged(MIXED, again)
    assert len(both.items) == len(MIXED.items)
    assert next(item.verdict for item in both.items if item.check == "open-error") == "corrupted"
    assert both.engine == "kernel engine, Linux 6.18; python engine"


def test_merging_loses_nothing():
    """Neither one of two results of one test, nor a version that differs."""
    twice = Report(items=(item(), failed()), versions={"torch": "2.13"})
    newer = Report(items=(item(test="b.py::other"),), versions={"torch": "9"})
    assert _merged(twice) == twice
    both = _merged(_merged(twice, newer), twice)
    assert both.items == (*twice.items, *newer.items)
    assert both.versions == {"torch": "2.13, 9"}


def _merged(*reports):
    return merged([Source("r.json", each) for each in reports]).report


def test_every_verdict_has_its_words():
    """A cause is missing where nothing is known: then the sentence is taken."""
    items = [failed(verdict=str(each), cause="", check=str(each)) for each in Verdict]
    assert list(by_cause(items)) == ["sample 0 is wrong."]


PASSES = Report(engine="python engine", items=(item(), item(check="truncated-half")))
FAILS = Report(engine="kernel engine", items=(failed(), item(check="truncated-half")))
ID = "a.py::test[open-error]"
FROM_WORST = "failed error not_reproduced xfailed passed not_asked not_applicable".split()


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


@pytest.mark.parametrize("order", [("failed", "passed"), ("passed", "failed")])
def test_a_failure_is_not_replaced_by_a_pass(merge, order):
    """Whatever the order; the output says what held, and how to keep both."""
    reports = {"failed": FAILS, "passed": PASSES}
    status, printed, both = merge(reports, *(f"{name}.json" for name in order))
    assert (status, len(both.items)) == (0, 2)
    assert [each.status for each in both.failed] == ["failed"]
    assert printed == [
        "2 reports: 2 items, 1 failed; 2 items are in several reports",
        "1 item differs, and the worst result holds:",
        f"  {ID}: failed (corrupted) in failed.json; passed (survived) in passed.json",
        "To keep both, give reports of one suite labels, as in --label py312=failed.json",
    ]


def test_labels_keep_both(merge):
    """As another test each, so that the jobs of a matrix are columns of the page."""
    reports = {"a": FAILS, "b": PASSES}
    status, printed, both = merge(reports, "--label", "py312=a.json", "--label", "py313=b.json")
    assert (status, printed) == (0, ["2 reports: 4 items, 1 failed"])
    assert _statuses(both)["py312: a.py::test[open-error]"] == "failed"
    assert _statuses(both)["py313: a.py::test[open-error]"] == "passed"
    assert list(both.tests) == ["py312: a.py::test", "py313: a.py::test"]
    assert both.items[0].reproduce == failed().reproduce


def test_shards_of_one_job_share_a_label(merge):
    """Their items differ, so there is nothing to choose."""
    reports = {"a": Report(items=FAILS.items[:1]), "b": Report(items=PASSES.items[1:])}
    _, printed, both = merge(reports, "--label", "py312=a.json", "--label", "py312=b.json")
    assert printed == ["2 reports: 2 items, 1 failed"]
    assert list(both.tests) == ["py312: a.py::test"]


@pytest.mark.parametrize(("worse", "better"), list(itertools.pairwise(FROM_WORST)))
def test_the_worst_holds(merge, worse, better):
    """By its status, of any two."""
    reports = {name: Report(items=(item(status=name),)) for name in (worse, better)}
    for order in ((worse, better), (better, worse)):
        _, _, both = merge(reports, *(f"{name}.json" for name in order))
        assert [each.status for each in both.items] == [worse]


def test_an_item_that_asks_its_check_twice(merge):
    """Each call is compared with its own."""
    first = Report(items=(failed(), item()))
    second = Report(items=(item(), failed()))
    _, _, both = merge({"a": first, "b": second}, "a.json", "b.json")
    assert [each.status for each in both.items] == ["failed", "failed"]


def test_many_differences_are_not_all_listed(merge):
    """Twenty of them, and how many there are more."""
    items = [item(check=f"check-{number}") for number in range(25)]
    bad = [failed(check=f"check-{number}") for number in range(25)]
    reports = {"a": Report(items=tuple(bad)), "b": Report(items=tuple(items))}
    _, printed, _ = merge(reports, "a.json", "b.json")
    assert len(printed) == 2 + 20 + 1 + 1
    assert printed[-2] == "  ... and 5 more"


@pytest.mark.parametrize("label", ["py312", "=a.json", "py312="])
def test_a_label_needs_a_name_and_a_file(merge, label, capsys):
    """The text says how it is written."""
    with pytest.raises(SystemExit) as ended:
        merge({"a": MIXED}, "--label", label)
    assert ended.value.code == 2
    assert f"{label!r} must be NAME=REPORT.json, such as py312=a.json" in capsys.readouterr().err


def test_no_report_is_an_error(merge, capsys):
    """An empty report would be green."""
    with pytest.raises(SystemExit):
        merge({})
    assert "give a report, or several" in capsys.readouterr().err
