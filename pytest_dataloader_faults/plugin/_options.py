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
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import pytest

from pytest_dataloader_faults import exceptions
from pytest_dataloader_faults._settings import OPTIONS, RULES, Option
from pytest_dataloader_faults.exceptions import InvalidArgumentError

MARKER = "dataloader_faults"
ATTRIBUTE = MARKER
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
ARGUMENTS = ("only", "exclude", "expected_failures", *_SETTINGS)
"""The arguments of the marker, each of which may be left out."""
_SIGNATURE = inspect.Signature(
    [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY) for name in ARGUMENTS]
)
USAGE = f"{MARKER}({', '.join(f'{name}=...' for name in ARGUMENTS)})"
MARKER_LINE = (
    f"{USAGE}: Select the checks of fault_check, and configure how fault tests run; see"
    " check_dataset()."
)
GPU_LINE = (
    "gpu: the test needs an accelerator. Together with dataloader_faults, the test is skipped if"
    " torch finds none, or fails with --dataloader-faults-require-gpu"
)
"""The entries of ``pytest --markers``."""
_values = pytest.StashKey[dict[str, Any]]()


def add_options(parser: pytest.Parser) -> None:
    """Declare ``--dataloader-faults-*`` and the ini keys of the same names."""
    group = parser.getgroup(
        "dataloader-faults", "storage and process faults under PyTorch DataLoaders"
    )
    for name, option in _SETTINGS.items():
        text = f"{option.help} (default: {option.default})"
        group.addoption(flag(name), dest=f"{MARKER}_{name}", metavar=option.values, help=text)
        parser.addini(f"{MARKER}_{name}", text, default=None)
    for name, (text, options) in _OTHERS.items():
        dest = f"{MARKER}_{name.replace('-', '_')}"
        group.addoption(flag(name), dest=dest, help=text, **options)
    text = f"{_OTHERS['baseline'][0]}; relative to pytest's rootdir"
    parser.addini(f"{MARKER}_baseline", text, default=None)


def flag(name: str) -> str:
    """The command-line option of *name*."""
    return f"--dataloader-faults-{name}"


def typed(config: pytest.Config, name: str) -> Any:
    """The value of the option *name*, as the user typed it."""
    return config.getoption(f"{MARKER}_{name.replace('-', '_')}")


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
    chosen = {name: typed(config, name) for name in CHOICE if typed(config, name) is not None}
    if not chosen or sys.platform != "linux":
        return None
    from pytest_dataloader_faults.battery.checking import select_checks
    from pytest_dataloader_faults.battery.checks import names_of_checks

    for name, value in chosen.items():
        names_of_checks(flag(name), value)
    return set(select_checks(**chosen))


def run_command(config: pytest.Config, *checks: str) -> str:
    """The command ``run`` that started pytest, with options for *checks*; "" if the user did."""
    arguments = typed(config, "run")
    command = shlex.join(["pytest-dataloader-faults", "run", *checks])
    return f"{command} {arguments}" if arguments else ""


def baseline_path(config: pytest.Config) -> tuple[str, str]:
    """The path of the baseline, "" if there is none, and the option or ini key that names it."""
    path: str | None = typed(config, "baseline")
    where, key = flag("baseline"), f"{MARKER}_baseline"
    is_updated = typed(config, "update-baseline")
    if typed(config, "run"):  # Its test may have the id of one of the user's tests.
        if path is not None or is_updated:
            message = "run cannot use a baseline, which lists tests. Pass --expected-failures"
            raise InvalidArgumentError(message)
        return "", ""
    if path is None and config.getini(key):
        where = f"ini key {key}"
        target = os.path.join(config.rootpath, config.getini(key))
        path = os.path.relpath(target, config.invocation_params.dir)
    if is_updated and not path:
        message = f"{flag('update-baseline')} needs the baseline: add {flag('baseline')}=FILE"
        raise InvalidArgumentError(message)
    if path and os.path.realpath(path) in map(os.path.realpath, typed(config, "report")):
        message = f"report={path!r} would overwrite the baseline. Pass another file for the report"
        raise InvalidArgumentError(message)
    return path or "", where


def read_options(config: pytest.Config) -> None:
    """Check the ini keys and options, and keep their values with *config*."""
    values: dict[str, Any] = {}
    for name in _SETTINGS:
        key = f"{MARKER}_{name}"
        values.update(_parse_value(name, config.getini(key), f"ini key {key}"))
        values.update(_parse_value(name, typed(config, name), flag(name)))
    config.stash[_values] = values
    checks_to_keep(config)


def options_for(config: pytest.Config, marks: Iterable[pytest.Mark] = ()) -> dict[str, Any]:
    """Return the arguments of the marker for a test with *marks*, the closest first."""
    defaults = {name: option.value for name, option in _SETTINGS.items()}
    unset = {"only": None, "exclude": (), "expected_failures": None}
    configured: dict[str, Any] = config.stash[_values]
    values: dict[str, Any] = {**unset, **defaults, **configured}
    for mark in reversed(list(marks)):
        values.update(_from_marker(mark))
    return values


def settings_in(options: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of ``Settings`` among the *options* of a test."""
    return {name: options[name] for name in OPTIONS}


@contextlib.contextmanager
def fail_on_bad_values(node: pytest.Item) -> Iterator[None]:
    """Fail *node* for a bad argument of its marker, without frames of this plugin."""
    try:
        yield
    except InvalidArgumentError as error:
        raise pytest.fail.Exception(f"{node.nodeid}: {error}", pytrace=False) from None


def _from_marker(mark: pytest.Mark) -> dict[str, Any]:
    try:
        arguments = _SIGNATURE.bind_partial(*mark.args, **mark.kwargs).arguments
    except TypeError as error:
        message = f"@pytest.mark.{MARKER}: {error}. Pass arguments by keyword: {USAGE}"
        raise InvalidArgumentError(message) from error
    values = {name: value for name, value in arguments.items() if value is not None}
    for name in values.keys() & _SETTINGS.keys():
        values.update(_parse_value(name, values[name], f"@pytest.mark.{MARKER}"))
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
