"""The command ``pytest-dataloader-faults``: what is done with reports once they are written."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from pytest_dataloader_faults.exceptions import InvalidArgumentError
from pytest_dataloader_faults.outcomes.text import printable
from pytest_dataloader_faults.report import files
from pytest_dataloader_faults.report.merge import Source, merged, told


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; the exit status."""
    parser = argparse.ArgumentParser(
        prog="pytest-dataloader-faults",
        description="Work with reports of pytest-dataloader-faults.",
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    merge = _add_merge(commands)
    given = parser.parse_args(arguments)
    if not (asked := [*given.reports, *given.label]):
        merge.error("give a report, or several, as REPORT.json or by --label")
    try:
        return _merge(asked, given.output)
    except (InvalidArgumentError, OSError) as error:
        print(f"pytest-dataloader-faults: {error}", file=sys.stderr)  # noqa: T201  # a command
        return 2


def _add_merge(
    commands: argparse._SubParsersAction[argparse.ArgumentParser],
) -> argparse.ArgumentParser:
    """Declare the command ``merge`` and its arguments."""
    merge = commands.add_parser(
        "merge",
        help="make one report of several, such as the shards of a CI job",
        description="Make one report of several. Where an item is in several, the worst result"
        " holds, and the output says so. The exit status is 0 once the report is written, whatever"
        " is in it, and 2 otherwise.",
    )
    merge.add_argument(
        "reports",
        nargs="*",
        type=_unlabelled,
        default=[],
        metavar="REPORT.json",
        help="reports in JSON",
    )
    merge.add_argument(
        "--label",
        action="append",
        type=_labelled,
        default=[],
        metavar="NAME=REPORT.json",
        help="a report whose items get this name before their id, such as that of one job of a"
        " matrix, so that they are not compared with those of another name; may be given"
        " several times",
    )
    merge.add_argument(
        "-o",
        "--output",
        required=True,
        action="append",
        metavar="PATH",
        help=f"where to write, in the form of the ending: {', '.join(files.RENDERERS)}",
    )
    return merge


def _unlabelled(path: str) -> tuple[str, str]:
    return "", path


def _labelled(text: str) -> tuple[str, str]:
    label, _, path = text.partition("=")
    if not (label and path):
        message = f"{text!r} must be NAME=REPORT.json, such as py312=a.json"
        raise argparse.ArgumentTypeError(message)
    return label, path


def _merge(asked: Sequence[tuple[str, str]], outputs: Sequence[str]) -> int:
    """Merge the reports *asked* for, each a label and a path, into *outputs*; the exit status."""
    paths = [files.require_known(path) for path in outputs]
    found = merged([Source(path, files.read(path), label) for label, path in asked])
    for path in paths:
        files.write(found.report, path)
    for line in told(found):
        print(printable(line))  # noqa: T201  # a command
    return 0
