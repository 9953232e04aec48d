"""A newer report beside an older one: what is new, what is gone, and what takes longer."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest

from pytest_dataloader_faults.report import compare, files
from pytest_dataloader_faults.report.command import main
from pytest_dataloader_faults.report.model import Report
from support.reports import HOSTILE, HOSTILE_MARKUP, failed, item

OLD = Report(
    items=(
        failed(check="open-error"),
        failed(check="short-read"),
        failed(check="growth"),
        failed(check="pickles"),
        item(check="leftovers"),
    )
)
NEW = Report(
    items=(
        failed(check="open-error"),
        item(check="short-read"),
        failed(check="growth", verdict="hung", sentence="it hung."),
        failed(check="leftovers", verdict="leaked", sentence="it leaks."),
        item(check="pinned", status="not_applicable", verdict=None),
        failed(test="b.py::other", check="pickles", status="error", verdict=None),
    )
)


def _names(report, old=OLD):
    found = compare.compared(old, report)
    return {title: list(changes) for title, changes in found.sections.items()}


def test_what_has_changed():
    """Each change once."""
    found = compare.compared(OLD, NEW)

    assert found.is_worse
    assert found.headline == (
        "4 failed before, 4 now: 2 new, 2 gone, 1 with another verdict, 0 slower"
    )
    assert list(compare.lines(found))[1:] == [
        "new:",
        "  a.py::test[leftovers]: leaked: it leaks.",
        "  b.py::other[pickles]: not judged (test failed): sample 0 is wrong.",
        "gone:",
        "  a.py::test[short-read]: survived",
        "  a.py::test[pickles]: not in the newer report",
        "with another verdict:",
        "  a.py::test[growth]: corrupted before, hung now: it hung.",
    ]


def test_the_same_report_has_no_change():
    """All counts are 0."""
    found = compare.compared(NEW, NEW)

    assert not found.is_worse
    assert list(compare.lines(found)) == [
        "4 failed before, 4 now: 0 new, 0 gone, 0 with another verdict, 0 slower"
    ]


@pytest.mark.parametrize(
    ("status", "told"),
    [
        ("xfailed", "corrupted (expected)"),
        ("not_applicable", "not applicable"),
        ("not_asked", "not asked"),
        ("not_reproduced", "corrupted (not reproduced)"),
    ],
)
def test_what_fails_no_longer_is_told_with_what_it_is(status, told):
    """A check that was not asked has not been mended."""
    new = Report(items=(failed(status=status),))

    assert _names(new, Report(items=(failed(),)))["gone"] == [("a.py::test[open-error]", told)]


def test_an_item_that_asks_its_check_twice():
    """Each time it is asked has a counterpart."""
    old = Report(items=(failed(), item()))
    new = Report(items=(failed(), failed()))

    assert len(_names(new, old)["new"]) == 1


@pytest.mark.parametrize(
    ("before", "after", "is_slower"),
    [
        (1.0, 2.5, True),
        (1.0, 1.9, False),
        (10.0, 14.0, False),
        (10.0, 16.0, True),
        (0.0, 9.0, False),
    ],
)
def test_a_test_is_slower_by_times_and_by_seconds(before, after, is_slower):
    """A little more is chance."""
    old, new = (Report(items=(item(duration=each),)) for each in (before, after))
    expected = [("a.py::test", f"{before:.1f} s before, {after:.1f} s now")] if is_slower else []

    assert _names(new, old)["slower"] == expected


@pytest.fixture(name="written")
def _written(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    files.write(OLD, "old.json")
    files.write(NEW, "new.json")


@pytest.mark.usefixtures("written")
def test_the_command_tells_and_writes(capsys, tmp_path):
    """In the terminal, as Markdown and as a page; the status says whether it is worse."""
    assert main(["compare", "old.json", "new.json", "-o", "c.md", "-o", "out/c.html"]) == 1
    assert "  a.py::test[leftovers]: leaked: it leaks." in capsys.readouterr().out

    text, page = (tmp_path / "c.md").read_text(), (tmp_path / "out/c.html").read_text()
    assert "## New" in text
    assert ":x: 4 failed before" in text
    assert "<li><code>a.py::test[leftovers]</code>: leaked: it leaks.</li>" in page


@pytest.mark.usefixtures("written")
def test_the_status_is_0_where_nothing_is_new():
    """What is gone is no failure."""
    assert main(["compare", "new.json", "new.json"]) == 0


@pytest.mark.usefixtures("written")
@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["old.json", "nothing.json"], "nothing.json"),
        (["old.json", "new.json", "-o", "c.pdf"], "output='c.pdf' must end in one of .md, .html"),
    ],
)
def test_what_cannot_be_compared_is_an_error(arguments, told, capsys):
    """The status is 2."""
    assert main(["compare", *arguments]) == 2
    assert told in capsys.readouterr().err


def test_texts_of_reports_do_no_harm():
    """No markup, and no control character."""
    hostile = failed(nodeid=HOSTILE_MARKUP, sentence=HOSTILE)
    found = compare.compared(Report(), Report(items=(hostile,)))

    page = compare.page(found)
    assert "<script" not in page
    assert "<img" not in page
    assert not {"\0", "\x1b", "\u202e"} & set(page)
    text = compare.markdown(found)
    assert "<script" not in text
    assert not {"\0", "\x1b", "\u202e"} & set(text)


def test_a_large_report_is_compared_in_linear_time():
    """800 tests of 48 checks: each takes the same share as with 200."""

    def seconds(tests):
        names = [f"a.py::test_{number}" for number in range(tests)]
        report = Report(
            items=tuple(item(test=each, check=f"c{check}") for each in names for check in range(48))
        )
        began = time.process_time()
        compare.compared(report, replace(report))
        return time.process_time() - began

    assert seconds(800) < 3


def test_runs_of_a_report_say_nothing_of_the_comparison():
    """Date and commit differ each time."""
    assert compare.compared(replace(OLD, runs=()), OLD).headline.endswith("0 slower")
