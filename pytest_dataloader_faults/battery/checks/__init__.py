"""The checks of the battery: what each promises, and the faults it needs. Pure.

A check gets the workload of the fault-free run. It yields scenarios, or raises NotApplicable.
"""

from __future__ import annotations

import fnmatch
import inspect
import os
from collections.abc import Callable, Iterable
from dataclasses import replace

from pytest_dataloader_faults._arguments import suggest_name
from pytest_dataloader_faults._settings import Settings
from pytest_dataloader_faults.battery.checks import network, resume, workers
from pytest_dataloader_faults.battery.checks._base import WORKERS_AGREE as WORKERS_AGREE
from pytest_dataloader_faults.battery.checks._base import Check as Check
from pytest_dataloader_faults.battery.checks._base import Scenario as Scenario
from pytest_dataloader_faults.battery.checks._base import Scenarios as Scenarios
from pytest_dataloader_faults.battery.checks._base import check as check
from pytest_dataloader_faults.battery.checks._epochs import EPOCHS, pin_memory
from pytest_dataloader_faults.battery.checks.files import FILES, LISTINGS
from pytest_dataloader_faults.battery.checks.files import describe_start as describe_start
from pytest_dataloader_faults.battery.checks.memory import copy_on_write
from pytest_dataloader_faults.battery.checks.network import (
    note_on_connections as note_on_connections,
)
from pytest_dataloader_faults.battery.checks.ranks import RANKS, WITHOUT_RANKS
from pytest_dataloader_faults.battery.checks.ranks import RANKS_AGREE as RANKS_AGREE
from pytest_dataloader_faults.exceptions import InvalidArgumentError
from pytest_dataloader_faults.outcomes.text import format_value, shorten

CHECKS: dict[str, Check] = {
    check.name: check
    for group in (
        *(EPOCHS, (copy_on_write, workers.memory_exhaustion), FILES, LISTINGS, workers.DEATHS),
        *((workers.write_error, workers.file_locks, workers.thread_exhaustion), network.NETWORK),
        *((resume.resumes,), RANKS, (pin_memory,)),
    )
    for check in group
}
"""All checks by name: those of this package, then those that users have registered."""
CAUSE_RULES = (network.find_cause, workers.find_cause, workers.find_cause_of_wait)
HOOK = "pytest_dataloader_faults_checks"
"""The pytest hook that returns the checks of a user."""

GROUPS = {
    "quick": (
        "workers-agree",
        "read-before-fork",
        "pickles",
        "missing-file",
        "empty-file",
        "truncated-file",
        "read-error",
        "listing-order",
    ),
    "files": tuple(check.name for check in FILES),
    "listings": tuple(check.name for check in LISTINGS),
    "writes": (workers.write_error.name,),
    "network": tuple(check.name for check in network.NETWORK),
    "ranks": tuple(check.name for check in RANKS),
}
"""Names for several checks. ``quick`` has those that find most of what all of them find in the
classes of docs/evidence/datasets.md, in a fraction of the time: see tests/battery/test_quick.py.
"""


def missing_requirement(check: Check, settings: Settings) -> str:
    """What *settings* must have for the trials of *check*; "" if they have it."""
    return WITHOUT_RANKS if check.scenario.ranks and settings.ranks is None else ""


def replace_registered(lists: Iterable[object]) -> Callable[[], None]:
    """Replace the checks that a user added by those in *lists*; return a function that undoes it.

    Raises:
        InvalidArgumentError: One of them is not a check, or its name is already taken.
    """
    before = dict(CHECKS)

    def undo() -> None:
        CHECKS.clear()
        CHECKS.update(before)

    for name, earlier in before.items():
        if earlier.origin:
            del CHECKS[name]
    try:
        for checks in lists:
            for each in checks if isinstance(checks, Iterable) else [checks]:
                _register(each)
    except InvalidArgumentError:
        undo()
        raise
    return undo


def _register(entry: object) -> None:
    if not isinstance(entry, Check):
        text = shorten(format_value(entry))
        message = f"{HOOK}() returned {text}, which must be a list of Check objects"
        raise InvalidArgumentError(message)
    code = getattr(inspect.unwrap(entry.plan), "__code__", None)
    origin = os.path.relpath(code.co_filename) if code else type(entry.plan).__module__
    owner = "a group of checks" if entry.name in GROUPS else ""
    if entry.name in CHECKS:
        owner = f"a check in {CHECKS[entry.name].origin or 'this package'}"
    if owner:
        named = f"a check named {entry.name!r}, which is the name of {owner}"
        raise InvalidArgumentError(f"{origin}: {HOOK}() returned {named}. Rename it")
    CHECKS[entry.name] = replace(entry, origin=origin)


def names_of_checks(argument: str, names: str | Iterable[str]) -> set[str]:
    """*names* as a set; each must be a check's, that of a group, or a glob for names of checks.

    A text may have several, between commas.
    """
    name_lists = [names] if isinstance(names, str) or not isinstance(names, Iterable) else names
    texts = list(name_lists)
    if not all(isinstance(each, str) for each in texts):
        message = f"{argument}={names!r} must be the name of a check or a list of names"
        raise InvalidArgumentError(message)
    parsed_names = {name for each in texts for part in each.split(",") if (name := part.strip())}
    if texts and not parsed_names:
        message = (
            f"{argument}={names!r} must name one or more checks, for example 'pickles, open-error'"
        )
        raise InvalidArgumentError(message)
    checks = {each for name in parsed_names for each in _expand(argument, name)}
    require_checks(argument, checks)
    return checks


def _expand(argument: str, name: str) -> Iterable[str]:
    """The checks of a group, or those that match a glob; else *name* itself."""
    if not set(name) & set("*?["):
        return GROUPS.get(name, (name,))
    if not (matching := fnmatch.filter(CHECKS, name)):
        message = f"{argument} contains {name!r}, which matches no check: {', '.join(CHECKS)}"
        raise InvalidArgumentError(message)
    return matching


def require_checks(argument: str, names: Iterable[str]) -> None:
    """Raise InvalidArgumentError if one of *names* is not a check."""
    for name in names:
        if name not in CHECKS:
            choices = tuple(CHECKS) if name in GROUPS else (*CHECKS, *GROUPS)
            advice = suggest_name(str(name), choices) or f"Choose from {', '.join(choices)}"
            message = f"{argument} contains {name!r}, which is not a check. {advice}"
            raise InvalidArgumentError(message)
