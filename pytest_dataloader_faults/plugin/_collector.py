"""Collect what a run found and by which engine, also in pytest-xdist's processes, for its end.

Some facts about how it travels. pytest-xdist sends each report of a test item to the main process
with all of its attributes, as far as they are plain data, once the item is over. So a process that
crashes later takes nothing along that was finished.
"""

from __future__ import annotations

import functools
import os
import sys
import time
from collections.abc import Callable, Generator, Sequence
from typing import TYPE_CHECKING, Any

import pytest

from pytest_dataloader_faults.exceptions import UnusableEnvironmentError
from pytest_dataloader_faults.plugin import _failures
from pytest_dataloader_faults.plugin._options import ATTRIBUTE, is_for_github, options_for

if TYPE_CHECKING:
    from pytest_dataloader_faults.report.model import Report


class Collector:
    """What the checks of a run found; it is registered with pytest in the main process.

    *engine* says which one runs. *paths*: of the reports to write. *for_github*: whether to tell
    GitHub of failures.
    """

    def __init__(
        self, engine: Callable[[], str], paths: Sequence[str], *, for_github: bool
    ) -> None:
        self._engine = engine
        self._paths = {os.path.abspath(path): path for path in paths}  # A test may change folders.
        self._for_github = for_github
        self._found: dict[tuple[str, int], dict[str, Any]] = {}
        self._written: list[str] = []
        self._warnings: list[str] = []
        self._began = time.time()
        self._clock_began = time.monotonic()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Keep what was found; of an item that runs again, the last result holds."""
        for number, each in enumerate(getattr(report, ATTRIBUTE, ())):
            self._found[report.nodeid, number] = each

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Write the reports."""
        if not (self._found or self._paths) or session.config.getoption(
            "collectonly", default=False
        ):
            return
        from pytest_dataloader_faults.plugin import _report

        duration = time.monotonic() - self._clock_began  # The clock may be set meanwhile.
        self._run = _report.run_of(session.config, self._began, duration)
        for target, path in self._paths.items():
            if problem := _report.write(self._report, target, path):
                fail_run(session, problem, pytest.ExitCode.USAGE_ERROR)
            else:
                self._written.append(path)
        if self._for_github:
            self._warnings += _report.add_step_summary(self._report)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Show what was found, and where the reports are."""
        if self._found:
            from pytest_dataloader_faults.plugin import _report

            _report.show(self._report, terminalreporter)
            if self._for_github:
                _report.show_annotations(self._report, terminalreporter)
        for path in self._written:
            _failures.write_line(terminalreporter, f"report: {path}")
        for warning in self._warnings:
            _failures.write_line(terminalreporter, warning, yellow=True)

    @functools.cached_property
    def _report(self) -> Report:
        """All that was found, once the run is over."""
        from pytest_dataloader_faults.plugin._report import report_of

        return report_of(self._found.values(), self._engine(), self._run)


_reasons = pytest.StashKey[list[str]]()
"""Why a run fails besides its tests."""


def fail_run(session: pytest.Session, reason: str, status: pytest.ExitCode) -> None:
    """Have *session* end with *status* whatever its tests did, and say so in its last line."""
    session.exitstatus = status
    session.config.stash.setdefault(_reasons, []).append(reason)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_sessionfinish(session: pytest.Session) -> Generator[None, None, None]:
    """Say why the run fails below the line in which pytest counts its tests, which may be green."""
    yield
    reporter = session.config.pluginmanager.getplugin("terminalreporter")
    for reason in session.config.stash.get(_reasons, ()) if reporter else ():
        if is_for_github(session.config):
            from pytest_dataloader_faults.report.ci import error_command

            reporter.write_line(error_command(reason))
        _failures.write_line(reporter, reason, red=True)


def _verdicts(report: pytest.TestReport) -> str:
    """What the checks of an item found."""
    found = getattr(report, ATTRIBUTE, ())
    if not found:
        return ""
    from pytest_dataloader_faults.report.model import Item

    return "; ".join(dict.fromkeys(", ".join(Item.from_dict(each).words) for each in found))


def status(report: pytest.TestReport) -> tuple[str, str, tuple[str, dict[str, bool]]] | None:
    """What ``pytest -v`` shows of an item that asked a check: its verdict, too."""
    verdicts = _verdicts(report)
    if not verdicts or report.when != "call" or report.skipped or hasattr(report, "wasxfail"):
        return None
    word, colour, letter = ("PASSED", "green", ".") if report.passed else ("FAILED", "red", "F")
    return report.outcome, letter, (f"{word} ({verdicts})", {colour: True})


_USED = "dataloader_faults_engines"
"""The attribute of pytest's reports that has the engines that an item ran by."""


def engine_line(config: pytest.Config) -> str:
    """The engine for tests that choose none, which decides what faults reach, and why that one."""
    from pytest_dataloader_faults._engine import lacking, unavailable

    asked = options_for(config).engine
    try:
        if (reason := lacking()) is not None:
            what = "are skipped" if asked == "auto" else "fail"
            return f"no engine, tests that need one {what}: {reason}"
        if asked == "kernel" and (reason := unavailable()) is not None:
            return f"no kernel engine, tests that need one fail: {reason}"
        return _engine_text(asked)
    except (OSError, UnusableEnvironmentError) as error:
        return f"no engine can be started now: {error}"


def _engine_text(asked: str) -> str:
    from pytest_dataloader_faults._engine import unavailable

    reason = "as asked for" if asked == "python" else unavailable()
    if reason is None:
        return f"kernel engine, Linux {os.uname().release}"
    return f"python engine (Python-level reads only): {reason}"


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    """Forget what ran before this item."""
    _take_used()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Give the report the engines of its phase; pytest-xdist sends that to the main process."""
    report = yield
    setattr(report, _USED, _take_used())
    return report


def _take_used() -> list[str]:
    """The engines since the last call. Where their module was not imported, none has run."""
    engine = sys.modules.get("pytest_dataloader_faults._engine")
    if engine is None:
        return []
    used = sorted(engine.chosen)
    engine.chosen.clear()
    return used


def is_to_be_told(config: pytest.Config) -> bool:
    """Whether the end of a run says what its header does not. With -qq, neither of them does."""
    verbosity = config.get_verbosity()
    return verbosity == -1 or (verbosity > -1 and config.getoption("no_header", default=True))


class UsedEngines:
    """The engines that a run used; it is registered where pytest shows no header."""

    def __init__(self) -> None:
        self._used: dict[str, None] = {}
        self._has_summary = False

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note the engines, and whether the summary of checks will name the engine, too."""
        self._used.update(dict.fromkeys(getattr(report, _USED, ())))
        self._has_summary |= hasattr(report, ATTRIBUTE)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Name them in a line each."""
        for engine in () if self._has_summary else self._used:
            terminalreporter.write_line(f"dataloader-faults: {_engine_text(engine)}")
