"""Results of checks: recorded in the process that runs them, and reported by the main process."""

from __future__ import annotations

import contextlib
import os
import platform
import shlex
import subprocess
import sys
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from datetime import datetime, timezone
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import pytest

from pytest_dataloader_faults.outcomes import CheckResult, Finding, Verdict
from pytest_dataloader_faults.outcomes.text import escape_for_log
from pytest_dataloader_faults.plugin import _options
from pytest_dataloader_faults.plugin._failures import first_line, write_line
from pytest_dataloader_faults.plugin._options import ATTRIBUTE
from pytest_dataloader_faults.report import ci, files, terminal
from pytest_dataloader_faults.report.model import (
    ERROR,
    FAILED,
    NOT_RUN,
    WARNED,
    XFAILED,
    Item,
    Report,
    Run,
    item_of,
)

_PROPERTY = "dataloader_faults"
_SECTION = "dataloader-faults"
_GIT = 10.0
"""Seconds to wait for git, which may read from a network."""
_item = pytest.StashKey[dict[str, Any] | None]()


def record_item(node: pytest.Item, item: Item) -> None:
    """Keep *item* for the report."""
    node.stash[_item] = asdict(item)


def fail_warned_item(node: pytest.Item) -> None:
    """Make a failure of the warning of *node*, because a filter makes an error of it."""
    _replace_status(node, WARNED, FAILED)


def record_properties(node: pytest.Item, result: CheckResult, duration: float) -> None:
    """Add the main facts of *result* to pytest's JUnit file."""
    outcome = result.outcome
    facts = {
        "verdict": str(result.verdict) if result.applies else "",
        "passed": str(result.passed).lower() if result.applies else "",
        "fault": ", ".join(map(repr, outcome.schedule)) if outcome else "",
        "duration": f"{duration:.3f}",
        "cause": result.cause,
        "fix": result.fix,
    }
    node.user_properties += [(f"{_PROPERTY}_{name}", text) for name, text in facts.items() if text]


def _reset(node: pytest.Item) -> None:
    """Forget an earlier run of *node*: pytest-rerunfailures runs it again.

    pytest's JUnit file takes the properties at the teardown, so one whose fixture fails has them.
    """
    node.stash[_item] = None
    other_properties = [
        each for each in node.user_properties if not each[0].startswith(f"{_PROPERTY}_")
    ]
    node.user_properties[:] = [
        *other_properties,
        (f"{_PROPERTY}_check", _options.check_name_of(node)),
    ]


def describe_result(node: pytest.Item, result: CheckResult, **facts: Any) -> Item:
    """Convert *result* to an item of a report; *facts*: more arguments of ``model.item_of``."""
    path, line, _ = node.location
    return item_of(
        result,
        nodeid=id_of(node),
        test=test_of(node, result.check),
        where=(path, (line or 0) + 1),
        **facts,
    )


def id_of(node: pytest.Item) -> str:
    """The id of *node*, without the group that pytest-xdist appends.

    It does so under ``--dist loadgroup``. pytest cannot run an item by such an id.
    """
    return f"{node.parent.nodeid}::{node.name}" if node.parent else node.nodeid


def test_of(node: pytest.Item, check: str) -> str:
    """The id of the test of *node*, without the *check* of this item."""
    return strip_check(id_of(node), check)


def strip_check(nodeid: str, check: str) -> str:
    """The id of the test, without the *check* of one of its items."""
    name, _, parameters = nodeid.partition("[")
    prefix, _, suffix = f"-{parameters[:-1]}-".partition(f"-{check}-")
    # An id may itself start or end with a dash, for example with a parameter -1.
    other_parameters = "-".join(filter(None, (prefix[1:], suffix[:-1])))
    return f"{name}[{other_parameters}]" if other_parameters else name


def attach(node: pytest.Item, report: pytest.TestReport) -> None:
    """Attach the result of *node* to *report*, with the status that pytest decides."""
    if report.when == "setup":
        _reset(node)
    if report.failed:
        _record_failure(node, report)
    elif hasattr(report, "wasxfail") or (report.when == "call" and report.passed):
        _replace_status(node, FAILED, XFAILED)
    elif report.skipped and (why := _skip_reason(node)):
        node.stash[_item] = _unrun_item(node, why)
    item = node.stash[_item]
    if item and (report.when == "call" or not report.passed):
        setattr(report, ATTRIBUTE, item)


def _skip_reason(node: pytest.Item) -> str:
    """Why this plugin skipped *node* before its check; "" if it did not."""
    keys = (_options.NOT_RUN, _options.NOT_APPLICABLE)
    return next((node.stash[key] for key in keys if key in node.stash), "")


def _record_failure(node: pytest.Item, report: pytest.TestReport) -> None:
    """Make the item of *node* explain the failure in *report*."""
    item = node.stash[_item]
    if item and item["status"] == FAILED:
        return
    text = report.longreprtext
    crash = getattr(report.longrepr, "reprcrash", None)
    message = first_line(crash.message if crash else text)
    place = "the test itself" if report.when == "call" else f"the {report.when} of the test"
    sentence = f"error in {place}: {message}"
    error = {
        "status": ERROR,
        "sentence": sentence,
        "explanation": f"{sentence}\n{text}\n",
        "cause": "",
        "fix": "",
        "section": "",
    }
    node.stash[_item] = {**(item or _unrun_item(node, sentence)), **error}


def _replace_status(node: pytest.Item, old: str, new: str) -> None:
    item = node.stash[_item]
    if item and item["status"] == old:
        node.stash[_item] = {**item, "status": new}


def _unrun_item(node: pytest.Item, why: str) -> dict[str, Any]:
    """The item of a test whose check did not run, and *why*."""
    finding = Finding(Verdict.NOT_EXERCISED, why)
    result = CheckResult(_options.check_name_of(node), finding, why, applies=False)
    status = NOT_RUN if _options.NOT_RUN in node.stash else ""
    return asdict(describe_result(node, result, status=status))


def run_of(config: pytest.Config, began: float, duration: float) -> Run:
    """The run of *config*, which began at the time *began* and took *duration* seconds."""
    arguments = map(str, config.invocation_params.args)
    started = _options.run_command(config, *_options.choice_of_checks(config, "--"))
    return Run(
        began=datetime.fromtimestamp(began, timezone.utc).isoformat(timespec="seconds"),
        duration=round(duration, 1),
        command=started or shlex.join(["pytest", *arguments]),
        seed=_options.options_for(config).settings["seed"],
        commit=_commit(config.rootpath),
    )


def _commit(folder: os.PathLike[str]) -> str:
    """The commit of git that is checked out in *folder*; "" if there is none."""
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        command = ["git", "-C", os.fspath(folder), "rev-parse", "--verify", "--quiet", "HEAD"]
        process = subprocess.run(command, capture_output=True, text=True, timeout=_GIT, check=True)
        return process.stdout.strip()
    return ""


def ordered_items(data: Iterable[dict[str, Any]]) -> tuple[Item, ...]:
    """Read items from plain *data*, and sort those of each test in the order of the battery.

    With several processes of pytest-xdist, they end in another order each time.
    """
    items = list(map(Item.from_dict, data))
    tests = {test: place for place, test in enumerate(dict.fromkeys(each.test for each in items))}
    checks = {name: place for place, name in enumerate(_checks())}
    items.sort(key=lambda item: (tests[item.test], checks.get(item.check, len(checks))))
    return tuple(items)


def report_of(items: tuple[Item, ...], run: Run) -> Report:
    """The report of a *run*."""
    return Report(versions=_versions(), runs=(run,), items=items)


def _checks() -> Iterable[str]:
    """The names of all checks in their order. On other systems they cannot be imported, or run."""
    if sys.platform != "linux":
        return ()
    from pytest_dataloader_faults.battery.checks import CHECKS

    return CHECKS


def write(report: Report, target: str, path: str) -> str:
    """Write *report* to *target*, named *path* by the user; return the error, or ""."""
    try:
        files.write(report, target)
    except (OSError, UnicodeError) as error:
        return f"the report {path} was not written: {error}"
    return ""


def add_step_summary(report: Report) -> Iterator[str]:
    """Add *report* to the summary of a GitHub job, if this is one; yield the error, if any."""
    path = os.environ.get("GITHUB_STEP_SUMMARY")
    if path and report.items:
        try:
            size = os.path.getsize(path) if os.path.exists(path) else 0
            files.append_text(ci.step_summary(report, size), path)
        except (OSError, UnicodeError) as error:
            yield f"the summary of the GitHub job was not written: {error}"


def show(report: Report, reporter: pytest.TerminalReporter) -> None:
    """Show the results of each dataset, and the likely causes of its failed checks."""
    reporter.ensure_newline()
    reporter.section(_SECTION)
    quotes = reporter.config.getoption("tbstyle") == "no"
    for text, markup in terminal.summary(report, _width(reporter), quotes=quotes):
        write_line(reporter, text, **markup)
    if reporter.verbosity > 0:
        _show_table(report, reporter)
    if (count := getattr(reporter.config.option, "durations", None)) is not None:
        reporter.section("slowest trials")
        for text in terminal.slowest(report, count):
            write_line(reporter, text)


def show_annotations(report: Report, reporter: pytest.TerminalReporter) -> None:
    """Print the commands that make GitHub show failures next to the code."""
    for command in ci.github_commands(report):
        reporter.write_line(command)


def _width(reporter: pytest.TerminalReporter) -> int:
    return min(terminal.WIDTH, reporter.config.get_terminal_writer().fullwidth)


def _show_table(report: Report, reporter: pytest.TerminalReporter) -> None:
    reporter.line("")
    for row in terminal.table(report, _width(reporter)):
        for text, markup in row:
            reporter.write(escape_for_log(text), **markup)
        reporter.line("")


def _versions() -> dict[str, str]:
    versions = {
        "python": platform.python_version(),
        "system": f"{sys.platform} {platform.release()}",
    }
    for name in ("torch", "pytest", "pytest-dataloader-faults"):
        try:
            versions[name] = version(name)
        except PackageNotFoundError:  # A checkout that is not installed.
            versions[name] = "unknown"
    return versions
