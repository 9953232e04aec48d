"""The results of a run, in the main process: collected, shown and written; and its baseline.

After each test item, pytest-xdist sends the item's report to the main process, with all attributes
that are plain data. So a process that crashes later does not lose finished results. The reports are
also written during the run, so that a run that is killed keeps what it found.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import platform
import shlex
import subprocess
import sys
import time
import warnings
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

import pytest

from pytest_dataloader_faults.exceptions import InvalidArgumentError, UnclearErrorWarning
from pytest_dataloader_faults.exceptions import _escape_for_log as escape_for_log
from pytest_dataloader_faults.exceptions import _is_github_job as is_github_job
from pytest_dataloader_faults.plugin import _options
from pytest_dataloader_faults.plugin._options import ATTRIBUTE, BaselineOptions

if TYPE_CHECKING:
    from pytest_dataloader_faults.report.model import Failure, Item, Report

_GIT = 10.0
"""Seconds to wait for git, which may read from a network."""
_COST = 20
"""A report is written again after this many times the time that writing it took."""


class Collector:
    """The results of a run; registered with pytest in the main process.

    *paths*: of the reports to write.
    """

    def __init__(self, config: pytest.Config, paths: Sequence[str]) -> None:
        self._config = config
        self._paths = {os.path.abspath(path): path for path in paths}  # A test may change folders.
        self._found: dict[str, dict[str, Any]] = {}
        self._lines: list[tuple[str, dict[str, bool]]] = []
        """What to print at the end, with its markup."""
        self._shown: set[str] = set()
        """The ids of items whose warning no filter ignores."""
        self._began = time.time()
        self._clock_began = self._next_write = time.monotonic()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Keep the result; if an item runs again, only that of its last run."""
        if report.when == "setup":
            self._found.pop(report.nodeid, None)
        if hasattr(report, ATTRIBUTE):
            self._found[report.nodeid] = getattr(report, ATTRIBUTE)
            began = time.monotonic()
            if self._paths and began >= self._next_write:
                with contextlib.suppress(OSError, UnicodeError):  # The end of the run reports it.
                    self._write(self._make_report(is_complete=False))
                now = time.monotonic()
                self._next_write = now + _COST * (now - began)

    def pytest_warning_recorded(
        self, warning_message: warnings.WarningMessage, nodeid: str
    ) -> None:
        """Note that the warning of a check is shown."""
        if issubclass(warning_message.category, UnclearErrorWarning):
            self._shown.add(nodeid)

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Write the reports."""
        is_run = self._found or self._paths
        if not is_run or session.config.getoption("collectonly", default=False):
            return
        self._report = self._make_report(is_complete=True)
        for target, path in self._paths.items():
            try:
                self._write(self._report, target)
                self._lines.append((f"report: {path}", {}))
            except (OSError, UnicodeError) as error:
                session.exitstatus = pytest.ExitCode.USAGE_ERROR
                self._lines.append((f"the report {path} was not written: {error}", {"red": True}))
        if is_github_job():
            self._add_step_summary()

    def _write(self, report: Report, *targets: str) -> None:
        from pytest_dataloader_faults.report import files

        for target in targets or self._paths:
            files.write(report, target)

    def _add_step_summary(self) -> None:
        """Add the report to the summary of the GitHub job."""
        path = os.environ.get("GITHUB_STEP_SUMMARY")
        if path and self._report.items:
            from pytest_dataloader_faults.report import ci, files

            try:
                size = os.path.getsize(path) if os.path.exists(path) else 0
                files.append_text(ci.step_summary(self._report, size), path)
            except (OSError, UnicodeError) as error:
                problem = f"the summary of the GitHub job was not written: {error}"
                self._lines.append((problem, {"yellow": True}))

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Show the results, and the paths of the reports."""
        if self._found:
            from pytest_dataloader_faults.report import ci, terminal
            from pytest_dataloader_faults.report.model import WARNED

            items = [each for each in self.items if _is_shown(each, WARNED, self._shown)]
            terminalreporter.ensure_newline()
            terminalreporter.section("dataloader-faults")
            width = min(terminal.WIDTH, terminalreporter.config.get_terminal_writer().fullwidth)
            quotes = terminalreporter.config.getoption("tbstyle") == "no"
            report = replace(self._report, items=tuple(items))
            for text, markup in terminal.summary(report, width, quotes=quotes):
                write_line(terminalreporter, text, **markup)
            for command in ci.github_commands(self._report) if is_github_job() else ():
                terminalreporter.write_line(command)
        for text, markup in self._lines:
            write_line(terminalreporter, text, **markup)

    @property
    def items(self) -> tuple[Item, ...]:
        """The results so far, whichever process ran them: test by test, in the battery's order.

        With several processes of pytest-xdist, they end in another order each time.
        """
        from pytest_dataloader_faults.report.model import Item

        items = list(map(Item.from_dict, self._found.values()))
        tests = list(dict.fromkeys(item.test for item in items))
        checks: list[str] = []
        if sys.platform == "linux":  # On other systems they cannot be imported, or run.
            from pytest_dataloader_faults.battery.checks import CHECKS

            checks += CHECKS
        places = {name: place for place, name in enumerate((*tests, *checks))}
        items.sort(key=lambda item: (places[item.test], places.get(item.check, len(places))))
        return tuple(items)

    def _make_report(self, *, is_complete: bool) -> Report:
        from pytest_dataloader_faults.report.model import Report, Run, version_of

        config = self._config
        arguments = map(str, config.invocation_params.args)
        choice = _options.typed_options(config, _options.CHOICE)
        options = (each.replace("dataloader-faults-", "", 1) for each in choice)
        run = Run(
            began=datetime.fromtimestamp(self._began, timezone.utc).isoformat(timespec="seconds"),
            duration=round(time.monotonic() - self._clock_began, 1),  # A test may set the clock.
            command=_options.run_command(config, *options) or shlex.join(["pytest", *arguments]),
            seed=_options.options_for(config).settings["seed"],
            commit=_commit(config.rootpath),
            is_complete=is_complete,
        )
        names = ("torch", "pytest", "pytest-dataloader-faults")
        versions = {
            "python": platform.python_version(),
            "system": f"{sys.platform} {platform.release()}",
            **{name: version_of(name) for name in names},
        }
        return Report(versions=versions, runs=(run,), items=self.items)


def _is_shown(item: Item, warned: str, shown: Collection[str]) -> bool:
    """Whether no filter ignores the warning of *item*, if it is one."""
    return item.status != warned or item.nodeid in shown


@functools.cache
def _commit(folder: os.PathLike[str]) -> str:
    """The commit of git that is checked out in *folder*; "" if there is none."""
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        command = ["git", "-C", os.fspath(folder), "rev-parse", "--verify", "--quiet", "HEAD"]
        process = subprocess.run(command, capture_output=True, text=True, timeout=_GIT, check=True)
        return process.stdout.strip()
    return ""


def write_line(reporter: pytest.TerminalReporter, text: str, **markup: bool) -> None:
    """Write a line of this plugin, which may quote the user's data."""
    reporter.write_line(escape_for_log(text), **markup)


def status(report: pytest.TestReport) -> tuple[str, str, tuple[str, dict[str, bool]]] | None:
    """What ``pytest -v`` shows for an item that ran a check, including its verdict."""
    is_shown = report.when == "call" and not (report.skipped or hasattr(report, "wasxfail"))
    if not (is_shown and hasattr(report, ATTRIBUTE)):
        return None
    from pytest_dataloader_faults.report.model import Item

    words = ", ".join(Item.from_dict(getattr(report, ATTRIBUTE)).words)
    word, colour, letter = ("PASSED", "green", ".") if report.passed else ("FAILED", "red", "F")
    return report.outcome, letter, (f"{word} ({words})", {colour: True})


# Some facts about the baseline. It is a file of expected failures, ``{test: {check: reason}}``.
# Each process of pytest-xdist reads it, and the main process writes it.

BASELINE = pytest.StashKey["Baseline"]()
"""The baseline of a run, if it has one."""


def read_baseline(path: str, where: str) -> dict[Failure, str]:
    """The reasons in the baseline *path*, which the option or ini key *where* names."""
    from pytest_dataloader_faults.battery.checks import require_checks
    from pytest_dataloader_faults.outcomes.text import shorten
    from pytest_dataloader_faults.report import files
    from pytest_dataloader_faults.report.model import Failure
    from pytest_dataloader_faults.wire import from_json

    label = f"baseline={path!r} from {where}"
    try:
        tests = from_json(dict[str, dict[str, str]], files.read_json(path))
        for test, checks in tests.items():
            require_checks(shorten(test), map(shorten, checks))
    except OSError as error:
        update = _options.flag("update-baseline")
        message = f"{label} cannot be read: {error.strerror}. To write it, add {update}"
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
        self._line = ""
        """What to print at the end."""

    def _read(self, path: str) -> dict[Failure, str]:
        """The file; empty if it is missing and will be written."""
        is_new = self._options.is_updated and not os.path.exists(path)
        return {} if is_new else read_baseline(path, self._options.where)

    def expected_failures(self, test: str) -> Mapping[str, str]:
        """What ``expected_failures`` of *test* would be; an update writes what fails without it."""
        if self._options.is_updated:
            return {}
        from pytest_dataloader_faults.outcomes.text import printable

        listed = f"listed in {self._options.path}"
        reasons = self._reasons.items()
        return {key.check: printable(why) or listed for key, why in reasons if key.test == test}

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Write the file: the failures of the run, and the entries that it does not decide."""
        is_listing = session.config.getoption("collectonly", default=False)
        if self._collector is None or is_listing or not self._options.is_updated:
            return
        from pytest_dataloader_faults.outcomes.text import pluralize
        from pytest_dataloader_faults.report import files
        from pytest_dataloader_faults.report.model import PASSED, Report

        run = Report(items=self._collector.items)
        passed = {failure for failure, item in run.states.items() if item.status == PASSED}
        failed = {failure for failure, item in run.states.items() if item.fails_check}
        try:
            old = self._read(self._target)  # Reasons may have been edited meanwhile.
            kept = old.keys() - passed
            new: dict[str, dict[str, str]] = {}
            for failure in sorted(kept | failed):
                new.setdefault(failure.test, {})[failure.check] = old.get(failure, "")
            files.write_text(json.dumps(new, indent=2, ensure_ascii=False) + "\n", self._target)
        except (InvalidArgumentError, OSError) as error:
            session.exitstatus = pytest.ExitCode.USAGE_ERROR
            self._line = f"the baseline was not written: {error}"
            return
        counts = {
            "without a reason": sum(not old.get(each) for each in kept | failed),
            "removed": len(old.keys() - kept - failed),
            "not written (not found by a check)": sum(not item.fails_check for item in run.failed),
        }
        notes = "".join(f", {count} {note}" for note, count in counts.items() if count)
        known = pluralize(len(kept | failed), "known failure")
        self._line = f"{known} written to {self._options.path}{notes}"

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Print what was written."""
        if self._line:
            write_line(terminalreporter, self._line)
