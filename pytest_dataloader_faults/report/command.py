"""The command ``pytest-dataloader-faults``: what is done with reports once they are written."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from pytest_dataloader_faults.exceptions import InvalidArgumentError
from pytest_dataloader_faults.report import files
from pytest_dataloader_faults.report.model import merged


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; the exit status."""
    parser = argparse.ArgumentParser(
        prog="pytest-dataloader-faults",
        description="Work with reports of pytest-dataloader-faults.",
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    merge = commands.add_parser(
        "merge",
        help="make one report of several, as of the shards of a CI job",
        description="Make one report of several. Where an item is in several, the last one holds.",
    )
    merge.add_argument("reports", nargs="+", metavar="REPORT.json", help="reports in JSON")
    merge.add_argument(
        "-o",
        "--output",
        required=True,
        action="append",
        metavar="PATH",
        help=f"where to write, in the form of the ending: {', '.join(files.RENDERERS)}",
    )
    given = parser.parse_args(arguments)
    try:
        paths = [files.require_known(path) for path in given.output]
        report = merged(files.read(path) for path in given.reports)
        for path in paths:
            files.write(report, path)
    except (InvalidArgumentError, OSError) as error:
        print(f"pytest-dataloader-faults: {error}", file=sys.stderr)  # noqa: T201  # a command
        return 2
    return 0
