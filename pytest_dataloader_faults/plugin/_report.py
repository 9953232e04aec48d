"""The results of a run: of each item, and in the main process collected, shown and written."""

# After each test item, pytest-xdist sends the item's report to the main process, with all
# attributes that are plain data. So a process that crashes later does not lose finished results.
# The reports are also written during the run, so that a run that is killed keeps what it found.
#
# A baseline is a file of expected failures, ``{test: {check: reason}}``. Each process of
# pytest-xdist reads it, and the main process writes it.

from __future__ import annotations

import json
import os
import platform
import shlex
import sys
import time
import warnings
from collections.abc import Mapping
from dataclasses import asdict, replace
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

import pytest

from pytest_dataloader_faults.exceptions import InvalidArgumentError, UnclearErrorWarning
from pytest_dataloader_faults.exceptions import _escape_for_log as escape_for_log
from pytest_dataloader_faults.exceptions import _is_github_job as is_github_job
from pytest_dataloader_faults.plugin import _failures, _items, _options
from pytest_dataloader_faults.plugin._options import ATTRIBUTE, MARKER

if TYPE_CHECKING:
    from pytest_dataloader_faults.outcomes import CheckResult
    from pytest_dataloader_faults.report.model import Failure, Item, Report

_COST = 20
"""A report is written again after this many times the time that writing it took."""
_DISTRIBUTION = "pytest-dataloader-faults"
_item = pytest.StashKey[dict[str, Any] | None]()
_baseline = pytest.StashKey[dict["Failure", str]]()
_stale = pytest.StashKey[list[str]]()


def record(node: pytest.Item, result: CheckResult, **facts: Any) -> None:
    """Keep *result* for the report, and add its main facts to pytest's JUnit file.

    *facts*: more fields of ``model.Item``.
    """
    item = node.stash[_item] = asdict(_describe(node, result, **facts))
    properties = {
        "verdict": item["verdict"] or "",
        "passed": str(result.passed).lower() if result.applies else "",
        "fault": ", ".join(item["faults"]),
        "duration": f"{item['duration']:.3f}",
        "cause": result.cause,
        "fix": result.fix,
    }
    node.user_properties += [
        (f"{MARKER}_{name}", text) for name, text in properties.items() if text
    ]


def _describe(node: pytest.Item, result: CheckResult, **facts: Any) -> Item:
    from pytest_dataloader_faults.report.model import item_of

    path, line, _ = node.location
    ids = {"nodeid": _items.id_of(node), "test": _items.test_of(node)}
    return item_of(result, file=path, line=(line or 0) + 1, **ids, **facts)


def _describe_unrun(node: pytest.Item, why: str, **facts: Any) -> dict[str, Any]:
    """The item of a test whose check did not run, and *why*."""
    from pytest_dataloader_faults.outcomes import CheckResult, Finding, Verdict

    finding = Finding(Verdict.NOT_EXERCISED, why)
    result = CheckResult(_items.check_name_of(node), finding, why, applies=False)
    return asdict(_describe(node, result, **facts))


def replace_status(node: pytest.Item, old: str, new: str) -> None:
    """Let the item of *node* have the status *new*, if it has the *old* one."""
    item = node.stash[_item]
    if item and item["status"] == old:
        node.stash[_item] = {**item, "status": new}


def attach(node: pytest.Item, report: pytest.TestReport) -> None:
    """Attach the result of *node* to *report*, with the status that pytest decides."""
    from pytest_dataloader_faults.report.model import FAILED, NOT_RUN, XFAILED

    if report.when == "setup":
        # pytest-rerunfailures may have run it before. pytest's JUnit file takes the properties at
        # the teardown, so an item whose fixture fails has them as well.
        node.stash[_item] = None
        others = [each for each in node.user_properties if not each[0].startswith(f"{MARKER}_")]
        node.user_properties[:] = [*others, (f"{MARKER}_check", _items.check_name_of(node))]
    if report.failed:
        _record_failure(node, report)
    elif hasattr(report, "wasxfail") or (report.when == "call" and report.passed):
        replace_status(node, FAILED, XFAILED)
    elif report.skipped and (why := node.stash.get(_failures.NOT_RUN, "")):
        node.stash[_item] = _describe_unrun(node, why, status=NOT_RUN)
    elif report.skipped and (why := node.stash.get(_items.NOT_APPLICABLE, "")):
        node.stash[_item] = _describe_unrun(node, why)
    item = node.stash[_item]
    if item and (report.when == "call" or not report.passed):
        setattr(report, ATTRIBUTE, item)


def _record_failure(node: pytest.Item, report: pytest.TestReport) -> None:
    """Make the item of *node* explain the failure in *report*."""
    from pytest_dataloader_faults.report.model import ERROR, FAILED

    item = node.stash[_item]
    if item and item["status"] == FAILED:
        return
    text = report.longreprtext
    crash = getattr(report.longrepr, "reprcrash", None)
    message = _failures.first_line(crash.message if crash else text)
    place = "the test itself" if report.when == "call" else f"the {report.when} of the test"
    sentence = f"error in {place}: {message}"
    error = {"status": ERROR, "sentence": sentence, "explanation": f"{sentence}\n{text}\n"}
    unexplained = {"cause": "", "fix": ""}
    node.stash[_item] = {**(item or _describe_unrun(node, sentence)), **error, **unexplained}


class Collector:
    """The results of a run; registered with pytest in the main process."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        paths = _options.typed(config, "report")
        if paths:
            from pytest_dataloader_faults.report.files import require_format

            paths = map(require_format, paths)
        self._paths = {os.path.abspath(path): path for path in paths}  # A test may change folders.
        self._found: dict[str, dict[str, Any]] = {}
        self._lines: list[tuple[str, dict[str, bool]]] = []
        """What to print at the end, with its markup."""
        self._shown: set[str] = set()
        """The ids of items whose warning no filter ignores."""
        self._stale: set[str] = set()
        self._baseline = os.path.abspath(_options.baseline_path(config)[0])
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
                self._write_reports(is_complete=False)
                now = time.monotonic()
                self._next_write = now + _COST * (now - began)

    def pytest_warning_recorded(
        self, warning_message: warnings.WarningMessage, nodeid: str
    ) -> None:
        """Note that the warning of a check is shown."""
        if issubclass(warning_message.category, UnclearErrorWarning):
            self._shown.add(nodeid)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """Note what a process of pytest-xdist has found when it collected the tests."""
        self._stale.update(getattr(node, "workeroutput", {}).get(MARKER, ()))

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Write the reports and the baseline."""
        if session.config.getoption("collectonly", default=False):
            return
        for path, error in self._write_reports(is_complete=True).items():
            text = f"the report {path} was not written: {error}" if error else f"report: {path}"
            self._lines.append((text, {"red": bool(error)}))
            if error:
                session.exitstatus = pytest.ExitCode.USAGE_ERROR
        if self._found and is_github_job() and (summary := os.environ.get("GITHUB_STEP_SUMMARY")):
            self._add_step_summary(summary)
        if _options.typed(session.config, "update-baseline") and sys.platform == "linux":
            try:
                self._lines.append((self._update_baseline(), {}))
            except (InvalidArgumentError, OSError) as error:
                session.exitstatus = pytest.ExitCode.USAGE_ERROR
                self._lines.append((f"the baseline was not written: {error}", {}))

    def _write_reports(self, *, is_complete: bool) -> dict[str, Exception | None]:
        """Write the reports, and return for each path why it could not be written, if so."""
        errors: dict[str, Exception | None] = {}
        if self._found or self._paths:
            from pytest_dataloader_faults.report import files

            self._report = self._make_report(is_complete=is_complete)
            for target, path in self._paths.items():
                errors[path] = None
                try:
                    files.write(self._report, target)
                except (OSError, UnicodeError) as error:
                    errors[path] = error
        return errors

    def _add_step_summary(self, path: str) -> None:
        """Add the report to *path*, the summary of the GitHub job."""
        from pytest_dataloader_faults.report import ci

        try:
            with open(path, "a", encoding="utf-8", errors="backslashreplace") as file:
                file.write(ci.step_summary(self._report, file.tell()))
        except (OSError, UnicodeError) as error:
            problem = f"the summary of the GitHub job was not written: {error}"
            self._lines.append((problem, {"yellow": True}))

    def _update_baseline(self) -> str:
        """Write the failures of the run, and the entries that it does not decide.

        Returns what to print.
        """
        from pytest_dataloader_faults.outcomes.text import pluralize
        from pytest_dataloader_faults.report import files
        from pytest_dataloader_faults.report.model import PASSED, Report

        run = Report(items=self.items)
        passed = {failure for failure, item in run.states.items() if item.status == PASSED}
        failed = {failure for failure, item in run.states.items() if item.fails_check}
        path, where = _options.baseline_path(self._config)
        # Reasons may have been edited meanwhile.
        exists = os.path.exists(self._baseline)
        old = parse_baseline(self._baseline, f"baseline={path!r} from {where}") if exists else {}
        listed = failed | (old.keys() - passed)
        new: dict[str, dict[str, str]] = {}
        for failure in sorted(listed):
            new.setdefault(failure.test, {})[failure.check] = old.get(failure, "")
        text = json.dumps(new, indent=2, ensure_ascii=False) + "\n"
        files.write_text(text, self._baseline)
        counts = {
            "without a reason": sum(not old.get(each) for each in listed),
            "removed": len(old.keys() - listed),
            "not written (not found by a check)": sum(not item.fails_check for item in run.failed),
        }
        notes = "".join(f", {count} {note}" for note, count in counts.items() if count)
        return f"{pluralize(len(listed), 'known failure')} written to {path}{notes}"

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Show the results, and the paths of the reports."""
        if self._found:
            from pytest_dataloader_faults.report import ci, terminal
            from pytest_dataloader_faults.report.model import WARNED

            items = tuple(
                item
                for item in self._report.items
                if item.status != WARNED or item.nodeid in self._shown
            )
            terminalreporter.ensure_newline()
            terminalreporter.section("dataloader-faults")
            width = min(terminal.WIDTH, terminalreporter.config.get_terminal_writer().fullwidth)
            quotes = terminalreporter.config.getoption("tbstyle") == "no"
            shown = replace(self._report, items=items)
            self._lines[:0] = terminal.summary(shown, width, quotes=quotes)
            for command in ci.github_commands(self._report) if is_github_job() else ():
                terminalreporter.write_line(command)
        if stale := sorted({*self._stale, *self._config.stash.get(_stale, [])}):
            where = _options.baseline_path(self._config)[0]
            self._lines.append((f"{where} lists missing tests: {', '.join(stale)}", {}))
        for text, markup in self._lines:
            terminalreporter.write_line(escape_for_log(text), **markup)

    @property
    def items(self) -> tuple[Item, ...]:
        """The results so far, whichever process ran them: test by test, in the battery's order.

        With several processes of pytest-xdist, they end in another order each time.
        """
        from pytest_dataloader_faults.report.model import Item
        from pytest_dataloader_faults.wire import from_json

        items = [from_json(Item, data) for data in self._found.values()]
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
            seed=_options.options_for(config)["seed"],
            is_complete=is_complete,
        )
        system = f"{sys.platform} {platform.release()}"
        versions = {"python": platform.python_version(), "system": system}
        versions |= {name: version_of(name) for name in ("torch", "pytest", _DISTRIBUTION)}
        return Report(versions=versions, runs=(run,), items=self.items)


def status(report: pytest.TestReport) -> tuple[str, str, tuple[str, dict[str, bool]]] | None:
    """What ``pytest -v`` shows for an item that ran a check, including its verdict."""
    is_shown = report.when == "call" and not (report.skipped or hasattr(report, "wasxfail"))
    if not (is_shown and hasattr(report, ATTRIBUTE)):
        return None
    from pytest_dataloader_faults.report.model import Item
    from pytest_dataloader_faults.wire import from_json

    verdict = from_json(Item, getattr(report, ATTRIBUTE)).word.replace(" (", ", ").rstrip(")")
    word, colour, letter = ("PASSED", "green", ".") if report.passed else ("FAILED", "red", "F")
    return report.outcome, letter, (f"{word} ({verdict})", {colour: True})


def read_baseline(config: pytest.Config) -> None:
    """Read the baseline of a run, if it has one. An update expects nothing of it."""
    path, where = _options.baseline_path(config)
    label, is_updated = f"baseline={path!r} from {where}", _options.typed(config, "update-baseline")
    if path and sys.platform == "linux" and (os.path.exists(path) or not is_updated):
        reasons = parse_baseline(path, label)
        config.stash[_baseline] = {} if is_updated else reasons


def note_stale_entries(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Note the tests in the baseline that do not exist any more.

    A file was collected as a whole, or is gone as well.
    """
    tests = set(map(_items.test_of, items))
    files = {test.partition("::")[0] for test in tests}
    missing = {failure.test for failure in config.stash.get(_baseline, {})} - tests
    if missing and not any("::" in each for each in config.args):
        places = ((test, test.partition("::")[0]) for test in missing)
        config.stash[_stale] = [
            test for test, file in places if file in files or not (config.rootpath / file).exists()
        ]
        getattr(config, "workeroutput", {})[MARKER] = config.stash[_stale]


def parse_baseline(path: str, label: str) -> dict[Failure, str]:
    """The reasons in the baseline *path*, which errors call *label*."""
    from pytest_dataloader_faults.battery.checks import require_checks
    from pytest_dataloader_faults.outcomes.text import shorten
    from pytest_dataloader_faults.report import files
    from pytest_dataloader_faults.report.model import Failure
    from pytest_dataloader_faults.wire import from_json

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


def known_failures(node: pytest.Item) -> Mapping[str, str]:
    """What the baseline expects of the test of *node*, as ``expected_failures`` would."""
    from pytest_dataloader_faults.outcomes.text import printable

    test, config = _items.test_of(node), node.config
    listed = f"listed in {_options.baseline_path(config)[0]}"
    reasons = config.stash.get(_baseline, {}).items()
    return {key.check: printable(why) or listed for key, why in reasons if key.test == test}
