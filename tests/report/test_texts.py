"""The complete texts of the summary, of a comparison and of a merge, in golden files."""

from pytest_dataloader_faults.report import ci, terminal
from pytest_dataloader_faults.report.compare import compare_reports, merge_reports
from pytest_dataloader_faults.report.model import FLAKY, NOT_APPLICABLE, NOT_RUN, Report
from support.reports import EVERYTHING, MIXED, RUN, failed, item

_UNTESTED = {"verdict": None, "cause": "", "reproduce": "", "explanation": ""}
_SETUP = failed(status="error", sentence="error in the setup of the test: no disk", **_UNTESTED)
_IN_MEMORY = [
    item(check=name, status=NOT_APPLICABLE, **{**_UNTESTED, "cause": "the files are in memory"})
    for name in ("open-error", "truncated-file")
]
REPORTS = {
    "nothing ran": Report(),
    "all passed": Report(items=(item(), item(check="pickles"))),
    "one passed": Report(items=(item(),)),
    "expected failure": Report(items=(item(), failed(check="pickles", status="xfailed"))),
    "unexpected pass": Report(items=(item(status="failed"),)),
    "flaky": Report(items=(item(), failed(check="pickles", status=FLAKY))),
    "failures with a fix": Report(items=(failed(fix="close the file"), failed(check="pickles"))),
    "error in the test": Report(items=(item(status="error", trials=(0.2,)),)),
    "could not be run": Report(items=(_SETUP, item(check="pickles", status=NOT_RUN, **_UNTESTED))),
    "does not apply": Report(items=_IN_MEMORY[:1]),
    "only one applies": Report(
        items=(*_IN_MEMORY, item(), item(check="pin-memory", status=NOT_APPLICABLE))
    ),
    "error and flaky": Report(items=(item(status="error"), item(status=FLAKY))),
    "several tests": MIXED,
    "the worst last": Report(
        items=(
            item(),
            failed(test="b.py::test", check="pickles"),
            *(failed(test="c.py::test", check=check, fix="raise") for check in ("a", "b")),
        )
    ),
}
OLD = Report(items=(failed(), failed(check="pickles"), failed(check="short-read")))
NEW = {
    "unchanged": OLD,
    "fixed": Report(items=(item(), *OLD.items[1:])),
    "worse": Report(items=(*OLD.items, failed(check="missing-file"))),
    "a different verdict": Report(items=(failed(verdict="hung"), *OLD.items[1:])),
    "flaky": Report(items=(failed(status=FLAKY), *OLD.items[1:])),
    "expected": Report(items=(failed(status="xfailed"), *OLD.items[1:])),
    "not run": Report(items=(failed(status=NOT_RUN), *OLD.items[1:])),
    "not applicable": Report(items=(failed(status=NOT_APPLICABLE), *OLD.items[1:])),
    "no test in common": Report(items=(failed(test="b.py::other"),)),
    "empty": Report(runs=(RUN,)),
    "without a fault": Report(
        items=(
            failed(without_fault=True, trials=(0.2,), verdict="fails_without_fault"),
            *(failed(check=name, status=NOT_RUN) for name in ("pickles", "short-read")),
        )
    ),
}


def test_summaries(golden):
    texts = {}
    for title, report in REPORTS.items():
        lines = [line for line, _ in terminal.summary(report, quotes=True)]
        texts[title] = "\n".join(["".join(report.headline), *lines])
    golden("summary", texts)


_CAUSES = {
    "returns a substitute for an unreadable sample": "open-error read-error read-error-once",
    "accepts a truncated file": "truncated-file empty-file",
    "raises an error that hides its cause": "missing-file short-read",
}


def test_three_causes_fit_a_screen():
    fix = "compare the size or the record count with what you expect, and raise an error"
    items = [
        failed(check=check, cause=cause, fix=fix, notes=("64 of 80 samples were checked",))
        for cause, checks in _CAUSES.items()
        for check in checks.split()
    ]
    lines = list(terminal.summary(Report(items=(*items, *_IN_MEMORY, item(check="pickles")))))
    assert len(lines) <= 25
    assert sum("64 of 80" in line for line, _ in lines) == 1


def test_markdown(golden):
    reports = {"everything": EVERYTHING, **REPORTS}
    titles = "everything/nothing ran/all passed/expected failure/could not be run/the worst last"
    golden("markdown", {title: ci.render(reports[title]) for title in titles.split("/")})


def test_comparisons(golden):
    texts = {
        title: "\n".join(compare_reports(OLD, report).lines()) for title, report in NEW.items()
    }
    golden("compare", texts)


def test_merges(golden):
    golden("merge", {"one": merge_reports([OLD])[1], "equal": merge_reports([OLD, OLD])[1]})
