"""A newer report beside an older one: what is new, and what no longer fails."""

import pytest

from pytest_dataloader_faults.report import compare, files
from pytest_dataloader_faults.report.command import main
from pytest_dataloader_faults.report.model import Report
from support.reports import failed, item
from support.rows import rows

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
    comparison = compare.compare_reports(old, new)

    assert [name for name, found in comparison.changes.items() if found] == [kind] * bool(kind)
    assert comparison.is_worse is (kind == compare.NEW)
    assert (comparison.old, comparison.new) == (len(old.failed), len(new.failed))


@pytest.fixture
def command(tmp_path, monkeypatch, capsys):
    """What compares two reports: its exit status, and what it prints."""
    monkeypatch.chdir(tmp_path)
    files.write(Report(items=(failed(),)), "old.json")
    files.write(Report(items=(failed(check="pickles"),)), "new.json")

    def compare_files(*paths):
        status = main(["compare", *paths])
        return status, "".join(capsys.readouterr())

    return compare_files


def test_the_exit_status_says_whether_a_check_newly_fails(command):
    status, output = command("old.json", "new.json")
    assert status == 1
    assert "  a.py::test[pickles]: corrupted: sample 0 is wrong." in output
    assert command("old.json", "old.json") == (0, "failures: 1 before, 1 now (nothing changed)\n")
