"""The command ``pytest-dataloader-faults``, which works with reports that are written."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import NoReturn, TextIO, TypeAlias

from pytest_dataloader_faults.exceptions import InvalidArgumentError
from pytest_dataloader_faults.outcomes.text import for_log, printable
from pytest_dataloader_faults.report import compare, files
from pytest_dataloader_faults.report.merge import Source, merged, told


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; the exit status."""
    parser = argparse.ArgumentParser(
        prog="pytest-dataloader-faults",
        description="Work with reports of pytest-dataloader-faults.",
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    _add_merge(commands)
    _add_compare(commands)
    given = parser.parse_args(arguments)
    try:
        return int(given.run(given))
    except (InvalidArgumentError, OSError) as error:
        _print(f"pytest-dataloader-faults: {error}", sys.stderr)
        return 2


_Commands: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"


def _add_merge(commands: _Commands) -> None:
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
    merge.set_defaults(run=lambda given: _merge(given, merge.error))


def _unlabelled(path: str) -> tuple[str, str]:
    return "", path


def _labelled(text: str) -> tuple[str, str]:
    label, _, path = text.partition("=")
    if not (label and path):
        message = f"{text!r} must be NAME=REPORT.json, such as py312=a.json"
        raise argparse.ArgumentTypeError(message)
    return label, path


def _merge(given: argparse.Namespace, refuse: Callable[[str], NoReturn]) -> int:
    """Merge the reports, each with a label, into the outputs; the exit status."""
    asked = [*given.reports, *given.label]
    if not asked:
        refuse("give a report, or several, as REPORT.json or by --label")
    paths = [files.require_known(path) for path in given.output]
    found = merged([Source(path, files.read(path), label) for label, path in asked])
    for path in paths:
        files.write(found.report, path)
    _show(told(found))
    return 0


_FORMS = {".md": compare.markdown, ".html": compare.page}
"""How a comparison is written, by the ending of the file."""


def _add_compare(commands: _Commands) -> None:
    """Declare the command ``compare`` and its arguments."""
    parser = commands.add_parser(
        "compare",
        help="say what is new, gone and slower in a report beside an older one",
        description="Say which checks fail in NEW.json that did not in OLD.json, which fail no"
        " longer, which fail with another verdict, and which tests are slower. The exit status is"
        " 1 if something fails that had not, 2 if a report cannot be read or written, and 0"
        " otherwise.",
    )
    parser.add_argument("old", metavar="OLD.json", help="the older report in JSON")
    parser.add_argument("new", metavar="NEW.json", help="the newer one")
    parser.add_argument(
        "-o",
        "--output",
        action="append",
        default=[],
        metavar="PATH",
        help=f"where to write it as well, in the form of the ending: {', '.join(_FORMS)}",
    )
    parser.set_defaults(run=_compare)


def _compare(given: argparse.Namespace) -> int:
    for path in given.output:
        if not path.endswith(tuple(_FORMS)):
            message = f"output={path!r} must end in one of {', '.join(_FORMS)}"
            raise InvalidArgumentError(message)
    found = compare.compared(*map(files.read, (given.old, given.new)))
    for path in given.output:
        form = next(each for ending, each in _FORMS.items() if path.endswith(ending))
        files.write_text(form(found), path)
    _show(compare.lines(found))
    return int(found.is_worse)


def _show(lines: Iterable[str]) -> None:
    for line in lines:
        _print(printable(line), sys.stdout)


def _print(text: str, stream: TextIO) -> None:
    """Print *text*, which may hold characters that the encoding of *stream* lacks."""
    encoding = stream.encoding or "utf-8"
    line = for_log(text).encode(encoding, errors="backslashreplace").decode(encoding)
    print(line, file=stream)  # a command
