"""Options, ini keys and marker arguments, and the settings that they make for one test.

From weak to strong: the default, the ini key, the command-line option, the marker (the closest).
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
ONLY, _EXCLUDE = "--dataloader-faults-only", "--dataloader-faults-exclude"
BASELINE = "--dataloader-faults-baseline"
UPDATE_BASELINE = "--dataloader-faults-update-baseline"
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


_OPTIONS = {
    **OPTIONS,
    "flaky": Option(
        "warn",
        "what to do when one trial of a check fails and two repeats pass: warn or fail",
        "{warn,fail}",
    ),
}
_OF_CHECKS = ("only", "exclude", "expected_failures")
MARKER = inspect.Signature(
    [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY) for name in (*_OF_CHECKS, *_OPTIONS)]
)
"""The arguments of the marker, each of which may be left out."""
_PURPOSE = (
    "Select the checks of fault_check, and configure how fault tests run; see check_dataset()."
)


def add_options(parser: pytest.Parser) -> None:
    """Declare ``--dataloader-faults-*`` and the ini keys of the same names."""
    group = parser.getgroup(
        "dataloader-faults", "storage and process faults under PyTorch DataLoaders"
    )
    for name, option in _OPTIONS.items():
        text = f"{option.help} (default: {option.default})"
        group.addoption(flag(name), dest=f"{_STEM}_{name}", metavar=option.values, help=text)
        parser.addini(f"{_STEM}_{name}", text, default=None)
    group.addoption(
        "--dataloader-faults-require-gpu",
        dest=f"{_STEM}_require_gpu",
        action="store_true",
        help="fail tests marked gpu, instead of skipping them, if torch finds no accelerator",
    )
    _add_choice_of_checks(parser, group)
    _add_baseline(parser, group)
    group.addoption(
        _REPORT,
        dest=f"{_STEM}_report",
        metavar="PATH",
        action="append",
        default=[],
        help="write a report to PATH; the format depends on the extension: .html, .json or .md"
        " (for the summary of a CI job); can be repeated",
    )
    group.addoption(flag("run"), dest=f"{_STEM}_run", default="", help=argparse.SUPPRESS)


def _add_choice_of_checks(parser: pytest.Parser, group: pytest.OptionGroup) -> None:
    """The options select from the checks of all tests; the ini keys are the default of a test."""
    for name, purpose in ((ONLY, "run only these checks"), (_EXCLUDE, "skip these checks")):
        dest = name.strip("-").replace("-", "_")
        group.addoption(
            name,
            dest=dest,
            metavar="CHECKS",
            action="append",
            default=[],
            help=f"{purpose}, separated by commas; quick stands for eight checks",
        )
        text = f"{purpose} unless a test selects its own, separated by commas or line breaks"
        parser.addini(dest, text, type="linelist", default=None)


def _add_baseline(parser: pytest.Parser, group: pytest.OptionGroup) -> None:
    text = "a baseline of known failures: failures listed in FILE are expected"
    group.addoption(BASELINE, dest=f"{_STEM}_baseline", metavar="FILE", help=text)
    parser.addini(f"{_STEM}_baseline", f"{text}; relative to pytest's rootdir", default=None)
    group.addoption(
        UPDATE_BASELINE,
        dest=f"{_STEM}_update_baseline",
        action="store_true",
        help="write the checks that fail in this run to the baseline; keeps the reasons in it",
    )


def _checks_in_options(config: pytest.Config) -> dict[str, list[str]]:
    return {name: config.getoption(f"{_STEM}_{name}") for name in ("only", "exclude")}


def choice_of_checks(config: pytest.Config, prefix: str = "--dataloader-faults-") -> list[str]:
    """The options that choose checks, as the user typed them."""
    chosen = _checks_in_options(config).items()
    return [f"{prefix}{name}={each}" for name, texts in chosen for each in texts]


def checks_to_keep(config: pytest.Config) -> set[str] | None:
    """The checks that the command line selects; None if it does not select any."""
    chosen = _checks_in_options(config)
    if not any(chosen.values()) or sys.platform != "linux":
        return None
    from pytest_dataloader_faults.battery.checking import select_checks

    try:
        return set(select_checks(chosen["only"] or None, chosen["exclude"]))
    except InvalidArgumentError as error:
        message = f"{ONLY} or {_EXCLUDE}: {error}"
        raise pytest.UsageError(message) from error


def run_command(config: pytest.Config, *checks: str) -> str:
    """The command ``run`` that started pytest, with options for *checks*; "" if the user did."""
    arguments = config.getoption(f"{_STEM}_run")
    command = shlex.join(["pytest-dataloader-faults", "run", *checks])
    return f"{command} {arguments}" if arguments else ""


_REPORT = "--dataloader-faults-report"


def reports(config: pytest.Config) -> list[str]:
    """The paths of the reports to write."""
    paths: list[str] = config.getoption(f"{_STEM}_report")
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
    name = f"{_STEM}_baseline"
    path, where = config.getoption(name), BASELINE
    is_updated = config.getoption(f"{_STEM}_update_baseline")
    if config.getoption(f"{_STEM}_run"):  # Its test may have the id of one of the user's tests.
        if path is not None or is_updated:
            message = "run cannot use a baseline, which lists tests. Pass --expected-failures"
            raise InvalidArgumentError(message)
        return BaselineOptions("", "", is_updated=False)
    if path is None and (path := config.getini(name)) is not None:
        where = f"ini key {name}"
        path = path and os.path.relpath(config.rootpath / path, config.invocation_params.dir)
    if path == "":
        message = f"baseline='' from {where} must be the path of a file, such as baseline.json"
        raise InvalidArgumentError(message)
    if path:
        _require_other_reports(config, path, where)
    if is_updated and not path:
        message = f"{UPDATE_BASELINE} needs the baseline: add {BASELINE}=FILE"
        raise InvalidArgumentError(message)
    return BaselineOptions(path or "", where, is_updated)


def _require_other_reports(config: pytest.Config, baseline: str, where: str) -> None:
    """Refuse to write a report to the file of the *baseline*, which *where* names."""
    for path in config.getoption(f"{_STEM}_report"):
        if os.path.realpath(path) == os.path.realpath(baseline):
            message = (
                f"{_REPORT}={path} would overwrite the baseline, because {where} names the same"
                " file. Write the report to another file"
            )
            raise InvalidArgumentError(message)


def flag(name: str) -> str:
    """The command-line option of *name*."""
    return f"--dataloader-faults-{name.replace('_', '-')}"


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


def command_line(config: pytest.Config) -> str:
    """The options of this run, as the user typed them."""
    typed = {name: config.getoption(f"{_STEM}_{name}") for name in _OPTIONS}
    return " ".join(f"{flag(name)}={value}" for name, value in typed.items() if value)


def read_options(config: pytest.Config) -> None:
    """Check the ini keys and options, and keep their values with *config*."""
    values: dict[str, Any] = {}
    for name in _OPTIONS:
        values.update(
            _parse_value(name, config.getini(f"{_STEM}_{name}"), f"ini key {_STEM}_{name}")
        )
        values.update(_parse_value(name, config.getoption(f"{_STEM}_{name}"), flag(name)))
    config.stash[_values] = {**values, **_checks_in_ini(config)}
    _require_checks(config)


def _require_checks(config: pytest.Config) -> None:
    """Reject an unknown check in an option. On other systems, no checks are known."""
    for name, checks in _checks_in_options(config).items():
        if checks and sys.platform == "linux":
            from pytest_dataloader_faults.battery.checks import names_of_checks

            names_of_checks(flag(name), checks)
    checks_to_keep(config)


def _checks_in_ini(config: pytest.Config) -> dict[str, list[str]]:
    """The checks that the ini keys ``only`` and ``exclude`` name, if they are set.

    An option of the same name overrides its key, and the option ``only`` overrides both.
    """
    keys = [(name, f"{_STEM}_{name}") for name in ("only", "exclude")]
    checks_by_name = {
        name: config.getini(key) for name, key in keys if config.getini(key) is not None
    }
    for name, checks in checks_by_name.items():
        where = f"ini key {_STEM}_{name}"
        if not checks:
            message = f"{where} names no check. Name at least one, such as 'pickles, open-error'"
            raise InvalidArgumentError(message)
        if sys.platform == "linux":  # On other systems, they cannot be imported.
            from pytest_dataloader_faults.battery.checks import names_of_checks

            names_of_checks(where, checks)
    options = {name for name, checks in _checks_in_options(config).items() if checks}
    return (
        {}
        if "only" in options
        else {name: checks_by_name[name] for name in checks_by_name.keys() - options}
    )


def options_for(config: pytest.Config, marks: Iterable[pytest.Mark] = ()) -> ItemOptions:
    """Return the options of a test with *marks*, the closest first.

    If a marker has ``only``, the ini key ``exclude`` is ignored, because it is further away.
    """
    values, marked = config.stash[_values].copy(), dict[str, Any]()
    for mark in reversed(list(marks)):
        marked.update(_from_marker(mark))
    if "only" in marked:
        values.pop("exclude", None)
    usual = {name: option.value for name, option in _OPTIONS.items()}
    values = {**usual, **values, **marked}
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
    for name in set(values) & set(_OPTIONS):
        values.update(_parse_value(name, values[name], f"@pytest.mark.{_STEM}"))
    return values


def _parse_value(name: str, value: Any, where: str) -> dict[str, Any]:
    """Return ``{name: value}`` with the value in its type; empty if *where* does not set it."""
    if value is None:
        return {}
    option = _OPTIONS[name]
    if option.read(value) is None:
        return {name: None}
    rule = RULES[name]
    with contextlib.suppress(ValueError):
        typed = option.kind(value) if isinstance(value, str) else value
        if rule.allows(typed):
            return {name: option.kind(typed)}
    allowed, _, _ = rule.allowed.partition(", or None")
    allowed += "" if option.word is None else f", or {option.word!r}"
    message = f"{name}={exceptions._format_value(value)} from {where} must be {allowed}"
    raise InvalidArgumentError(message)


CALLED = pytest.StashKey[bool]()
"""Set for an item once its check was called."""
NOT_RUN = pytest.StashKey[str]()
"""Why an item was skipped, and its check did not run."""
NOT_APPLICABLE = pytest.StashKey[str]()
"""Why an item was skipped before its check, which cannot run on this machine."""


def runs_check(node: pytest.Item) -> bool:
    """Whether *node* runs a check."""
    return "fault_check" in getattr(node, "fixturenames", ())


def check_name_of(node: pytest.Item) -> str:
    """The name of the check of *node*, or of the fixture if it cannot be parametrized."""
    parameters = getattr(getattr(node, "callspec", None), "params", {})
    return str(parameters.get("fault_check", "fault_check"))
