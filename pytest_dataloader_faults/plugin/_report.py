"""What checks found: noted where they ran, shown and written where pytest's output comes from."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import pytest

from pytest_dataloader_faults.outcomes import CheckResult
from pytest_dataloader_faults.plugin._options import ATTRIBUTE
from pytest_dataloader_faults.report import ci, files, markdown, terminal
from pytest_dataloader_faults.report.model import Item, Report, item_of

_PROPERTY = "dataloader_faults"
_SECTION = "dataloader-faults"
_items = pytest.StashKey[list[dict[str, Any]]]()


def note(node: pytest.Item, result: CheckResult, duration: float) -> None:
    """Keep *result* for the report, and put its main facts into pytest's own JUnit file."""
    path, line, _ = node.location
    item = item_of(
        result,
        nodeid=id_of(node),
        test=_without(id_of(node), result.check),
        where=(path, (line or 0) + 1),
        duration=duration,
    )
    node.stash.setdefault(_items, []).append(asdict(item))
    facts = {
        "check": item.check,
        "verdict": item.verdict,
        "passed": str(result.passed).lower(),
        "fault": ", ".join(item.faults),
        "engine": item.engine,
        "duration": f"{duration:.3f}",
        "cause": item.cause,
    }
    node.user_properties += [(f"{_PROPERTY}_{name}", text) for name, text in facts.items() if text]


def id_of(node: pytest.Item) -> str:
    """The id of *node*, without the group that pytest-xdist puts behind it.

    It does so under ``--dist loadgroup``. pytest cannot run an item by such an id.
    """
    return f"{node.parent.nodeid}::{node.name}" if node.parent else node.nodeid


def _without(nodeid: str, check: str) -> str:
    """The id of the test, without the *check* that one of its items asks."""
    name, bracket, parameters = nodeid.partition("[")
    rest = "-".join(filter(None, f"-{parameters[:-1]}-".split(f"-{check}-", 1))).strip("-")
    if not bracket:  # A dataset that the command line names.
        return name.removesuffix(f"::{check}")
    return f"{name}[{rest}]" if rest else name


def attach(item: pytest.Item, report: pytest.TestReport) -> None:
    """Give *report* what was found in *item*."""
    if report.when == "call" and (found := item.stash.get(_items, [])):
        setattr(report, ATTRIBUTE, found)


def report_of(found: Iterable[dict[str, Any]], engine: str) -> Report:
    """The report of the items *found*."""
    return Report(engine=engine, versions=_versions(), items=tuple(map(Item.from_dict, found)))


def write(report: Report, paths: Iterable[str]) -> Iterator[str]:
    """Write *report* to each of *paths*; what went wrong."""
    for path in paths:
        try:
            files.write(report, path)
        except OSError as error:
            yield f"the report {path} was not written: {error}"


def add_step_summary(report: Report) -> None:
    """Add *report* to the summary of a GitHub job, if this is one."""
    path = os.environ.get("GITHUB_STEP_SUMMARY")
    if path and report.items:
        with open(path, "a", encoding="utf-8", errors="backslashreplace") as file:
            file.write(markdown.render(report))


def show(report: Report, reporter: pytest.TerminalReporter) -> None:
    """Show how each dataset was tried, and what failed checks have in common."""
    reporter.ensure_newline()
    reporter.section(_SECTION)
    for text, markup in terminal.summary(report, _width(reporter)):
        reporter.write_line(text, **markup)
    if reporter.verbosity > 0:
        _show_table(report, reporter)
    if (most := getattr(reporter.config.option, "durations", None)) is not None:
        reporter.section("slowest trials")
        for text in terminal.slowest(report, most):
            reporter.write_line(text)


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
            reporter.write(text, **markup)
        reporter.line("")


def _versions() -> dict[str, str]:
    found = {"python": platform.python_version(), "system": f"{sys.platform} {platform.release()}"}
    for name in ("torch", "pytest", "pytest-dataloader-faults"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:  # A checkout that is not installed.
            found[name] = "unknown"
    return found
