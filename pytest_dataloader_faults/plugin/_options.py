"""Options, ini keys and marker arguments, and the settings that they make for one test.

From weak to strong: the default, the ini key, the command-line option, the marker (the closest).
"""

from __future__ import annotations

import contextlib
import inspect
import os
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
"""The attribute of pytest's reports that has what checks found: a list of items as plain data."""
ONLY, _EXCLUDE = "--dataloader-faults-only", "--dataloader-faults-exclude"
WRITE_KNOWN = "--dataloader-faults-write-known"
_given = pytest.StashKey[dict[str, Any]]()


class ItemOptions(NamedTuple):
    """What the ini keys, the options and the markers say of one test.

    *settings*: arguments of ``Settings``. *given*: those that are there because somebody gave them.
    """

    engine: str
    not_reproduced: str
    settings: Mapping[str, Any]
    given: Mapping[str, Any]
    only: str | Iterable[str] | None = None
    exclude: str | Iterable[str] = ()
    expected_failures: Mapping[str, str] | None = None


_OPTIONS = {
    **OPTIONS,
    "not_reproduced": Option(
        "warn", "what a check does if one trial fails and two repeats of it pass: warn or fail"
    ),
}
_OF_CHECKS = ("only", "exclude", "expected_failures")
MARKER = inspect.Signature(
    [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY) for name in (*_OF_CHECKS, *_OPTIONS)]
)
"""The arguments of the marker, each of which may be left out."""
_PURPOSE = "Choose the checks of fault_check, and how fault tests run; see check_dataset()."


def add_options(parser: pytest.Parser) -> None:
    """Declare ``--dataloader-faults-*`` and the ini keys of the same names."""
    group = parser.getgroup(
        "dataloader-faults", "storage and process faults under PyTorch DataLoaders"
    )
    for name, option in _OPTIONS.items():
        text = f"{option.help} (default: {option.default})"
        group.addoption(flag(name), dest=f"{_STEM}_{name}", metavar=name.upper(), help=text)
        parser.addini(f"{_STEM}_{name}", text, default=None)
    group.addoption(
        "--dataloader-faults-require-gpu",
        dest=f"{_STEM}_require_gpu",
        action="store_true",
        help="fail the tests marked gpu where torch finds no accelerator, and do not skip them",
    )
    _add_named_datasets(group)
    _add_choice_of_checks(parser, group)
    _add_known_failures(parser, group)
    group.addoption(
        _REPORT,
        dest=f"{_STEM}_report",
        metavar="PATH",
        action="append",
        default=[],
        help="write what checks found to PATH, in the form of its ending: .html, .json, .md (for"
        " the summary of a CI job) or .gitlab.json (GitLab's code quality); may be given several"
        " times",
    )
    group.addoption(
        "--dataloader-faults-github",
        dest=f"{_STEM}_github",
        choices=("auto", "off"),
        default="auto",
        help="auto: in a job of GitHub Actions, annotate failed checks and add to its summary",
    )


def _add_named_datasets(group: pytest.OptionGroup) -> None:
    group.addoption(
        "--dataloader-faults-dataset",
        dest=f"{_STEM}_dataset",
        metavar="MODULE:FUNCTION",
        action="append",
        default=[],
        help="run the battery on the dataset or loader that this function returns; no test file is"
        " needed, and without paths none is run; may be given several times",
    )


def _add_choice_of_checks(parser: pytest.Parser, group: pytest.OptionGroup) -> None:
    """The options leave some checks of all tests; the ini keys are what tests ask by default."""
    for name, what in ((ONLY, "ask only these checks"), (_EXCLUDE, "leave out these checks")):
        dest = name.strip("-").replace("-", "_")
        group.addoption(
            name,
            dest=dest,
            metavar="CHECKS",
            action="append",
            default=[],
            help=f"{what}, separated by commas; quick stands for eight",
        )
        text = f"{what} where a test does not choose, separated by commas or line breaks"
        parser.addini(dest, text, type="linelist", default=None)


def _add_known_failures(parser: pytest.Parser, group: pytest.OptionGroup) -> None:
    text = "a file of known failures: what fails as it says is expected to fail"
    dest = f"{_STEM}_known"
    group.addoption("--dataloader-faults-known", dest=dest, metavar="PATH", help=text)
    parser.addini(dest, f"{text}; relative to the root directory of pytest", default=None)
    group.addoption(
        WRITE_KNOWN,
        dest=f"{_STEM}_write_known",
        metavar="PATH",
        help="write the checks that fail in this run to PATH, for --dataloader-faults-known; the"
        " reasons that are in that file stay",
    )
    text = "fail the run if a known failure no longer fails, or belongs to no test"
    dest = f"{_STEM}_known_strict"
    group.addoption("--dataloader-faults-known-strict", dest=dest, action="store_true", help=text)
    parser.addini(dest, text, type="bool", default=False)


def named_datasets(config: pytest.Config) -> dict[str, list[str]]:
    """The datasets that the command line names, and which checks to ask; empty without any."""
    values = config.getoption(f"{_STEM}_dataset")
    return {"values": values, **_chosen_by_options(config)} if values else {}


def _chosen_by_options(config: pytest.Config) -> dict[str, list[str]]:
    return {name: config.getoption(f"{_STEM}_{name}") for name in ("only", "exclude")}


def checks_to_keep(config: pytest.Config) -> set[str] | None:
    """The checks that the command line leaves of all tests; None where it chooses none."""
    chosen = _chosen_by_options(config)
    if not any(chosen.values()) or sys.platform != "linux":
        return None
    from pytest_dataloader_faults.battery.checking import select_checks

    try:
        return set(select_checks(chosen["only"] or None, chosen["exclude"]))
    except InvalidArgumentError as error:
        message = f"{ONLY} or {_EXCLUDE}: {error}"
        raise pytest.UsageError(message) from error


_REPORT = "--dataloader-faults-report"


def reports(config: pytest.Config) -> list[str]:
    """The paths of the reports to write."""
    paths: list[str] = config.getoption(f"{_STEM}_report")
    for path in paths:
        from pytest_dataloader_faults.report.files import require_known

        require_known(path)
    return paths


def is_for_github(config: pytest.Config) -> bool:
    """Whether to annotate failures for GitHub."""
    return exceptions._is_github_job() and config.getoption(f"{_STEM}_github") == "auto"


class KnownFiles(NamedTuple):
    """What the options say of known failures.

    *read*, *write*: paths of files, "" for none. *where*: what names the first one. *strict*: the
    option or ini key by which a run fails if something in it does not fail; "" for neither.
    """

    read: str
    where: str
    write: str
    strict: str


def known_files(config: pytest.Config) -> KnownFiles:
    """The files of known failures, relative to where pytest was started.

    pytest's ``--runxfail`` has what is expected to fail reported as any failure.
    """
    name = f"{_STEM}_known"
    read, where = config.getoption(name), flag("known")
    if read is None and (read := config.getini(name)) is not None:
        where = f"ini key {name}"
        read = read and os.path.relpath(config.rootpath / read, config.invocation_params.dir)
    write = config.getoption(f"{_STEM}_write_known")
    for path, place in ((read, where), (write, WRITE_KNOWN)):
        if path == "":
            message = f"known='' from {place} must be the path of a file, such as known.json"
            raise InvalidArgumentError(message)
    if config.getoption("runxfail", default=False):
        read = None
    by_option, by_key = config.getoption(f"{name}_strict"), config.getini(f"{name}_strict")
    strict = flag("known_strict") if by_option else f"ini key {name}_strict" if by_key else ""
    return KnownFiles(read or "", where, write or "", strict)


def flag(name: str) -> str:
    """The command-line option of *name*."""
    return f"--dataloader-faults-{name.replace('_', '-')}"


def marker_line() -> str:
    """The entry of ``pytest --markers``."""
    names = ", ".join(f"{name}=..." for name in MARKER.parameters)
    return for_a_terminal(f"{_STEM}({names}): {_PURPOSE}")


def for_a_terminal(entry: str) -> str:
    """An entry of ``pytest --markers`` in lines of 80 characters; pytest breaks none itself."""
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
    given: dict[str, Any] = {}
    for name in _OPTIONS:
        given.update(_parsed(name, config.getini(f"{_STEM}_{name}"), f"ini key {_STEM}_{name}"))
        given.update(_parsed(name, config.getoption(f"{_STEM}_{name}"), flag(name)))
    config.stash[_given] = {**given, **_chosen_by_ini(config)}


def _chosen_by_ini(config: pytest.Config) -> dict[str, list[str]]:
    """The checks that the ini keys ``only`` and ``exclude`` name, where they are given.

    An option of the same name holds in the place of the key, and ``only`` in that of both.
    """
    keys = [(name, f"{_STEM}_{name}") for name in ("only", "exclude")]
    found = {name: config.getini(key) for name, key in keys if config.getini(key) is not None}
    for name, checks in found.items():
        where = f"ini key {_STEM}_{name}"
        if not checks:
            message = f"{where} names no check. Name some, as in 'pickles, open-error'"
            raise InvalidArgumentError(message)
        if sys.platform == "linux":  # Elsewhere the checks cannot be imported, or asked.
            from pytest_dataloader_faults.battery.checks import names_of_checks

            names_of_checks(where, checks)
    given = {name for name, checks in _chosen_by_options(config).items() if checks}
    return {} if "only" in given else {name: found[name] for name in found.keys() - given}


def options_for(config: pytest.Config, marks: Iterable[pytest.Mark] = ()) -> ItemOptions:
    """What holds for a test with *marks*, the closest first.

    Where a marker has ``only``, the ini key ``exclude`` does not hold: it is further away.
    """
    given, marked = config.stash[_given].copy(), dict[str, Any]()
    for mark in reversed(list(marks)):
        marked.update(_from_marker(mark))
    if "only" in marked:
        given.pop("exclude", None)
    given.update(marked)
    usual = {name: option.value for name, option in _OPTIONS.items()}
    values = {**usual, **given}
    own = {name: values[name] for name in ItemOptions._fields if name in values}
    settings = {name: values[name] for name in OPTIONS}
    # Where a marker says "auto", it takes back what an option says, and nothing is given.
    taken_back = {name for name in OPTIONS if values[name] is usual[name] is None}
    given = {name: values[name] for name in OPTIONS if name in given.keys() - taken_back}
    return ItemOptions(**own, settings=settings, given=given)


@contextlib.contextmanager
def bad_values_fail(node: pytest.Item) -> Iterator[None]:
    """Fail *node* for a bad argument of its marker, without frames of this plugin."""
    try:
        yield
    except InvalidArgumentError as error:
        raise pytest.fail.Exception(f"{node.nodeid}: {error}", pytrace=False) from None


def _from_marker(mark: pytest.Mark) -> dict[str, Any]:
    try:
        given = MARKER.bind_partial(*mark.args, **mark.kwargs).arguments
    except TypeError as error:
        takes = " ".join(marker_line().partition(":")[0].split())
        message = f"@pytest.mark.{_STEM}: {error}. Give arguments by keyword: {takes}"
        raise InvalidArgumentError(message) from error
    known = {name: value for name, value in given.items() if value is not None}
    for name in set(known) & set(_OPTIONS):
        known.update(_parsed(name, known[name], f"@pytest.mark.{_STEM}"))
    return known


def _parsed(name: str, value: Any, where: str) -> dict[str, Any]:
    """``{name: value}`` with the value in its type; empty if *where* gives none."""
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
    message = f"{name}={exceptions._shown(value)} from {where} must be {allowed}"
    raise InvalidArgumentError(message)


class OfNamedDataset(NamedTuple):
    """What an item asks of a dataset that the command line names."""

    check: str
    arguments: str
    """What has pytest run this item alone."""


NAMED = pytest.StashKey[OfNamedDataset]()
CALLED = pytest.StashKey[bool]()
"""An item has it once its check was called."""
NOT_ASKED = pytest.StashKey[str]()
"""Why an item was skipped, and its check was not asked."""
NOT_APPLICABLE = pytest.StashKey[str]()
"""Why an item was skipped before its check, which cannot be asked on this machine."""


def asks_check(node: pytest.Item) -> bool:
    """Whether *node* asks one check, in a test or of a dataset that the command line names."""
    return "fault_check" in getattr(node, "fixturenames", ()) or NAMED in node.stash


def check_asked(node: pytest.Item) -> str:
    """The name of the check that *node* asks; of the fixture, where it cannot be parametrized."""
    if NAMED in node.stash:
        return node.stash[NAMED].check
    given = getattr(getattr(node, "callspec", None), "params", {})
    return str(given.get("fault_check", "fault_check"))
