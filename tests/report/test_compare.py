"""A newer report beside an older one: what is new, what is gone, and what takes longer."""

import json
import time
from dataclasses import replace

import pytest

from pytest_dataloader_faults.report import compare, files
from pytest_dataloader_faults.report.command import main
from pytest_dataloader_faults.report.model import Report
from support.reports import RUN, failed, item
from support.rows import rows

OLD = Report(
    items=(
        failed(check="open-error"),
        failed(check="short-read"),
        failed(check="resource-growth"),
        failed(check="pickles"),
        item(check="leftover-files"),
    )
)
NEW = Report(
    items=(
        failed(check="open-error"),
        item(check="short-read"),
        failed(check="resource-growth", verdict="hung", sentence="it hung."),
        failed(check="leftover-files", verdict="leaked", sentence="it leaks."),
        item(check="pin-memory", status="not_applicable", verdict=None),
        failed(test="b.py::other", check="pickles", status="error", verdict=None),
    )
)


def _names(report, old=OLD):
    comparison = compare.compare_reports(old, report)
    return {title: list(changes) for title, changes in comparison.sections.items()}


def test_what_has_changed():
    comparison = compare.compare_reports(OLD, NEW)

    assert comparison.is_worse
    assert comparison.headline == (
        "failures: 4 before, 4 now (2 newly failing, 1 fixed, 1 neither failing nor fixed,"
        " 1 with a different verdict)"
    )
    assert list(compare.lines(comparison))[1:] == [
        "newly failing:",
        "  a.py::test[leftover-files]: leaked: it leaks.",
        "  b.py::other[pickles]: not judged (error in the test): sample 0 is wrong.",
        "fixed:",
        "  a.py::test[short-read]: fixed: now survived",
        "neither failing nor fixed:",
        "  a.py::test[pickles]: removed: not in the newer report",
        "with a different verdict:",
        "  a.py::test[resource-growth]: corrupted before, hung now: it hung.",
    ]


def test_the_same_report_has_no_change():
    comparison = compare.compare_reports(NEW, NEW)

    assert not comparison.is_worse
    assert list(compare.lines(comparison)) == ["failures: 4 before, 4 now (nothing changed)"]


@pytest.mark.parametrize(
    ("status", "change"),
    [
        ("xfailed", "expected: still corrupted, and marked as an expected failure"),
        ("not_applicable", "not run: the check does not apply now"),
        ("not_run", "not run: the dataset could not be tested; see the error of its test"),
        ("flaky", "flaky: corrupted in 1 of 3 trials"),
    ],
)
def test_what_fails_no_longer_is_reported_with_what_it_is(status, change):
    new = Report(items=(failed(status=status),))
    changes = _names(new, Report(items=(failed(),)))

    assert changes[compare.NOT_FIXED] == [("a.py::test[open-error]", change)]
    assert changes[compare.FIXED] == []


def test_a_check_that_passes_now_is_fixed():
    new = Report(items=(item(verdict="failed_cleanly"),))
    change = ("a.py::test[open-error]", "fixed: now failed_cleanly")

    assert _names(new, Report(items=(failed(),)))[compare.FIXED] == [change]


EMPTY = Report(runs=(RUN,))
NO_TEST_IN_COMMON = (
    "the reports have no test in common, so every failure counts as new (their first tests:"
    " a.py::test, c.py::test). Pass reports of one suite, from runs in the same folder"
)


@rows(
    ("old", "new", "warning"),
    [
        (OLD, NEW, ""),
        (OLD, EMPTY, "the newer report has no tests, so nothing can be compared"),
        (EMPTY, EMPTY, "the older report has no tests, so nothing can be compared"),
        (Report(), NEW, ""),
        (NEW, Report(), ""),
        (OLD, Report(items=(failed(test="c.py::test"),)), NO_TEST_IN_COMMON),
    ],
)
def test_reports_without_a_test_in_common_are_a_warning(old, new, warning):
    comparison = compare.compare_reports(old, new)

    assert comparison.warning == warning
    assert (next(compare.lines(comparison)) == f"warning: {warning}") is bool(warning)


def _alone(check="open-error", **changes):
    """The first item of a test whose dataset fails without a fault."""
    fields = {"verdict": "fails_without_fault", "trials": (0.2,), "without_fault": True}
    return failed(check=check, **{**fields, **changes})


RAN = item(check="pickles", trials=(0.2,))


@rows(
    ("old", "new", "changes"),
    [
        ([_alone()], [_alone("pickles")], {}),
        ([_alone()], [_alone("pickles", status="xfailed")], {compare.NOT_FIXED: "expected: still"}),
        ([_alone()], [_alone(verdict="hung")], {compare.OTHER_VERDICT: "fails_without_fault bef"}),
        ([_alone()], [RAN], {compare.FIXED: "fixed: now survived"}),
        ([_alone()], [failed(trials=(0.2,))], dict.fromkeys([compare.FIXED, compare.NEW])),
        ([_alone()], [item(status="not_run", verdict=None)], {compare.NOT_FIXED: "not run: the d"}),
        ([_alone()], [item(test="b.py::other")], {compare.NOT_FIXED: "removed: "}),
        ([failed()], [_alone()], {compare.NEW: "fails_without", compare.NOT_FIXED: "not run: the"}),
    ],
)
def test_a_dataset_that_fails_without_a_fault_is_compared_by_its_test(old, new, changes):
    comparison = _names(*(Report(items=tuple(items)) for items in (new, old)))
    texts = {title: text for title, lines in comparison.items() for _, text in lines}

    assert texts.keys() == changes.keys()
    assert all(texts[title].startswith(start or "") for title, start in changes.items())


def _baseline(*items):
    """The report that a baseline of *items* is, once it was written and read again."""
    return Report.from_dict(json.loads(compare.baseline_json(Report(items=items))))


def test_a_baseline_is_a_report_in_either_place():
    baseline = _baseline(failed(), failed(check="pickles"), item(check="short-read"))
    new = Report(
        items=(
            failed(status="xfailed"),
            failed(check="pickles", verdict="hung"),
            failed(check="two-epochs"),
        )
    )

    changes = {title: lines for title, lines in _names(new, baseline).items() if lines}
    assert list(changes) == [compare.NEW, compare.OTHER_VERDICT]
    assert _names(baseline, _baseline(failed()))[compare.NEW] == [
        ("a.py::test[pickles]", "corrupted")
    ]
    assert not compare.compare_reports(new, _baseline(failed(check="two-epochs"))).is_worse


def test_expected_failures_of_a_run_are_no_new_entries_of_its_baseline():
    known = failed(status="xfailed", reason="", trials=(0.2,))
    run = Report(runs=(RUN,), items=(known, item(check="pickles")))

    unchanged = compare.compare_reports(run, _baseline(*run.items))
    assert not unchanged.is_worse
    assert unchanged.headline == "failures: 1 before, 1 now (nothing changed)"
    other_verdict = _names(_baseline(replace(known, verdict="hung")), run)
    assert other_verdict[compare.OTHER_VERDICT] == [
        ("a.py::test[open-error]", "corrupted before, hung now")
    ]
    fewer = compare.compare_reports(run, _baseline(failed(check="pickles")))
    assert fewer.headline == (
        "failures: 1 before, 1 now (1 newly failing, 1 neither failing nor fixed)"
    )
    assert compare.compare_reports(run, replace(run, items=(failed(),))).is_worse


def test_a_baseline_has_the_failures_of_checks_alone():
    tried = {"trials": (2.0,), "duration": 2.0}
    report = Report(
        runs=(RUN,),
        items=(
            failed(check="pickles", **tried),
            _alone("two-epochs", **tried),
            failed(status="xfailed", reason="issue 2", **tried),
            failed(check="short-read", status="error", **tried),
            failed(check="hung-read", status="flaky", **tried),
            failed(check="fork", verdict="not_exercised"),
            item(check="spawn", status="failed", **tried),
            item(check="workers-agree", **tried),
        ),
    )
    fields = {"test": "a.py::test", "status": "failed"}
    assert json.loads(compare.baseline_json(report)) == {
        "version": 1,
        "items": [
            {
                "nodeid": "a.py::test",
                **fields,
                "check": "workers-agree",
                "verdict": "fails_without_fault",
                "without_fault": True,
                "reason": "",
            },
            {
                "nodeid": "a.py::test[open-error]",
                **fields,
                "check": "open-error",
                "verdict": "corrupted",
                "reason": "issue 2",
            },
            {
                "nodeid": "a.py::test[pickles]",
                **fields,
                "check": "pickles",
                "verdict": "corrupted",
                "reason": "",
            },
        ],
    }
    assert compare.baseline_json(_baseline(*report.items)) == compare.baseline_json(report)


@pytest.mark.parametrize(
    ("old_seconds", "new_seconds", "is_slower"),
    [
        (1.0, 2.5, True),
        (1.0, 1.9, False),
        (10.0, 14.0, False),
        (10.0, 16.0, True),
        (0.0, 9.0, False),
    ],
)
def test_a_test_is_slower_by_times_and_by_seconds(old_seconds, new_seconds, is_slower):
    old, new = (Report(items=(item(duration=each),)) for each in (old_seconds, new_seconds))
    expected = (
        [("a.py::test", f"{old_seconds:.1f} s before, {new_seconds:.1f} s now")]
        if is_slower
        else []
    )

    assert _names(new, old)[compare.SLOWER] == expected


@pytest.fixture(name="written")
def _written(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    files.write(OLD, "old.json")
    files.write(NEW, "new.json")


@pytest.mark.usefixtures("written")
def test_the_status_is_1_if_a_check_newly_fails(capsys):
    assert main(["compare", "old.json", "new.json"]) == 1
    assert "  a.py::test[leftover-files]: leaked: it leaks." in capsys.readouterr().out


@pytest.mark.usefixtures("written")
def test_the_status_is_0_where_nothing_is_new():
    assert main(["compare", "new.json", "new.json"]) == 0


@pytest.mark.usefixtures("written")
def test_a_report_that_is_missing_is_an_error(capsys):
    assert main(["compare", "old.json", "nothing.json"]) == 2
    message = "nothing.json cannot be read: No such file or directory. Pass a file that --data"
    assert message in capsys.readouterr().err


def test_a_large_report_is_compared_in_linear_time():
    def seconds(tests):
        names = [f"a.py::test_{number}" for number in range(tests)]
        report = Report(
            items=tuple(item(test=each, check=f"c{check}") for each in names for check in range(48))
        )
        began = time.process_time()
        compare.compare_reports(report, replace(report))
        return time.process_time() - began

    assert seconds(800) < 3


def test_runs_of_a_report_say_nothing_of_the_comparison():
    comparison = compare.compare_reports(replace(OLD, runs=()), OLD)
    assert comparison.headline.endswith("(nothing changed)")
