"""Options, ini keys and marker arguments: one table, and the settings of one test.

The closest marker wins, then the command line, then the ini key, then the default. The options
``only`` and ``exclude`` select from the checks that each test has by its markers.
"""

from __future__ import annotations

import argparse
import contextlib
import inspect
import os
import shlex
import sys
import textwrap
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import pytest

from pytest_dataloader_faults import exceptions
from pytest_dataloader_faults._settings import OPTIONS, RULES, Option
from pytest_dataloader_faults.exceptions import InvalidArgumentError

_STEM = "dataloader_faults"
ATTRIBUTE = _STEM
"""The attribute of pytest's reports with the result of a check: an item as plain data."""
_SETTINGS = {
    **OPTIONS,
    "flaky": Option(
        "warn",
        "what to do when one trial of a check fails and two repeats pass: warn or fail",
        "{warn,fail}",
    ),
}
"""What has an option, an ini key and an argument of the marker."""
_CHECKS = (
    "checks, separated by commas; also globs, and the groups quick, files, listings, writes,"
    " network and ranks"
)
_REPORT = (
    "write a report to PATH, and keep it up to date during the run; the format depends on the"
    " extension: .html, .json or .md (for the summary of a CI job); can be repeated"
)
_OTHERS: Mapping[str, tuple[str, dict[str, Any]]] = {
    "only": (f"run only these {_CHECKS}", {"metavar": "CHECKS"}),
    "exclude": ("skip these checks, in the same form", {"metavar": "CHECKS"}),
    "baseline": (
        "a baseline of known failures: failures listed in FILE are expected",
        {"metavar": "FILE"},
    ),
    "update-baseline": (
        "write the checks that fail in this run to the baseline; keeps the reasons in it",
        {"action": "store_true"},
    ),
    "report": (_REPORT, {"metavar": "PATH", "action": "append", "default": []}),
    "require-gpu": (
        "fail tests marked gpu, instead of skipping them, if torch finds no accelerator",
        {"action": "store_true"},
    ),
    "run": (argparse.SUPPRESS, {"default": ""}),
}
"""What is only an option. A baseline has an ini key as well, relative to pytest's rootdir."""
_OF_CHECKS = ("only", "exclude", "expected_failures")
MARKER = inspect.Signature(
    [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY) for name in (*_OF_CHECKS, *_SETTINGS)]
)
"""The arguments of the marker, each of which may be left out."""
_PURPOSE = (
    "Select the checks of fault_check, and configure how fault tests run; see check_dataset()."
)
_values = pytest.StashKey[dict[str, Any]]()


class ItemOptions(NamedTuple):
    """The values of the ini keys, the options and the markers for one test.

    *settings*: arguments of ``Settings``.
    """

    flaky: str
    settings: Mapping[str, Any]
    only: str | Iterable[str] | None = None
    exclude: str | Iterable[str] = ()
    expected_failures: Mapping[str, str] | None = None


def add_options(parser: pytest.Parser) -> None:
    """Declare ``--dataloader-faults-*`` and the ini keys of the same names."""
    group = parser.getgroup(
        "dataloader-faults", "storage and process faults under PyTorch DataLoaders"
    )
    for name, option in _SETTINGS.items():
        text = f"{option.help} (default: {option.default})"
        group.addoption(flag(name), dest=f"{_STEM}_{name}", metavar=option.values, help=text)
        parser.addini(f"{_STEM}_{name}", text, default=None)
    for name, (text, options) in _OTHERS.items():
        dest = f"{_STEM}_{name.replace('-', '_')}"
        group.addoption(flag(name), dest=dest, help=text, **options)
    text = f"{_OTHERS['baseline'][0]}; relative to pytest's rootdir"
    parser.addini(f"{_STEM}_baseline", text, default=None)


def flag(name: str) -> str:
    """The command-line option of *name*."""
    return f"--dataloader-faults-{name}"


def typed(config: pytest.Config, name: str) -> Any:
    """The value of the option *name*, as the user typed it."""
    return config.getoption(f"{_STEM}_{name.replace('-', '_')}")


CHOICE = "only", "exclude"
"""The options that choose checks."""


def typed_options(config: pytest.Config, names: Iterable[str] = tuple(_SETTINGS)) -> list[str]:
    """The options *names* of this run, as the user typed them."""
    values = {name: typed(config, name) for name in names}
    return [f"{flag(name)}={value}" for name, value in values.items() if value]


def checks_to_keep(config: pytest.Config) -> set[str] | None:
    """The checks that the command line selects; None if it does not select any.

    On other systems, no checks are known.
    """
    only, exclude = (typed(config, name) for name in CHOICE)
    if (only is None and exclude is None) or sys.platform != "linux":
        return None
    from pytest_dataloader_faults.battery.checking import select_checks
    from pytest_dataloader_faults.battery.checks import names_of_checks

    for name in CHOICE:
        if (value := typed(config, name)) is not None:
            names_of_checks(flag(name), value)
    return set(select_checks(only, exclude or ()))


def names_checks(config: pytest.Config, options: ItemOptions) -> bool:
    """Whether the user selects single checks, by a marker with these *options* or an option."""
    return options.only is not None or typed(config, "only") is not None


def run_command(config: pytest.Config, *checks: str) -> str:
    """The command ``run`` that started pytest, with options for *checks*; "" if the user did."""
    arguments = typed(config, "run")
    command = shlex.join(["pytest-dataloader-faults", "run", *checks])
    return f"{command} {arguments}" if arguments else ""


def reports(config: pytest.Config) -> list[str]:
    """The paths of the reports to write."""
    paths: list[str] = typed(config, "report")
    for path in paths:
        from pytest_dataloader_faults.report.files import require_format

        require_format(path)
    return paths


class BaselineOptions(NamedTuple):
    """The options for the baseline.

    *path*: its file, "" for none. *where*: the option or ini key that names the file.
    """

    path: str
    where: str
    is_updated: bool


def baseline_options(config: pytest.Config) -> BaselineOptions:
    """The file of the baseline, relative to where pytest was started."""
    path, where = typed(config, "baseline"), flag("baseline")
    is_updated = typed(config, "update-baseline")
    if typed(config, "run"):  # Its test may have the id of one of the user's tests.
        if path is not None or is_updated:
            message = "run cannot use a baseline, which lists tests. Pass --expected-failures"
            raise InvalidArgumentError(message)
        return BaselineOptions("", "", is_updated=False)
    if path is None and (path := config.getini(f"{_STEM}_baseline")) is not None:
        where = f"ini key {_STEM}_baseline"
        path = path and os.path.relpath(config.rootpath / path, config.invocation_params.dir)
    if path == "":
        message = f"baseline='' from {where} must be the path of a file, such as baseline.json"
        raise InvalidArgumentError(message)
    if is_updated and not path:
        message = f"{flag('update-baseline')} needs the baseline: add {flag('baseline')}=FILE"
        raise InvalidArgumentError(message)
    if path and os.path.realpath(path) in map(os.path.realpath, reports(config)):
        message = f"report={path!r} would overwrite the baseline. Pass another file for the report"
        raise InvalidArgumentError(message)
    return BaselineOptions(path or "", where, is_updated)


def marker_line() -> str:
    """The entry of ``pytest --markers``."""
    names = ", ".join(f"{name}=..." for name in MARKER.parameters)
    return wrap_for_terminal(f"{_STEM}({names}): {_PURPOSE}")


def wrap_for_terminal(entry: str) -> str:
    """Wrap an entry of ``pytest --markers`` to 80 characters, because pytest does not wrap it."""
    prefix, joined = "@pytest.mark.", ":\N{NO-BREAK SPACE}"  # It removes a break after the colon.
    text = f"{prefix}{entry}".replace(": ", joined, 1)
    lines = textwrap.wrap(text, 79, subsequent_indent="    ", break_on_hyphens=False)
    return "\n".join(lines).removeprefix(prefix).replace(joined, ": ")


def read_options(config: pytest.Config) -> None:
    """Check the ini keys and options, and keep their values with *config*."""
    values: dict[str, Any] = {}
    for name in _SETTINGS:
        key = f"{_STEM}_{name}"
        values.update(_parse_value(name, config.getini(key), f"ini key {key}"))
        values.update(_parse_value(name, typed(config, name), flag(name)))
    config.stash[_values] = values
    checks_to_keep(config)


def options_for(config: pytest.Config, marks: Iterable[pytest.Mark] = ()) -> ItemOptions:
    """Return the options of a test with *marks*, the closest first."""
    values = {name: option.value for name, option in _SETTINGS.items()} | config.stash[_values]
    for mark in reversed(list(marks)):
        values.update(_from_marker(mark))
    option_fields = {name: values[name] for name in ItemOptions._fields if name in values}
    return ItemOptions(**option_fields, settings={name: values[name] for name in OPTIONS})


@contextlib.contextmanager
def fail_on_bad_values(node: pytest.Item) -> Iterator[None]:
    """Fail *node* for a bad argument of its marker, without frames of this plugin."""
    try:
        yield
    except InvalidArgumentError as error:
        raise pytest.fail.Exception(f"{node.nodeid}: {error}", pytrace=False) from None


def _from_marker(mark: pytest.Mark) -> dict[str, Any]:
    try:
        arguments = MARKER.bind_partial(*mark.args, **mark.kwargs).arguments
    except TypeError as error:
        takes = " ".join(marker_line().partition(":")[0].split())
        message = f"@pytest.mark.{_STEM}: {error}. Pass arguments by keyword: {takes}"
        raise InvalidArgumentError(message) from error
    values = {name: value for name, value in arguments.items() if value is not None}
    for name in values.keys() & _SETTINGS.keys():
        values.update(_parse_value(name, values[name], f"@pytest.mark.{_STEM}"))
    return values


def _parse_value(name: str, value: Any, where: str) -> dict[str, Any]:
    """Return ``{name: value}`` with the value in its type; empty if *where* does not set it."""
    if value is None:
        return {}
    option = _SETTINGS[name]
    if option.read(value) is None:
        return {name: None}
    rule = RULES[name]
    with contextlib.suppress(ValueError):
        parsed = option.kind(value) if isinstance(value, str) else value
        if rule.allows(parsed):
            return {name: option.kind(parsed)}
    allowed, _, _ = rule.allowed.partition(", or None")
    allowed += "" if option.word is None else f", or {option.word!r}"
    message = f"{name}={exceptions._format_value(value)} from {where} must be {allowed}"
    raise InvalidArgumentError(message)


def runs_check(node: pytest.Item) -> bool:
    """Whether *node* runs a check."""
    return "fault_check" in getattr(node, "fixturenames", ())


def check_name_of(node: pytest.Item) -> str:
    """The name of the check of *node*, or of the fixture if it cannot be parametrized."""
    parameters = getattr(getattr(node, "callspec", None), "params", {})
    return str(parameters.get("fault_check", "fault_check"))
