"""The command ``pytest-dataloader-faults run``: the battery on one dataset, without a test file.

It runs pytest, which reads the user's configuration as ever. What pytest writes into the project by
itself goes elsewhere: its cache into a temporary folder, and Python writes no bytecode. An option
that takes the cache away, ``-p no:cacheprovider``, would make ``--lf`` in ``addopts`` an error.
"""

from __future__ import annotations

import argparse
import ast
import os
import shlex
import sys
import tempfile
from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias

from pytest_dataloader_faults._settings import OPTIONS
from pytest_dataloader_faults.outcomes.text import call
from pytest_dataloader_faults.report.files import RENDERERS

PLUGIN = "dataloader-faults-run"
USAGE_ERROR = 4
"""The exit status of pytest for a wrong command line."""
_REPORT_OPTIONS = {
    "--html": ".html",
    "--json": ".json",
    "--markdown": ".md",
}
_HINT = " Pass arguments of the class or function with --arg VALUE, and pytest options after --"
_PREFIX = "--dataloader-faults-"
_LITERALS = (bool, int, float, complex, str, bytes, tuple, list, dict, set, type(None))
_IMPORTED = (
    "ignore:Module already imported so cannot be rewritten; pytest_dataloader_faults"
    ":pytest.PytestAssertRewriteWarning"
)
"""pytest issues this warning for a plugin whose package called ``pytest.main``."""

_Commands: TypeAlias = "argparse._SubParsersAction[Any]"


class RunCommand:
    """Registered with pytest as ``PLUGIN``, so that the plugin knows that this command runs pytest.

    Attributes:
        target: The dataset, as the user typed it.
        command: The whole command.
    """

    def __init__(self, target: str, command: str) -> None:
        self.__name__ = PLUGIN
        self.target = target
        self.command = command


def add_run(commands: _Commands) -> Any:
    """Declare the command ``run`` and its arguments."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "run",
        allow_abbrev=False,
        usage="%(prog)s MODULE:NAME [options] [-- PYTEST_OPTIONS]",
        help="run the battery on a dataset, without a test file",
        description="Run the battery on a dataset, a loader or a data module, without a test file."
        " pytest runs the checks and reads its usual configuration. Options after -- are passed to"
        " pytest, such as -- -x -n 2. The exit status is pytest's: 0 if every check passed,"
        " 1 if one failed, 4 if the command line is wrong.",
    )
    parser.add_argument(
        "target",
        metavar="MODULE:NAME",
        help="a class, or a function that returns a dataset, a loader or a data module, such as"
        " my_package.data:MyDataset",
    )
    _add_call(parser)
    _add_checks(parser)
    _add_reports(parser)
    for name, option in OPTIONS.items():
        text = f"{option.help} (default: {option.default})"
        parser.add_argument(f"--{name}", metavar=option.values, help=text)
    parser.set_defaults(run=_run, parser=parser, hint=_HINT)
    return parser


def _add_call(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group(
        "arguments of the class or function",
        "A VALUE that is a Python literal (3, 0.5, None, True, [1, 2]) has its type. Everything"
        " else is a string, and so is \"'3'\". Put an equals sign before a VALUE that starts with a"
        " dash: --arg=-x.",
    )
    group.add_argument(
        "--arg",
        dest="args",
        action="append",
        type=value_of,
        default=[],
        metavar="VALUE",
        help="the next positional argument, such as data/train (can be repeated)",
    )
    group.add_argument(
        "--kwarg",
        dest="kwargs",
        action="append",
        type=_named_value,
        default=[],
        metavar="NAME=VALUE",
        help="a keyword argument, such as size=224 (can be repeated)",
    )


def _add_checks(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--quick",
        dest="only",
        action="append_const",
        const="quick",
        help="run only the quick checks, and those in --only",
    )
    for name, text in (("--only", "run only these checks"), ("--exclude", "skip these checks")):
        parser.add_argument(
            name,
            action="append",
            metavar="CHECKS",
            help=f"{text}, separated by commas (can be repeated)",
        )


def _add_reports(parser: argparse.ArgumentParser) -> None:
    for name, ending in _REPORT_OPTIONS.items():
        parser.add_argument(
            name,
            dest="reports",
            action="append",
            type=_require_suffix(ending),
            metavar="PATH",
            help=f"write a report to PATH, which must end in {ending} (can be repeated)",
        )


def _require_suffix(ending: str) -> Any:
    def check_path(path: str) -> str:
        if next((each for each in RENDERERS if path.endswith(each)), "") != ending:
            message = f"{path!r} must end in {ending}"
            raise argparse.ArgumentTypeError(message)
        return path

    return check_path


def value_of(text: str) -> Any:
    """Evaluate the Python literal *text*, or return *text* itself if it is not a literal.

    >>> [value_of(each) for each in ("3", "None", "'3'", "data/train", "2024-01-01", "...")]
    [3, None, '3', 'data/train', '2024-01-01', '...']
    """
    try:
        value = ast.literal_eval(text)
        is_exact = isinstance(value, _LITERALS) and ast.literal_eval(repr(value)) == value
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return text
    return value if is_exact else text


def _named_value(text: str) -> tuple[str, Any]:
    name, equals, value = text.partition("=")
    if not (equals and name.isidentifier()):
        message = f"{text!r} must be NAME=VALUE, such as size=224"
        raise argparse.ArgumentTypeError(message)
    return name, value_of(value)


def _run(options: argparse.Namespace) -> int:
    """Run pytest, and return its exit status."""
    try:
        import pytest
    except ModuleNotFoundError:
        needed = "install pytest-dataloader-faults with its dependencies"
        options.parser.error(f"pytest is not installed: {needed}")
    names = [name for name, _ in options.kwargs]
    for name in sorted({each for each in names if names.count(each) > 1}):
        options.parser.error(f"argument --kwarg: {name!r} must be passed once")
    os.environ["PYTHONDONTWRITEBYTECODE"] = "1"  # For pytest-xdist and workers that are not forked.
    sys.dont_write_bytecode = True
    started = RunCommand(options.target, shlex.join(options.typed))
    with tempfile.TemporaryDirectory(prefix="dataloader-faults-") as cache:
        arguments = [*_pytest_arguments(options), "-o", f"cache_dir={cache}", *options.for_pytest]
        return int(pytest.main(arguments, plugins=[started]))


def _pytest_arguments(options: argparse.Namespace) -> Iterator[str]:
    """Translate *options* to options of pytest."""
    yield from ("-p", "dataloader_faults", "-W", _IMPORTED)
    yield f"{_PREFIX}dataset={dataset_value(options.target, options.args, dict(options.kwargs))}"
    for name in ("only", "exclude"):
        yield from (f"{_PREFIX}{name}={each}" for each in getattr(options, name) or ())
    yield from (f"{_PREFIX}report={path}" for path in options.reports or ())
    for name in OPTIONS:
        if (value := getattr(options, name)) is not None:
            yield f"{_PREFIX}{name}={value}"


def dataset_value(target: str, args: Sequence[Any], kwargs: dict[str, Any]) -> str:
    """The value of ``--dataloader-faults-dataset`` for *target*, called with these arguments.

    >>> dataset_value("my_data:MyDataset", ["data/train"], {"size": None})
    "my_data:MyDataset('data/train', size=None)"
    """
    if not (args or kwargs):
        return target
    keywords = [f"{name}={value!r}" for name, value in kwargs.items()]
    return call(target, *map(repr, args), *keywords)
