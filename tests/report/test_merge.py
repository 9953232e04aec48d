"""One report of several: nothing that failed is lost, and the command says what held."""

from __future__ import annotations

import itertools

import pytest

from pytest_dataloader_faults.report import files
from pytest_dataloader_faults.report.merge import main
from pytest_dataloader_faults.report.model import Report
from support.reports import MIXED, failed, item

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
