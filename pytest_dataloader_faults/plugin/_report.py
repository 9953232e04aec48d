"""What checks found: noted where they ran, shown and written where pytest's output comes from."""

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

from pytest_dataloader_faults.exceptions import DataLoaderFaultsError
from pytest_dataloader_faults.outcomes import CheckResult, Verdict
from pytest_dataloader_faults.outcomes.text import for_log, headline
from pytest_dataloader_faults.plugin import _options
from pytest_dataloader_faults.plugin._failures import write_line
from pytest_dataloader_faults.plugin._options import ATTRIBUTE
from pytest_dataloader_faults.report import ci, files, terminal
from pytest_dataloader_faults.report.model import (
    ERROR,
    FAILED,
    NOT_ASKED,
    XFAILED,
    Item,
    Report,
    Run,
    item_of,
)

_PROPERTY = "dataloader_faults"
_SECTION = "dataloader-faults"
_OUR_ERRORS = f"{DataLoaderFaultsError.__module__}."
_GIT = 10.0
"""Seconds to wait for git, as on a network."""
_items = pytest.StashKey[list[dict[str, Any]]]()


def note(node: pytest.Item, result: CheckResult, duration: float, *, fails: bool) -> None:
    """Keep *result* for the report, and put its main facts into pytest's own JUnit file.

    *fails*: whether it fails the item.
    """
    item = _item_of(node, result, duration, fails=fails)
    node.stash.setdefault(_items, []).append(asdict(item))
    facts = {
        "verdict": item.verdict,
        "passed": str(result.passed).lower() if item.verdict else "",
        "fault": ", ".join(item.faults),
        "engine": item.engine,
        "duration": f"{duration:.3f}",
        "cause": item.cause,
        "fix": item.fix,
    }
    node.user_properties += [(f"{_PROPERTY}_{name}", text) for name, text in facts.items() if text]


def _begin(node: pytest.Item) -> None:
    """Forget an earlier run of *node*: pytest-rerunfailures runs it again.

    pytest's JUnit file takes the properties at the teardown, so one whose fixture fails has them.
    """
    node.stash[_items] = []
    kept = [each for each in node.user_properties if not each[0].startswith(f"{_PROPERTY}_")]
    node.user_properties[:] = [*kept, (f"{_PROPERTY}_check", _options.check_asked(node))]


def _item_of(
    node: pytest.Item, result: CheckResult, duration: float = 0.0, *, fails: bool = False
) -> Item:
    path, line, _ = node.location
    is_asked = result.applies or _options.NOT_ASKED not in node.stash
    return item_of(
        result,
        nodeid=id_of(node),
        test=test_of(node, result.check) + (f" ({result.part})" if result.part else ""),
        where=(path, (line or 0) + 1),
        duration=duration,
        status=FAILED if fails else "" if is_asked else NOT_ASKED,
    )


def id_of(node: pytest.Item) -> str:
    """The id of *node*, without the group that pytest-xdist puts behind it.

    It does so under ``--dist loadgroup``. pytest cannot run an item by such an id.
    """
    return f"{node.parent.nodeid}::{node.name}" if node.parent else node.nodeid


def test_of(node: pytest.Item, check: str) -> str:
    """The id of the test of *node*, without the *check* that this item asks."""
    return _without(id_of(node), check)


def _without(nodeid: str, check: str) -> str:
    """The id of the test, without the *check* that one of its items asks."""
    name, bracket, parameters = nodeid.partition("[")
    before, _, after = f"-{parameters[:-1]}-".partition(f"-{check}-")
    # An id may begin or end with a dash of its own, as that of a parameter -1.
    rest = "-".join(filter(None, (before[1:], after[:-1])))
    if not bracket:  # A dataset that the command line names.
        return name.removesuffix(f"::{check}")
    return f"{name}[{rest}]" if rest else name


def attach(node: pytest.Item, report: pytest.TestReport) -> None:
    """Give *report* what was found in *node*, as far as pytest has not decided otherwise."""
    if report.when == "setup":
        _begin(node)
    found = node.stash[_items]
    if report.failed:
        _note_failure(found, node, report)
    elif hasattr(report, "wasxfail"):
        found[:] = [_changed(each, FAILED, XFAILED) for each in found]
    elif report.skipped and (why := _why_skipped(node)):
        found[:] = [_nothing(node, why)]
    if found and (report.when == "call" or not report.passed):
        setattr(report, ATTRIBUTE, found)


def _why_skipped(node: pytest.Item) -> str:
    """Why *node* was skipped before its check, if it was for a reason of this plugin."""
    keys = (_options.NOT_ASKED, _options.NOT_APPLICABLE)
    return next((node.stash[key] for key in keys if key in node.stash), "")


def _note_failure(
    found: list[dict[str, Any]], node: pytest.Item, report: pytest.TestReport
) -> None:
    """Have *found* say why *report* is one of a failure."""
    text = report.longreprtext
    if any(each["status"] == FAILED for each in found):
        return
    crash = getattr(report.longrepr, "reprcrash", None)
    message = headline((crash.message if crash else text).strip())
    phase = "" if report.when == "call" else f" in its {report.when}"
    sentence = f"the test itself failed{phase}: {_told(message)}"
    error = {
        "status": ERROR,
        "sentence": sentence,
        "explanation": f"{sentence}\n{text}\n",
        "cause": "",
        "fix": "",
    }
    found[-1:] = [{**(found[-1] if found else _nothing(node, sentence)), **error}]


def _told(message: str) -> str:
    """*message* without the kind of error, where that adds nothing."""
    return message.removeprefix(_OUR_ERRORS).removeprefix("Failed: ")


def _changed(item: dict[str, Any], old: str, new: str) -> dict[str, Any]:
    return {**item, "status": new} if item["status"] == old else item


def _nothing(node: pytest.Item, why: str) -> dict[str, Any]:
    """The item of a test that has not asked its check, and *why*."""
    check, verdict = _options.check_asked(node), Verdict.NOT_EXERCISED
    result = CheckResult(check, verdict, passed=False, sentence=why, explanation=why, applies=False)
    return asdict(_item_of(node, result))


def run_of(config: pytest.Config, began: float, duration: float) -> Run:
    """The run of *config*, which began at the time *began* and took *duration* seconds."""
    given = map(str, config.invocation_params.args)
    return Run(
        began=datetime.fromtimestamp(began, timezone.utc).isoformat(timespec="seconds"),
        duration=round(duration, 1),
        command=shlex.join(["pytest", *given]),
        seed=_options.options_for(config).settings["seed"],
        commit=_commit(config.rootpath),
    )


def _commit(folder: os.PathLike[str]) -> str:
    """The commit of git that is checked out in *folder*; "" if there is none."""
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        command = ["git", "-C", os.fspath(folder), "rev-parse", "--verify", "--quiet", "HEAD"]
        found = subprocess.run(command, capture_output=True, text=True, timeout=_GIT, check=True)
        return found.stdout.strip()
    return ""


def report_of(found: Iterable[dict[str, Any]], engine: str, run: Run) -> Report:
    """The report of the items *found*, those of each test in the order of the battery.

    With several processes of pytest-xdist, they end in another order each time.
    """
    items = list(map(Item.from_dict, found))
    tests = {test: place for place, test in enumerate(dict.fromkeys(each.test for each in items))}
    checks = {name: place for place, name in enumerate(_checks())}
    items.sort(key=lambda each: (tests[each.test], checks.get(each.check, len(checks))))
    return Report(engine=engine, versions=_versions(), runs=(run,), items=tuple(items))


def _checks() -> Iterable[str]:
    """The names of all checks in their order. On other systems they cannot be imported, or run."""
    if sys.platform != "linux":
        return ()
    from pytest_dataloader_faults.battery.checks import CHECKS

    return CHECKS


def write(report: Report, target: str, path: str) -> str:
    """Write *report* to *target*, which the user calls *path*; what went wrong, or ""."""
    try:
        files.write(report, target)
    except (OSError, UnicodeError) as error:
        return f"the report {path} was not written: {error}"
    return ""


def add_step_summary(report: Report) -> Iterator[str]:
    """Add *report* to the summary of a GitHub job, if this is one; what went wrong."""
    path = os.environ.get("GITHUB_STEP_SUMMARY")
    if path and report.items:
        try:
            files.append_text(ci.render(report), path)
        except (OSError, UnicodeError) as error:
            yield f"the summary of the GitHub job was not written: {error}"


def show(report: Report, reporter: pytest.TerminalReporter) -> None:
    """Show how each dataset was tried, and what failed checks have in common."""
    reporter.ensure_newline()
    reporter.section(_SECTION)
    quotes = reporter.config.getoption("tbstyle") == "no"
    for text, markup in terminal.summary(report, _width(reporter), quotes=quotes):
        write_line(reporter, text, **markup)
    if reporter.verbosity > 0:
        _show_table(report, reporter)
    if (most := getattr(reporter.config.option, "durations", None)) is not None:
        reporter.section("slowest trials")
        for text in terminal.slowest(report, most):
            write_line(reporter, text)


def show_annotations(report: Report, reporter: pytest.TerminalReporter) -> None:
    """Print the commands by which GitHub shows failures beside the code."""
    for command in ci.of_github(report):
        reporter.write_line(command)


def _width(reporter: pytest.TerminalReporter) -> int:
    return min(terminal.WIDTH, reporter.config.get_terminal_writer().fullwidth)


def _show_table(report: Report, reporter: pytest.TerminalReporter) -> None:
    reporter.line("")
    for row in terminal.table(report, _width(reporter)):
        for text, markup in row:
            reporter.write(for_log(text), **markup)
        reporter.line("")


def _versions() -> dict[str, str]:
    found = {"python": platform.python_version(), "system": f"{sys.platform} {platform.release()}"}
    for name in ("torch", "pytest", "pytest-dataloader-faults"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:  # A checkout that is not installed.
            found[name] = "unknown"
    return found
