"""Each form of a report, from one model, and the complete texts in golden files."""

import itertools
import json
from dataclasses import MISSING, asdict, fields, replace
from pathlib import Path
from unittest import mock

import pytest

from pytest_dataloader_faults.outcomes import CheckResult, Event, Finding, Pass, Verdict
from pytest_dataloader_faults.report import ci, files, html, terminal
from pytest_dataloader_faults.report.command import main
from pytest_dataloader_faults.report.compare import compare_reports, merge_reports
from pytest_dataloader_faults.report.model import (
    FLAKY,
    NOT_APPLICABLE,
    NOT_RUN,
    Item,
    Report,
    group_by_cause,
    item_of,
)
from support.facts import EPOCH_1, ordinary
from support.reports import EVERYTHING, HOSTILE, MIXED, RUN, failed, item
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
        (ci.render, "\n    fix: close the file\n    pytest ", 1),
    ],
)
def test_each_form_says_how_to_fix_a_cause(render, line, times):
    assert render(_FIXED).count(line) == times
    assert "close the file" not in render(_UNFIXED)


def test_a_time_stays_with_its_unit():
    for width in range(20, 60):
        lines = [text for text, _ in terminal.summary(Report(items=(item(),)), width)]
        assert any(line.endswith("0.5 s") for line in lines), lines


def test_json_is_as_its_schema_says():
    jsonschema = pytest.importorskip("jsonschema")
    schema = json.loads((_PACKAGE / "schema.json").read_text())
    jsonschema.Draft202012Validator(schema).validate(json.loads(files.as_json(MIXED)))
    assert schema["$defs"]["item"]["properties"].keys() == asdict(MIXED.items[0]).keys()
    required = [each.name for each in fields(Item) if each.default is MISSING]
    assert schema["$defs"]["item"]["required"] == required
    assert json.loads(files.as_json(MIXED))["items"][0].keys() == asdict(MIXED.items[0]).keys()
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.Draft202012Validator(schema).validate({"version": 2})


def test_what_is_no_report_is_refused(tmp_path, capsys):
    path, output = tmp_path / "r.json", tmp_path / "all.html"
    path.write_text("no")
    output.write_text("earlier")
    assert main(["merge", str(path), "-o", str(output)]) == 4
    assert "it is not valid JSON: Expecting value" in capsys.readouterr().err
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
    where = {"nodeid": "n", "test": "t", "file": "a.py", "duration": 0.1}
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
    escaped = "pytest 'a.py::test[*x*-`y`]&lt;b&gt;'"
    assert f"<code>{escaped}</code>" in text
    assert f"    {escaped}\n" in text


def test_a_step_summary_has_at_most_what_github_takes():
    items = [failed(test=f"a.py::test_{number}", explanation="x" * 9000) for number in range(150)]
    small = Report(items=tuple(items[:3]))
    assert ci.step_summary(small, 0) == ci.render(small)
    assert "x" * 9000 not in ci.step_summary(small, (1 << 20) - 9000)
    for report in (Report(items=tuple(items)), Report(items=(failed(sentence="é" * (1 << 20)),))):
        text = ci.step_summary(report, 1000)
        assert len(text.encode()) <= (1 << 20) - 1000
        assert "checks failed" in text.replace("check ", "checks ")
    items = [failed(test=f"a.py::test_{number}", cause="x" * 500) for number in range(3000)]
    text = ci.step_summary(Report(items=tuple(items)), 0)
    assert text.startswith("3000 checks failed, in 3000 datasets. The rest is longer than")


def test_hostile_texts_are_only_texts():
    report = Report(items=(failed(sentence=HOSTILE, explanation=HOSTILE, cause=HOSTILE),))
    text = ci.render(report)
    assert "\x1b" not in text
    assert "<script>" not in text
    blocks = [block for block in text.split("\n\n") if "](http" in block]
    assert all(block.startswith(("<pre>", "<details>")) for block in blocks)  # No Markdown.
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
    with pytest.raises(SystemExit):
        merge({})
    assert "the following arguments are required: [LABEL=]REPORT.json" in capsys.readouterr().err


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
OLD = Report(items=(failed(samples="a"), failed(check="pickles"), failed(check="short-read")))
NEW = {
    "unchanged": OLD,
    "other samples": Report(items=(failed(samples="b"), *OLD.items[1:])),
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


def test_markdown(golden):
    reports = {"everything": EVERYTHING, **REPORTS}
    titles = "everything/nothing ran/all passed/expected failure/could not be run/the worst last"
    golden("markdown", {title: ci.render(reports[title]) for title in titles.split("/")})


def test_comparisons(golden):
    texts = {title: "\n".join(compare_reports(OLD, report)) for title, report in NEW.items()}
    golden("compare", texts)


def test_merges(golden):
    golden("merge", {"one": merge_reports([OLD])[1], "equal": merge_reports([OLD, OLD])[1]})
