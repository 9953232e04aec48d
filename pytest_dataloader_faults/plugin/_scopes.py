"""Hooks that fail a test which calls ``inject`` and never enters its scope: nothing was armed.

No module of the injection is imported for that: where none is, it was not called.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pytest_dataloader_faults.injection import _Call

_calls = pytest.StashKey[dict["_Call", None]]()
"""Where an item keeps the calls of ``inject`` that it has made, until they are entered."""
_INJECTION = "pytest_dataloader_faults.injection"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item: pytest.Item) -> Iterator[None]:
    """Look at what its fixtures call."""
    with _are_entered(item, "setup"):
        yield


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """Look at what the test calls."""
    with _are_entered(item, "call"):
        yield


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item) -> Iterator[None]:
    """Look at the scopes that fixtures gave, and that were not entered."""
    with _are_entered(item, "teardown"):
        yield


@contextlib.contextmanager
def _are_entered(item: pytest.Item, phase: str) -> Iterator[None]:
    """Fail *item* for a call of ``inject`` whose scope was not entered by the end of its *phase*.

    What a fixture has made in the set-up may be entered until the teardown is over.
    """
    calls = item.stash.setdefault(_calls, {})
    lasting = {"setup": calls, "call": set(calls), "teardown": ()}[phase]
    injection = sys.modules.get(_INJECTION)
    watched = injection._watched(calls) if injection else contextlib.nullcontext()
    try:
        with watched:
            yield
    except BaseException:  # It goes first.
        if told := _never_entered(calls, lasting):
            item.add_report_section(phase, "dataloader-faults", told)
        raise
    if injection is None and _INJECTION in sys.modules:  # The phase itself has imported it.
        calls.update(sys.modules[_INJECTION]._unwatched)
    if told := _never_entered(calls, lasting):
        pytest.fail(told, pytrace=False)


def _never_entered(calls: dict[_Call, None], lasting: Collection[_Call]) -> str:
    """What is wrong with *calls* that will not be entered; *lasting*: those that may be, later."""
    found = [each for each in calls if each.is_gone or each not in lasting]
    for each in found:
        each.settle()
        calls.pop(each, None)
    return "\n".join(f"{os.path.relpath(each.file)}:{each.line}: {each.text}" for each in found)
