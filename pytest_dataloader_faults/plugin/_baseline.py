"""The baseline: a file of expected failures, which pytest writes: ``{test: {check: reason}}``.

Each process reads it. The main process also writes it, or reports its entries that match no test.
"""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Mapping
from typing import Any

import pytest

from pytest_dataloader_faults.battery.checks import require_checks
from pytest_dataloader_faults.exceptions import InvalidArgumentError
from pytest_dataloader_faults.outcomes.text import join_some, pluralize, printable, shorten
from pytest_dataloader_faults.plugin._collector import Collector, fail_run
from pytest_dataloader_faults.plugin._failures import write_line
from pytest_dataloader_faults.plugin._options import (
    UPDATE_BASELINE,
    BaselineOptions,
    check_name_of,
    runs_check,
)
from pytest_dataloader_faults.plugin._report import test_of
from pytest_dataloader_faults.report import files
from pytest_dataloader_faults.report.model import PASSED, Failure, Report
from pytest_dataloader_faults.wire import from_json

_MISSING = "dataloader_faults_missing"
"""What a worker of pytest-xdist sends to the main process: the tests that do not exist."""
_SHOWN = 10
"""Up to this many of them are listed."""
BASELINE = pytest.StashKey["Baseline"]()
"""The baseline of a run, if it has one."""


def read(path: str, where: str) -> dict[Failure, str]:
    """The reasons in the baseline *path*, which the option or ini key *where* names."""
    label = f"baseline={path!r} from {where}"
    try:
        tests = from_json(dict[str, dict[str, str]], files.read_json(path))
        for test, checks in tests.items():
            require_checks(shorten(test), map(shorten, checks))
    except OSError as error:
        message = f"{label} cannot be read: {error.strerror}. To write it, add {UPDATE_BASELINE}"
        raise InvalidArgumentError(message) from error
    except InvalidArgumentError as error:
        raise InvalidArgumentError(f"{label} is not a baseline: {error}") from None
    return {Failure(test, check): tests[test][check] for test in tests for check in tests[test]}


class Baseline:
    """The expected failures of a run; registered with pytest in each process.

    *collector* has the results of the run; None in a process of pytest-xdist.
    """

    def __init__(self, options: BaselineOptions, collector: Collector | None) -> None:
        self._options = options
        self._collector = collector
        self._target = os.path.abspath(options.path)  # A test may change the working directory.
        self._reasons = self._read(options.path)
        self._collected: set[str] = set()
        self._missing: set[str] = set()
        self._line = ""
        """What to print at the end."""

    def _read(self, path: str) -> dict[Failure, str]:
        """The file; empty if it is missing and will be written."""
        if self._options.is_updated and not os.path.exists(path):
            return {}
        return read(path, self._options.where)

    def expected_failures(self, test: str) -> Mapping[str, str]:
        """What ``expected_failures`` of *test* would be; an update writes what fails without it."""
        if self._options.is_updated:
            return {}
        listed = f"listed in {self._options.path}"
        reasons = self._reasons.items()
        return {key.check: printable(why) or listed for key, why in reasons if key.test == test}

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Note which files were collected."""
        if report.passed:
            self._collected.add(report.nodeid)

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(
        self, config: pytest.Config, items: list[pytest.Item]
    ) -> None:
        """Find the entries that match no test, before options deselect items."""
        tests = {test_of(item, check_name_of(item)) for item in items if runs_check(item)}
        is_whole = not (config.getoption("lf", default=False) or "::" in "".join(config.args))
        for test in {key.test for key in self._reasons} - tests:
            file = test.partition("::")[0]
            is_removed = not (config.rootpath / file).exists()
            if is_removed or (is_whole and file in self._collected):
                self._missing.add(test)
        if hasattr(config, "workeroutput"):
            config.workeroutput[_MISSING] = list(self._missing)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """Add the entries that match no test in a process of pytest-xdist."""
        self._missing.update(getattr(node, "workeroutput", {}).get(_MISSING, ()))

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Write the file, or report entries that match no test."""
        if self._collector is None or session.config.getoption("collectonly", default=False):
            return
        if self._options.is_updated:
            self._update(session, Report(items=self._collector.items))
        elif self._missing:
            tests = join_some(map(printable, sorted(self._missing)), _SHOWN)
            advice = f"Correct the id, or run pytest with {UPDATE_BASELINE}"
            self._line = f"{self._options.path}: no such test: {tests}. {advice}"

    def _update(self, session: pytest.Session, run: Report) -> None:
        """Write the file: the failures of *run*, and the entries that it does not decide."""
        try:
            old = self._read(self._target)  # Reasons may have been edited meanwhile.
            new = _updated(old, run, self._missing)
            files.write_text(_as_json(new), self._target)
        except (InvalidArgumentError, OSError) as error:
            problem = f"the baseline was not written: {error}"
            fail_run(session, problem, pytest.ExitCode.USAGE_ERROR)
            return
        counts = {
            "without a reason": list(new.values()).count(""),
            "removed": len(old.keys() - new.keys()),
            "not written (not found by a check)": sum(not item.fails_check for item in run.failed),
        }
        notes = "".join(f", {count} {note}" for note, count in counts.items() if count)
        self._line = (
            f"{pluralize(len(new), 'known failure')} written to {self._options.path}{notes}"
        )

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Print what was written, or which entries match no test."""
        if self._line:
            write_line(terminalreporter, self._line, yellow=not self._options.is_updated)


def _updated(
    reasons: Mapping[Failure, str], run: Report, missing: Collection[str]
) -> dict[Failure, str]:
    """*reasons* without those of *missing* tests and of what passed, and with what failed."""
    passed = {failure for failure, item in run.states.items() if item.status == PASSED}
    failed = {failure for failure, item in run.states.items() if item.fails_check}
    kept = {each for each in reasons if each.test not in missing} - passed
    return {failure: reasons.get(failure, "") for failure in sorted(kept | failed)}


def _as_json(reasons: Mapping[Failure, str]) -> str:
    tests: dict[str, dict[str, str]] = {}
    for (test, check), reason in reasons.items():
        tests.setdefault(test, {})[check] = reason
    return json.dumps(tests, indent=2, ensure_ascii=False) + "\n"
