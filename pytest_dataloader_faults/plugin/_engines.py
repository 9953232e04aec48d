"""Which engine runs: said in pytest's header, or at the end of a run that has no header.

No test that uses faults goes by without it: the engine decides what they reach.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Generator

import pytest

from pytest_dataloader_faults.plugin import _options

_USED = "dataloader_faults_engines"
"""The attribute of pytest's reports that has the engines that an item ran by."""


def line_for(config: pytest.Config) -> str:
    """The engine for tests that choose none, and why it is not the kernel engine."""
    from pytest_dataloader_faults._engine import lacking

    asked = _options.options_for(config).engine
    if (reason := lacking()) is not None:
        what = "are skipped" if asked == "auto" else "fail"
        return f"no engine, tests that need one {what}: {reason}"
    return _line(asked)


def _line(asked: str) -> str:
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
        self._has_summary |= hasattr(report, _options.ATTRIBUTE)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Name them in a line each."""
        for engine in () if self._has_summary else self._used:
            terminalreporter.write_line(f"dataloader-faults: {_line(engine)}")
