"""The baseline: a report of known failures. Only new ones fail, and fixed ones are reported.

Each process reads the file. The main process compares it with what the run found, and writes it.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from pytest_dataloader_faults.battery.checks import require_checks
from pytest_dataloader_faults.exceptions import InvalidArgumentError
from pytest_dataloader_faults.outcomes import CheckResult
from pytest_dataloader_faults.outcomes.text import is_or_are, pluralize, printable, shorten
from pytest_dataloader_faults.plugin._collector import Collector, fail_run
from pytest_dataloader_faults.plugin._failures import write_line
from pytest_dataloader_faults.plugin._options import (
    UPDATE_BASELINE,
    BaselineOptions,
    check_name_of,
    runs_check,
)
from pytest_dataloader_faults.plugin._report import id_of, strip_check, test_of
from pytest_dataloader_faults.report import compare, files
from pytest_dataloader_faults.report.model import (
    FAILED,
    VERDICT_OF_FAILURE,
    WARNED,
    XFAILED,
    Item,
    Report,
)
from pytest_dataloader_faults.wire import MisfitError

_MISSING = "dataloader_faults_missing"
"""What a worker of pytest-xdist sends to the main process: the entries that match no test."""
_SHOWN = 20
"""Up to this many entries are listed."""
_SELECTING = ("keyword", "lf", "stepwise", "ignore", "ignore_glob")
"""Options of pytest that select a part of the tests, for a while or before they are collected."""
BASELINE = pytest.StashKey["Baseline"]()
"""The baseline of a run, if it has one."""


def read(path: str, where: str) -> Report:
    """Read the baseline *path*, which the option or ini key *where* names."""
    label = f"baseline={path!r} from {where}"
    try:
        report = files.load(path)
        baseline = compare.baseline_of(report)
        for entry in baseline.items:
            require_checks(f"{shorten(entry.name)}: check", [shorten(entry.check)])
        if not report.runs:  # The report of a run also has items that are not known failures.
            _require_entries(report.items)
    except OSError as error:
        message = (
            f"{label} cannot be read: {error.strerror}. Pass the path of a baseline, or write one"
            f" with {UPDATE_BASELINE}"
        )
        raise InvalidArgumentError(message) from error
    except InvalidArgumentError as error:
        end = "" if str(error).endswith("?") else "."
        message = (
            f"{label} is not a baseline: {error}{end} Fix it, or delete the file and rewrite it"
            f" with {UPDATE_BASELINE}"
        )
        raise InvalidArgumentError(message) from None
    return baseline


def _require_entries(items: Iterable[Item]) -> None:
    """Refuse items that no failure can match: they would be ignored."""
    for place, item in enumerate(items):
        name = f"items[{place}] ({shorten(item.name)})"
        if item.status not in (FAILED, XFAILED):
            raise MisfitError(item.status, repr(FAILED), f"{name}: status")
        if not item.has_failing_verdict:
            raise MisfitError(item.verdict, VERDICT_OF_FAILURE, f"{name}: verdict")
        if not item.was_tried:
            raise MisfitError(item.reason, "a string, which may be empty", f"{name}: reason")
        if item.without_fault and item.nodeid != item.test:
            allowed = f"the same as test, {shorten(item.test)}, because without_fault is true"
            raise MisfitError(item.nodeid, allowed, f"{name}: nodeid")
        if not item.without_fault:
            _require_matching_ids(item, name)


def _require_matching_ids(item: Item, name: str) -> None:
    """Refuse an *item* whose ids contradict each other or its check."""
    test = strip_check(item.nodeid, item.check)
    if test != item.test or test == item.nodeid:
        nodeid, check, test = map(shorten, (item.nodeid, item.check, item.test))
        message = f"{name}: nodeid {nodeid} is not the id of check {check} of test {test}"
        raise InvalidArgumentError(message)


class Baseline:
    """The known failures of a run; registered with pytest in each process.

    *collector* has the results of the run; None in a process of pytest-xdist.
    """

    def __init__(self, options: BaselineOptions, collector: Collector | None) -> None:
        self._options = options
        self._collector = collector
        self._target = os.path.abspath(options.path)  # A test may change the working directory.
        self._entries = self._read(options.path)
        self._uncollected: set[str] = set()
        self._missing: set[str] = set()
        self._lines: list[tuple[str, bool]] = []
        """What to print at the end, and whether it is a problem."""

    def _read(self, path: str) -> dict[str, Item]:
        """The entries of the file, by key; none if it is missing and will be written."""
        # A device or a FIFO does not return what was written to it.
        is_there = os.path.isfile(path) or os.path.isdir(path)
        if self._options.is_updated and not is_there:
            return {}
        return compare.failures_of(read(path, self._options.where))

    def accept_known(self, result: CheckResult, item: Item) -> tuple[CheckResult, str | None]:
        """Expect the failure of *result* if the baseline lists it. *item*: its form in reports.

        Also return the reason of its entry, for reports; None if the failure is not expected.
        """
        entry = self._entries.get(item.failure_key)
        if item.status == WARNED:
            item = replace(item, status=FAILED)
        is_failure = item.status == FAILED and item.fails_check
        if entry is None or not is_failure or self._options.is_ignored:
            return result, None
        path = self._options.path
        if compare.change_of(entry, item) == compare.KNOWN:
            reason = printable(entry.reason or "")
            return replace(result, expected=reason or f"listed in {path}"), reason
        text = f"{path} expects {entry.verdict}. {result.explanation}"
        return replace(result, explanation=text), None

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Note what could not be collected or was skipped, because its items are unknown."""
        if not report.passed:
            self._uncollected.add(report.nodeid)

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(
        self, config: pytest.Config, items: list[pytest.Item]
    ) -> None:
        """Find the entries that match no item, before options deselect items."""
        checks = [(item, check_name_of(item)) for item in items if runs_check(item)]
        collected = {id_of(item) for item, _ in checks}
        collected |= {test_of(item, check) for item, check in checks}
        self._missing = {
            nodeid
            for nodeid in self._entries
            if nodeid not in collected and not any(map(nodeid.startswith, self._uncollected))
        }
        if hasattr(config, "workeroutput"):
            config.workeroutput[_MISSING] = list(self._missing)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """Add the entries that match no item of a process of pytest-xdist."""
        self._missing.update(getattr(node, "workeroutput", {}).get(_MISSING, ()))

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Write the file, or else report its entries that do not fail."""
        config = session.config
        if self._collector is None or config.getoption("collectonly", default=False):
            return
        run = Report(items=self._collector.items)
        missing = self._missing if _is_whole(config) else set()
        if self._options.is_updated:
            self._write(session, run, missing)
        elif not self._options.is_ignored:
            self._report_stale(session, run, missing)

    def _fixed(self, run: Report) -> list[Item]:
        """The entries that passed in *run*."""
        former = Report(items=tuple(self._entries.values()))
        changes = compare.compare_failures(former, run)[compare.FIXED]
        return [entry for entry, _ in changes if entry is not None]

    def _write(self, session: pytest.Session, run: Report, missing: set[str]) -> None:
        """Write the failures of *run*, and the entries of checks that did not run."""
        try:
            self._entries |= self._read(self._target)  # Reasons may have been edited meanwhile.
            entries = self._update(run, missing)
            text = compare.baseline_json(Report(items=tuple(entries.values())))
            files.write_text(text, self._target)
        except (InvalidArgumentError, OSError) as error:
            problem = f"the baseline was not written: {error}"
            fail_run(session, problem, pytest.ExitCode.USAGE_ERROR)
            return
        self._lines += [(line, False) for line in self._describe_update(run, entries)]

    def _update(self, run: Report, missing: set[str]) -> dict[str, Item]:
        """The entries without those that passed or are *missing*, and with the failures of *run*.

        Reasons stay.
        """
        dropped = missing | {entry.failure_key for entry in self._fixed(run)}
        entries = {key: self._entries[key] for key in self._entries.keys() - dropped}
        for item in compare.baseline_of(Report(items=run.failed)).items:
            former = self._entries.get(item.failure_key, item)
            entries[item.failure_key] = replace(item, reason=former.reason)
        return entries

    def _describe_update(self, run: Report, entries: Mapping[str, Item]) -> Iterator[str]:
        """How many *entries* were written, which were removed, and which failures are not there."""
        failures, path = pluralize(len(entries), "known failure"), self._options.path
        yield f"{failures} written to {path}{_describe_unexplained(entries)}"
        removed = [entry for key, entry in self._entries.items() if key not in entries]
        yield from _limit(map(_describe_removed, removed))
        written = {item.nodeid for item in run.failed if item.fails_check}
        if count := len({item.nodeid for item in run.failed} - written):
            whom = "it" if count == 1 else "them"
            text = f"{pluralize(count, 'failure')} {is_or_are(count)} not in the file"
            yield f"{text}, because no check found {whom}"

    def _report_stale(self, session: pytest.Session, run: Report, missing: set[str]) -> None:
        """Report entries that no longer fail; with *strict*, they fail the run."""
        unmatched = [entry for key, entry in self._entries.items() if key in missing]
        problems = list(_describe_stale(self._fixed(run), unmatched))
        path, strict = self._options.path, self._options.strict
        for text, advice, entries in problems:
            names = _limit(f"  {entry.name}" for entry in entries)
            line = f"{path}: {text}. {advice}, or run pytest with {UPDATE_BASELINE}:"
            self._lines += [(each, True) for each in (line, *names)]
        if problems and strict and session.exitstatus == pytest.ExitCode.OK:
            texts = ", ".join(text for text, _, _ in problems)
            reason = f"the run fails because of {strict}: {texts} in {path}"
            fail_run(session, reason, pytest.ExitCode.TESTS_FAILED)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Print what was written, or which entries no longer fail."""
        colour = "red" if self._options.strict else "yellow"
        for text, is_problem in self._lines:
            write_line(terminalreporter, text, **({colour: True} if is_problem else {}))


def _describe_removed(entry: Item) -> str:
    reason = f" ({printable(entry.reason)})" if entry.reason else ""
    return f"removed: {entry.name}{reason}"


def _limit(lines: Iterable[str]) -> list[str]:
    """The first of *lines*, and how many more there are."""
    shown = list(lines)
    more = [f"  ... and {len(shown) - _SHOWN} more"] if len(shown) > _SHOWN else []
    return shown[:_SHOWN] + more


def _describe_stale(
    fixed: Sequence[Item], unmatched: Sequence[Item]
) -> Iterator[tuple[str, str, Sequence[Item]]]:
    """How many entries no longer fail or match no test, what to do about them, and which."""
    count = len(fixed)
    if count:
        verb, pronoun = ("fails", "it") if count == 1 else ("fail", "them")
        yield f"{pluralize(count, 'known failure')} no longer {verb}", f"Remove {pronoun}", fixed
    count = len(unmatched)
    if count:
        verb, pronoun, ids = (
            ("matches", "it", "its id") if count == 1 else ("match", "them", "their ids")
        )
        advice = f"Correct {ids}, remove {pronoun}"
        yield f"{pluralize(count, 'known failure')} {verb} no test", advice, unmatched


def _describe_unexplained(entries: Mapping[str, Item]) -> str:
    """How many of *entries* have no reason yet."""
    count = sum(not entry.reason for entry in entries.values())
    return f", {count} without a reason" if count else ""


def _is_whole(config: pytest.Config) -> bool:
    """Whether the run is one of all tests, as far as the command line and the folder say."""
    is_selected = any(config.getoption(name, default=None) for name in _SELECTING)
    if is_selected or config.args_source is config.ArgsSource.ARGS:
        return False
    is_configured = config.args_source is config.ArgsSource.TESTPATHS
    return is_configured or config.invocation_params.dir == config.rootpath
