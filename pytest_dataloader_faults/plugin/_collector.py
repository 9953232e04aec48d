"""Collect the results of a run, also from processes of pytest-xdist.

After each test item, pytest-xdist sends the item's report to the main process, with all attributes
that are plain data. So a process that crashes later does not lose finished results.
"""

from __future__ import annotations

import functools
import os
import time
import warnings
from collections.abc import Generator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from pytest_dataloader_faults.exceptions import UnclearErrorWarning
from pytest_dataloader_faults.exceptions import _is_github_job as is_github_job
from pytest_dataloader_faults.plugin import _failures
from pytest_dataloader_faults.plugin._options import ATTRIBUTE

if TYPE_CHECKING:
    from pytest_dataloader_faults.report.model import Item, Report


class Collector:
    """The results of a run; registered with pytest in the main process.

    *paths*: of the reports to write.
    """

    def __init__(self, paths: Sequence[str]) -> None:
        self._paths = {os.path.abspath(path): path for path in paths}  # A test may change folders.
        self._found: dict[str, dict[str, Any]] = {}
        self._written: list[str] = []
        self._warnings: list[str] = []
        self._shown: set[str] = set()
        """The ids of items whose warning no filter ignores."""
        self._began = time.time()
        self._clock_began = time.monotonic()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Keep the result; if an item runs again, only that of its last run."""
        if report.when == "setup":
            self._found.pop(report.nodeid, None)
        if hasattr(report, ATTRIBUTE):
            self._found[report.nodeid] = getattr(report, ATTRIBUTE)

    def pytest_warning_recorded(
        self, warning_message: warnings.WarningMessage, nodeid: str
    ) -> None:
        """Note that the warning of a check is shown."""
        if issubclass(warning_message.category, UnclearErrorWarning):
            self._shown.add(nodeid)

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
        if is_github_job():
            self._warnings += _report.add_step_summary(self._report)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Show the results, and the paths of the reports."""
        if self._found:
            from pytest_dataloader_faults.plugin import _report

            items = tuple(item for item in self.items if item.nodeid not in self._ignored)
            _report.show(replace(self._report, items=items), terminalreporter)
            if is_github_job():
                _report.show_annotations(self._report, terminalreporter)
        for path in self._written:
            _failures.write_line(terminalreporter, f"report: {path}")
        for warning in self._warnings:
            _failures.write_line(terminalreporter, warning, yellow=True)

    @functools.cached_property
    def items(self) -> tuple[Item, ...]:
        """The results of the run, once it is over, whichever process ran them."""
        from pytest_dataloader_faults.plugin._report import ordered_items

        return ordered_items(self._found.values())

    @property
    def _ignored(self) -> set[str]:
        """The items whose result is a warning that a filter ignores."""
        from pytest_dataloader_faults.report.model import WARNED, Item

        silent = (item for nodeid, item in self._found.items() if nodeid not in self._shown)
        return {item.nodeid for item in map(Item.from_dict, silent) if item.status == WARNED}

    @functools.cached_property
    def _report(self) -> Report:
        """The report of the run, once it is over."""
        from pytest_dataloader_faults.plugin._report import report_of

        return report_of(self.items, self._run)


_reasons = pytest.StashKey[list[str]]()
"""Reasons other than its tests why a run fails."""


def fail_run(session: pytest.Session, reason: str, status: pytest.ExitCode) -> None:
    """Have *session* end with *status*, and print *reason* in its last line."""
    session.exitstatus = status
    session.config.stash.setdefault(_reasons, []).append(reason)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_sessionfinish(session: pytest.Session) -> Generator[None, None, None]:
    """Say why the run fails below the line in which pytest counts its tests, which may be green."""
    yield
    reporter = session.config.pluginmanager.getplugin("terminalreporter")
    for reason in session.config.stash.get(_reasons, ()) if reporter else ():
        if is_github_job():
            from pytest_dataloader_faults.report.ci import error_command

            reporter.write_line(error_command(reason))
        _failures.write_line(reporter, reason, red=True)


def status(report: pytest.TestReport) -> tuple[str, str, tuple[str, dict[str, bool]]] | None:
    """What ``pytest -v`` shows for an item that ran a check, including its verdict."""
    is_shown = report.when == "call" and not (report.skipped or hasattr(report, "wasxfail"))
    if not (is_shown and hasattr(report, ATTRIBUTE)):
        return None
    from pytest_dataloader_faults.report.model import Item

    words = ", ".join(Item.from_dict(getattr(report, ATTRIBUTE)).words)
    word, colour, letter = ("PASSED", "green", ".") if report.passed else ("FAILED", "red", "F")
    return report.outcome, letter, (f"{word} ({words})", {colour: True})
