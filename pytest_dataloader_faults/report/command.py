"""The command ``pytest-dataloader-faults``, which runs the battery and processes its reports."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import NoReturn, TextIO, TypeAlias

from pytest_dataloader_faults._arguments import suggest_name
from pytest_dataloader_faults.exceptions import InvalidArgumentError
from pytest_dataloader_faults.outcomes.text import escape_for_log, printable
from pytest_dataloader_faults.report import compare, files
from pytest_dataloader_faults.report.merge import add_label, merge_reports
from pytest_dataloader_faults.report.run_command import USAGE_ERROR, add_run

_NAME = "pytest-dataloader-faults"


class _Parser(argparse.ArgumentParser):
    """A parser with its own exit status for a wrong command line."""

    status = 2

    def error(self, message: str) -> NoReturn:
        if message.endswith("expected one argument"):
            message += ". Put an equals sign before a value that starts with a dash, as in --arg=-x"
        self.print_usage(sys.stderr)
        self.exit(self.status, f"{self.prog}: error: {message}\n")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command, and return the exit status."""
    parser = _Parser(
        prog=_NAME,
        description="Run the checks of pytest-dataloader-faults, and work with their reports.",
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    add_run(commands).status = USAGE_ERROR
    _add_merge(commands)
    _add_compare(commands)
    typed = list(sys.argv[1:] if arguments is None else arguments)
    options = _parse(parser, typed)
    try:
        return int(options.run(options))
    except (InvalidArgumentError, OSError) as error:
        _print(f"{_NAME}: {error}", sys.stderr)
        return 2


def _parse(parser: _Parser, typed: list[str]) -> argparse.Namespace:
    """Parse the arguments *typed*. The command ``run`` passes those after ``--`` to pytest."""
    is_split = typed[:1] == ["run"] and "--" in typed
    end = typed.index("--") if is_split else len(typed)
    options, unknown = parser.parse_known_args(typed[:end])
    if unknown:
        owner = options.parser
        option_names = [name for name in owner._option_string_actions if name.startswith("--")]
        advice = (
            f" {question}"
            if (question := suggest_name(unknown[0].partition("=")[0], option_names))
            else ""
        )
        owner.error(f"unrecognized arguments: {' '.join(unknown)}.{advice}{options.hint}")
    options.typed, options.for_pytest = [_NAME, *typed], typed[end + 1 :]
    return options


_Commands: TypeAlias = "argparse._SubParsersAction[_Parser]"


def _add_merge(commands: _Commands) -> None:
    """Declare the command ``merge`` and its arguments."""
    merge = commands.add_parser(
        "merge",
        help="merge several reports, such as the shards of a CI job",
        description="Merge several reports. If several reports contain the same item, the worst"
        " result wins, and the output says so. The exit status is 0 once the merged report is"
        " written, whatever it contains, and 2 otherwise.",
    )
    merge.add_argument(
        "reports",
        nargs="*",
        type=_without_label,
        default=[],
        metavar="REPORT.json",
        help="reports in JSON",
    )
    merge.add_argument(
        "--label",
        action="append",
        type=_parse_label,
        default=[],
        metavar="NAME=REPORT.json",
        help="a report whose item ids get NAME as a prefix, for example one job of a matrix, so"
        " that they are not merged with items of other jobs (can be repeated)",
    )
    merge.add_argument(
        "-o",
        "--output",
        required=True,
        action="append",
        metavar="PATH",
        help="where to write the report; the format depends on the ending:"
        f" {', '.join(files.RENDERERS)}",
    )
    merge.set_defaults(run=lambda options: _merge(options, merge.error), parser=merge, hint="")


def _without_label(path: str) -> tuple[str, str]:
    return "", path


def _parse_label(text: str) -> tuple[str, str]:
    label, _, path = text.partition("=")
    if not (label and path):
        message = f"{text!r} must be NAME=REPORT.json, such as py312=a.json"
        raise argparse.ArgumentTypeError(message)
    return label, path


def _merge(options: argparse.Namespace, refuse: Callable[[str], NoReturn]) -> int:
    """Merge the reports, each with a label, into the outputs, and return the exit status."""
    labelled_paths = [*options.reports, *options.label]
    if not labelled_paths:
        refuse("pass at least one report, as REPORT.json or with --label")
    paths = [files.require_format(path) for path in options.output]
    reports = [
        add_label(files.read(path), label) if label else files.read(path)
        for label, path in labelled_paths
    ]
    report, summary = merge_reports(reports)
    for path in paths:
        files.write(report, path)
    _show([summary])
    return 0


def _add_compare(commands: _Commands) -> None:
    """Declare the command ``compare`` and its arguments."""
    parser = commands.add_parser(
        "compare",
        help="compare two reports: what fails now, and what is fixed",
        description="Compare NEW.json with OLD.json: checks that newly fail, are fixed, or"
        " fail with a different verdict. The exit status is 1 if a check newly fails, 2 if a"
        " report cannot be read, and 0 otherwise.",
    )
    parser.add_argument("old", metavar="OLD.json", help="the older report")
    parser.add_argument("new", metavar="NEW.json", help="the newer report")
    parser.set_defaults(run=_compare, parser=parser, hint="")


def _compare(options: argparse.Namespace) -> int:
    comparison = compare.compare_reports(files.read(options.old), files.read(options.new))
    _show(compare.lines(comparison))
    return int(comparison.is_worse)


def _show(lines: Iterable[str]) -> None:
    for line in lines:
        _print(printable(line), sys.stdout)


def _print(text: str, stream: TextIO) -> None:
    """Print *text*, which may contain characters that *stream* cannot encode."""
    encoding = stream.encoding or "utf-8"
    line = escape_for_log(text).encode(encoding, errors="backslashreplace").decode(encoding)
    print(line, file=stream)  # a command
