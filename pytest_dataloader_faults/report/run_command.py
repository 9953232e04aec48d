"""The command ``pytest-dataloader-faults run``: the battery on one dataset, without a test file.

It writes the test that the user would write, and has pytest run it. The test is in a package on
``sys.path``, because pytest would look for its configuration next to a path, and the ids of the
items would start with that path.
"""

from __future__ import annotations

import argparse
import ast
import os
import shlex
import sys
import tempfile
from collections.abc import Iterator
from typing import Any

from pytest_dataloader_faults._settings import OPTIONS

USAGE_ERROR = 4
"""The exit status of pytest for a wrong command line."""
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
_REPEATABLE = {
    "arg": ("VALUE", "the next positional argument of the class or function"),
    "kwarg": ("NAME=VALUE", "a keyword argument, such as size=224"),
    "only": ("CHECKS", "run only these checks, separated by commas; quick stands for eight"),
    "exclude": ("CHECKS", "skip these checks"),
    "report": ("PATH", "write a report to PATH, such as report.html, report.json or report.md"),
}
_CODE = {
    "contract": "Contract(may_substitute=True)",
    "expected-failures": "{'open-error': 'catches OSError'}",
}
_HINT = " Pass arguments of the class or function with --arg VALUE, and pytest options after --"


def add_run(commands: Any) -> Any:
    """Declare the command ``run`` and its arguments."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "run",
        allow_abbrev=False,
        usage="%(prog)s MODULE:NAME [options] [-- PYTEST_OPTIONS]",
        help="run the battery on a dataset, without a test file",
        description="Run the battery on a dataset, a loader or a data module, without a test file."
        " pytest runs the checks and reads its usual configuration. Options after -- are passed to"
        " pytest, such as -- -x -n 2. The exit status is pytest's: 0 if every check passed,"
        " 1 if one failed, 2 if the module cannot be imported, 4 if the command line is wrong.",
    )
    parser.add_argument(
        "target",
        type=_require_target,
        metavar="MODULE:NAME",
        help="a class, or a function that returns a dataset, a loader or a data module, such as"
        " my_package.data:MyDataset",
    )
    for name, (values, purpose) in _REPEATABLE.items():
        text = f"{purpose} (can be repeated)"
        parser.add_argument(f"--{name}", action="append", default=[], metavar=values, help=text)
    for name, example in _CODE.items():
        text = f"the Python code of {name.replace('-', '_')}, such as {example}"
        parser.add_argument(f"--{name}", type=_parse_code, metavar="CODE", help=text)
    for name, option in OPTIONS.items():
        text = f"{option.help} (default: {option.default})"
        parser.add_argument(f"--{name}", metavar=option.values, help=text)
    parser.set_defaults(run=_run, parser=parser, hint=_HINT)
    return parser


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
    for name in ("only", "exclude", "report"):
        yield from (f"{_PREFIX}{name}={each}" for each in getattr(options, name))
    settings = [(name, value) for name in OPTIONS if (value := getattr(options, name)) is not None]
    yield from (f"{_PREFIX}{name}={value}" for name, value in settings)
    again = [(name, each) for name in ("arg", "kwarg") for each in getattr(options, name)]
    again += [(name, value) for name in _CODE if (value := vars(options)[name.replace("-", "_")])]
    command = [options.target, *(f"--{name}={value}" for name, value in again + settings)]
    command += ["--", *options.for_pytest] if options.for_pytest else []
    yield f"{_PREFIX}run={shlex.join(command)}"
