"""The line that shows in a terminal how far a check, a sweep or a search is."""

from __future__ import annotations

import re
import sys

import pytest

from pytest_dataloader_faults.battery import progress
from pytest_dataloader_faults.plugin import _items
from support.rows import rows

SUITE = """
import pytest
from support.datasets import Records
from pytest_dataloader_faults.faults import OpenError


@pytest.mark.dataloader_faults(only=["workers-agree", "open-error", "read-error"])
def test_checks(fault_check, records):
    fault_check(lambda: Records(records))


def test_sweep(fault_injector, records):
    print("what the test prints")
    fault_injector.sweep(lambda: Records(records), faults=[OpenError()], max_trials=5)


def test_explore(fault_injector, records):
    fault_injector.explore(lambda: Records(records), max_examples=5)
"""
ROWS, COLUMNS = 6, 80
ITEMS = """
test_inner.py::test_checks[workers-agree] PASSED (survived) [ 20%]
test_inner.py::test_checks[open-error] PASSED (failed_cleanly) [ 40%]
test_inner.py::test_checks[read-error] PASSED (failed_cleanly) [ 60%]
test_inner.py::test_sweep PASSED [ 80%]
test_inner.py::test_explore PASSED [100%]
""".strip().splitlines()


LIGHT = """
import pytest
from pytest_dataloader_faults.battery import progress


@pytest.mark.parametrize("number", range(9))
def test_light(number, caplog):
    with progress.stage("light"):
        progress.step("!" * 100, number, 9)
        print("what the test prints")
    assert not caplog.records
    progress.show(f"light: {number} of 9, and an error")
    assert number != 3
"""


COUNTED = """
class Items(list):
    listed = 0

    def __iter__(self):
        Items.listed += 1
        return super().__iter__()


def pytest_collection_finish(session):
    session.items = Items(session.items)
    Items.listed = 0


def pytest_sessionfinish():
    print(f"listed {Items.listed} times")
"""


def _spawned(suite, monkeypatch, source: str, *arguments: str) -> tuple[str, list[str]]:
    """What pytest writes to a terminal, and what that shows of it, also of what scrolled away."""
    pyte = pytest.importorskip("pyte")
    pytest.importorskip("pexpect")
    for name in ("CI", "BUILD_NUMBER"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    suite.pytester.makepyfile(test_inner=source)
    child = suite.pytester.spawn_pytest(
        f"-p dataloader_faults -p no:cacheprovider --no-header {' '.join(arguments)}", 100
    )
    child.setwinsize(ROWS, COLUMNS)
    written = child.read().decode()
    screen = pyte.HistoryScreen(COLUMNS, ROWS, history=1000)
    pyte.Stream(screen).feed(written)
    scrolled_lines = ("".join(row[at].data for at in range(COLUMNS)) for row in screen.history.top)
    return written, [" ".join(line.split()) for line in (*scrolled_lines, *screen.display)]


def test_the_line_leaves_no_trace(suite, monkeypatch):
    written, lines = _spawned(suite, monkeypatch, LIGHT, "-v", "--tb=no")
    assert "dataloader-faults: light: 8 of 9, and an error" in written
    words = ["FAILED" if number == 3 else "PASSED" for number in range(9)]
    items = [f"test_inner.py::test_light[{number}] {word}" for number, word in enumerate(words)]
    begun = next(at for at, line in enumerate(lines) if line.startswith(items[0]))
    assert [line.rpartition(" [")[0] for line in lines[begun : begun + 9]] == items
    assert lines[begun + 9] == ""
    assert not any("dataloader-faults: " in line for line in lines)


@pytest.mark.slow
@pytest.mark.usefixtures("engine")
@pytest.mark.timeout(200)
def test_a_terminal_shows_how_far_it_is(suite, monkeypatch):
    written, lines = _spawned(suite, monkeypatch, SUITE, "-v", "-W", "ignore")
    stages = re.findall(r"dataloader-faults: ([^\x1b]+)", written)
    for form in (
        r"checks: 2 of 3, read-error, about \d+ s left",
        r"fault-free run: without workers",
        r"fault-free run: with workers \(without workers: \d\.\d s\)",
        r"sweep: 2 of 5, OpenError nth=3, about \d+ s left",
        r"explore: 3 of 5, about \d+ s left",
    ):
        assert [each for each in stages if re.fullmatch(form, each)], (form, stages)
    begun = lines.index(ITEMS[0])
    assert lines[begun : begun + len(ITEMS)] == ITEMS
    assert not any("dataloader-faults: " in line for line in lines)
    assert lines[begun + len(ITEMS)] == ""


WITHOUT = [
    ("-s",),
    ("--capture=tee-sys",),
    ("-qq",),
    ("-o", "log_cli=true"),
    ("--log-cli-level=INFO",),
    ("-p", "no:terminal"),
    ("-p", "no:capture"),
]


@rows("options", WITHOUT)
def test_options_turn_it_off(pytester, monkeypatch, options):
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    for name in ("CI", "BUILD_NUMBER", "PYTEST_ADDOPTS"):
        monkeypatch.delenv(name, raising=False)
    assert _items.has_terminal(pytester.parseconfig())
    assert _items.has_terminal(pytester.parseconfig("-q"))
    assert _items.has_terminal(pytester.parseconfig("-p", "no:logging"))
    assert not _items.has_terminal(pytester.parseconfig(*options))


@rows(("name", "value"), [("CI", "true"), ("TERM", "dumb")])
def test_the_environment_turns_it_off(pytester, monkeypatch, name, value):
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("CI", raising=False)
    monkeypatch.setenv(name, value)
    assert not _items.has_terminal(pytester.parseconfig())


@pytest.mark.parametrize(
    ("completed", "total", "spent", "estimate"),
    [
        (1, 100, 5, ""),
        (2, 100, 2, "about 98 s left"),
        (50, 100, 120, "about 2 min left"),
        (9, 10, 9, "about 1 s left"),
        (12, 10, 9, "about 0 s left"),
    ],
)
def test_the_rest_is_estimated(completed, total, spent, estimate):
    assert progress.remaining(completed, total, spent) == estimate


def test_the_outer_stage_continues(monkeypatch):
    texts = []
    monkeypatch.setattr(progress, "show", texts.append)
    with progress.stage("outer"):
        progress.step("one", 0, 3)
        with progress.stage("inner"):
            progress.step("two")
    assert texts == ["outer: 0 of 3, one", "inner: two", "", "outer: 0 of 3, one", ""]


def test_the_items_are_listed_once(suite, engine):
    with (suite.path / "conftest.py").open("a", encoding="utf-8") as file:
        file.write(COUNTED)
    result = suite.run(SUITE, "-k", "workers-agree", "-s")
    result.assert_outcomes(passed=1, deselected=4)
    result.stdout.fnmatch_lines(["*listed 2 times"])  # pytest itself does it once.
