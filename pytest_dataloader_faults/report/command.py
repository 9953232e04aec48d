"""The command ``pytest-dataloader-faults``: test a dataset, merge reports, and compare them.

``run`` writes the test that the user would write, and has pytest run it. The test is in a package
on ``sys.path``, because pytest would look for its configuration next to a path, and the ids of the
items would start with that path.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import os
import shlex
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from typing import NoReturn, TypeAlias

from pytest_dataloader_faults._settings import OPTIONS, check
from pytest_dataloader_faults.battery.checks import require_checks
from pytest_dataloader_faults.exceptions import InvalidArgumentError
from pytest_dataloader_faults.outcomes.text import escape_for_log, printable
from pytest_dataloader_faults.report import files
from pytest_dataloader_faults.report.compare import (
    NEW,
    add_label,
    compare_reports,
    find_changes,
    merge_reports,
)
from pytest_dataloader_faults.report.model import version_of

_NAME = "pytest-dataloader-faults"
USAGE_ERROR = 4
"""The exit status for a wrong command line or an unusable report, as pytest's."""
_TEST = """\
import functools
import pytest
from pytest_dataloader_faults import Contract
try:
    import {module}  # from the working directory, sys.path or the ini key pythonpath
except SystemExit:
    raise ImportError("{module} exits: put its script below if __name__ == '__main__'")
make_dataset = {dataset}
@pytest.mark.dataloader_faults(expected_failures={expected_failures})
def test_{name}(fault_check):
    fault_check(make_dataset, contract={contract})
"""
_PACKAGE = "dataloader_faults_run"
_PYTEST = [
    *("-p", "dataloader_faults", "--pyargs"),
    *("-o", "python_files=test_*.py", "-o", "python_functions=test_*"),
]
# pytest warns of a plugin whose package called pytest.main. The last filter wins.
_QUIET = ("-W", "ignore:Module already imported so cannot be rewritten; pytest_dataloader_faults")
_PREFIX = "--dataloader-faults-"
_RUN = (
    "Run the battery on a dataset, a loader or a data module, without a test file. pytest runs the"
    " checks and reads its usual configuration. Options after -- are passed to pytest, such as"
    " -- -x -n 2. The exit status is pytest's: 0 if every check passed, 1 if one failed, 2 if the"
    " module cannot be imported, 4 if the command line is wrong."
)
_TARGET = (
    "a class, or a function that returns a dataset, a loader or a data module, such as"
    " my_package.data:MyDataset"
)
_REPEATABLE = {
    "arg": ("VALUE", "the next positional argument (can be repeated)"),
    "kwarg": ("NAME=VALUE", "a keyword argument, such as size=224 (can be repeated)"),
    "report": ("PATH", "write a report: report.html, .json or .md (can be repeated)"),
}
_CHOICES = {
    "only": "run only these checks, groups or globs, separated by commas",
    "exclude": "skip these checks, groups or globs",
}
_HINT = "Pass arguments of the class or function with --arg VALUE, and pytest options after --"
_MERGE = (
    "Merge several reports. If several reports contain the same item, the worst result wins, and"
    " the output says so. The exit status is 0 once the merged report is written, whatever it"
    " contains, and 4 otherwise."
)
_LABELLED = (
    "a report; with a label, the ids of its items get the label as a prefix, for example one job of"
    " a matrix, so that they are not merged with items of other jobs"
)
_COMPARE = (
    "Compare NEW.json with OLD.json: checks that newly fail, are fixed, or fail with a different"
    " verdict. The exit status is 1 if a check newly fails, 4 if a report cannot be read, and 0"
    " otherwise."
)


class _Parser(argparse.ArgumentParser):
    """A parser with pytest's exit status for a wrong command line."""

    def error(self, message: str) -> NoReturn:
        self.print_usage(sys.stderr)
        self.exit(USAGE_ERROR, f"{self.prog}: error: {message}\n")


_Commands: TypeAlias = "argparse._SubParsersAction[_Parser]"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command, and return the exit status."""
    with contextlib.suppress(AttributeError):  # A stream in memory does not have it.
        sys.stdout.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    parser = _Parser(
        prog=_NAME,
        description="Run the checks of pytest-dataloader-faults, and work with their reports.",
    )
    parser.add_argument("--version", action="version", version=f"{_NAME} {version_of(_NAME)}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for add in (_add_run, _add_merge, _add_compare):
        add(commands)
    options = _parse(parser, list(sys.argv[1:] if arguments is None else arguments))
    try:
        return int(options.run(options))
    except (InvalidArgumentError, OSError) as error:
        sys.stderr.write(escape_for_log(f"{_NAME}: {error}\n"))
        return USAGE_ERROR


def _parse(parser: _Parser, typed: list[str]) -> argparse.Namespace:
    """Parse the arguments *typed*. The command ``run`` passes those after ``--`` to pytest."""
    is_run = typed[:1] == ["run"]
    end = typed.index("--") if is_run and "--" in typed else len(typed)
    options, unknown = parser.parse_known_args(typed[:end])
    if unknown:
        advice = f". {_HINT}" if is_run else ""
        options.parser.error(f"unrecognized arguments: {' '.join(unknown)}{advice}")
    options.for_pytest = typed[end + 1 :]
    return options


def _add_run(commands: _Commands) -> None:
    parser = commands.add_parser(
        "run",
        allow_abbrev=False,
        usage="%(prog)s MODULE:NAME [options] [-- PYTEST_OPTIONS]",
        help="run the battery on a dataset, without a test file",
        description=_RUN,
    )
    parser.add_argument("target", type=_require_target, metavar="MODULE:NAME", help=_TARGET)
    for name, (values, text) in _REPEATABLE.items():
        parser.add_argument(f"--{name}", action="append", default=[], metavar=values, help=text)
    for name, text in _CHOICES.items():
        parser.add_argument(f"--{name}", metavar="CHECKS", help=text)
    for name, (parse, example) in _CODE.items():
        text = f"the Python code of {name.replace('-', '_')}, such as {example}"
        parser.add_argument(f"--{name}", type=parse, metavar="CODE", help=text)
    for name, option in OPTIONS.items():
        text = f"{option.help} (default: {option.default})"
        parser.add_argument(f"--{name}", metavar=option.values, help=text)
    parser.set_defaults(run=_run, parser=parser)


def _require_target(text: str) -> str:
    module, _, name = text.partition(":")
    parts = [*module.split("."), *name.split(".")]
    if module.endswith(".py") or not all(each.isidentifier() for each in parts):
        message = f"{text!r} must be module:function, such as my_package.data:make_dataset"
        raise argparse.ArgumentTypeError(message)
    return text


def _parse_code(text: str) -> str:
    try:
        return ast.unparse(ast.parse(text.strip(), mode="eval"))
    except (SyntaxError, ValueError) as error:
        raise argparse.ArgumentTypeError(f"{text!r} must be Python code: {error}") from error


def _parse_reasons(text: str) -> str:
    code, value = _parse_code(text), text
    with contextlib.suppress(ValueError):
        value = ast.literal_eval(code)
    try:
        check(expected_failures=value)
        require_checks("expected_failures", value or ())
    except InvalidArgumentError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
    return code


_CODE = {
    "contract": (_parse_code, "Contract(may_substitute=True)"),
    "expected-failures": (_parse_reasons, "{'open-error': 'catches OSError'}"),
}


def code_of(text: str) -> str:
    """The Python code of a value: *text* itself if it is a literal, or else a string."""
    try:
        ast.literal_eval(text)
        return _parse_code(text)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return repr(text)


def _run(options: argparse.Namespace) -> int:
    """Run pytest, and return its exit status."""
    import pytest

    os.environ["PYTHONDONTWRITEBYTECODE"] = "1"  # For pytest-xdist and workers that are not forked.
    sys.dont_write_bytecode = True
    with tempfile.TemporaryDirectory(prefix="dataloader-faults-") as folder:
        package = os.path.join(folder, _PACKAGE)
        os.mkdir(package)
        module = options.target.partition(":")[0].replace(".", "_")
        for name, text in (("__init__", ""), (f"test_{module}", _test_of(options))):
            with open(os.path.join(package, f"{name}.py"), "w", encoding="utf-8") as file:
                file.write(text)
        sys.path[:0] = [folder, os.getcwd()]
        # Without the plugin cacheprovider, --lf in addopts would be an error.
        arguments = [_PACKAGE, *_PYTEST, "-o", f"cache_dir={folder}", *_pytest_options(options)]
        return int(pytest.main([*arguments, *options.for_pytest, *_QUIET]))


def _test_of(options: argparse.Namespace) -> str:
    """The source of the test."""
    module, _, name = options.target.partition(":")
    dataset = f"{module}.{name}"
    if arguments := [*map(code_of, options.arg), *_keywords(options)]:
        dataset = f"functools.partial({', '.join([dataset, *arguments])})"
    return _TEST.format(
        module=module,
        dataset=dataset,
        name=name.replace(".", "_"),
        contract=options.contract,
        expected_failures=options.expected_failures,
    )


def _keywords(options: argparse.Namespace) -> Iterator[str]:
    for text in options.kwarg:
        name, equals, value = text.partition("=")
        if not (equals and name.isidentifier()):
            options.parser.error(f"argument --kwarg: {text!r} must be NAME=VALUE, such as size=224")
        yield f"{name}={code_of(value)}"


def _pytest_options(options: argparse.Namespace) -> Iterator[str]:
    """The options of pytest for those of this command; the last one is to run it again."""
    values = {name: vars(options)[name.replace("-", "_")] for name in (*_CHOICES, *_CODE, *OPTIONS)}
    passed = {name: value for name, value in values.items() if value is not None}
    yield from (f"{_PREFIX}report={path}" for path in options.report)
    names = (name for name in (*_CHOICES, *OPTIONS) if name in passed)
    yield from (f"{_PREFIX}{name}={passed[name]}" for name in names)
    again = [(name, each) for name in ("arg", "kwarg") for each in getattr(options, name)]
    again += [(name, passed[name]) for name in (*_CODE, *OPTIONS) if name in passed]
    command = [options.target, *(f"--{name}={value}" for name, value in again)]
    command += ["--", *options.for_pytest] if options.for_pytest else []
    yield f"{_PREFIX}run={shlex.join(command)}"


def _add_merge(commands: _Commands) -> None:
    text = "merge several reports, such as the shards of a CI job"
    parser = commands.add_parser("merge", help=text, description=_MERGE)
    parser.add_argument("reports", nargs="+", metavar="[LABEL=]REPORT.json", help=_LABELLED)
    parser.add_argument(
        *("-o", "--output"),
        required=True,
        action="append",
        metavar="PATH",
        help="where to write the report; the format depends on the ending:"
        f" {', '.join(files.RENDERERS)}",
    )
    parser.set_defaults(run=_merge, parser=parser)


def _merge(options: argparse.Namespace) -> int:
    paths = [files.require_format(path) for path in options.output]
    reports = []
    for argument in options.reports:
        label, equals, path = argument.partition("=")
        is_labelled = label and equals and os.sep not in label
        report = files.read(path if is_labelled else argument)
        reports.append(add_label(report, label) if is_labelled else report)
    report, summary = merge_reports(reports)
    for path in paths:
        files.write(report, path)
    _show([summary])
    return 0


def _add_compare(commands: _Commands) -> None:
    text = "compare two reports: what fails now, and what is fixed"
    parser = commands.add_parser("compare", help=text, description=_COMPARE)
    parser.add_argument("old", metavar="OLD.json", help="the older report")
    parser.add_argument("new", metavar="NEW.json", help="the newer report")
    parser.set_defaults(run=_compare, parser=parser)


def _compare(options: argparse.Namespace) -> int:
    old, new = files.read(options.old), files.read(options.new)
    _show(compare_reports(old, new))
    return int(NEW in find_changes(old, new))


def _show(lines: Iterable[str]) -> None:
    for line in lines:
        sys.stdout.write(f"{escape_for_log(printable(line))}\n")
