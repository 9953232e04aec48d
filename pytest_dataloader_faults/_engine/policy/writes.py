"""Which fault is due for a write to a file. Pure."""

from __future__ import annotations

from typing import Any

from pytest_dataloader_faults import faults as vocabulary
from pytest_dataloader_faults._engine.calls import CALLS
from pytest_dataloader_faults._engine.plan import FaultCounter
from pytest_dataloader_faults._engine.policy import (
    Actions,
    Die,
    Fail,
    FaultPolicy,
    Operation,
    Short,
)
from pytest_dataloader_faults.faults.globs import is_below

OF_INHERITED = "write to a file that was open before the worker started"
"""How ``unobserved`` names writes that cannot fail."""


def write_actions(policy: FaultPolicy, operation: Operation, length: int) -> Actions:
    """For a write of *length* bytes, or a call that makes earlier writes last: Die, Fail or Short.

    If a call's length is unknown, it is 0.
    """
    if not policy.armed:
        return []
    policy.count(operation.path, "writes")
    call = CALLS[operation.call]
    for death in policy.death_actions(operation, "writing") if call.has_data else ():
        if isinstance(death, Die) and _is_allowed(policy, death.counter, operation):
            return [death]
    for failing in policy.faults.counters_for_path(vocabulary.WriteError, operation.path):
        if _fires(policy, failing, operation):
            return [Fail(failing.fault.errno)]
    for short in policy.faults.counters_for_path(vocabulary.ShortWrite, operation.path):
        max_bytes = short.fault.most(length)
        is_cut = call.writes_buffers and max_bytes < length
        if is_cut and _fires(policy, short, operation):
            return [Short(max_bytes)]
    return []


def _fires(policy: FaultPolicy, counter: FaultCounter[Any], operation: Operation) -> bool:
    """Whether it is the turn of *counter*'s fault; it fires by that."""
    is_due = counter.reach() and _is_allowed(policy, counter, operation)
    if is_due:
        policy.fire(counter, *operation)
    return is_due


def _is_allowed(policy: FaultPolicy, counter: FaultCounter[Any], operation: Operation) -> bool:
    """Whether the file may be harmed. A fault that is due elsewhere is refused."""
    folders = policy.faults.own_folders
    if folders is None or is_below(operation.path, folders):
        return True
    policy.refuse(
        f"{counter.fault!r} was due in a {operation.call} of {operation.path}. A failed write would"
        " damage that file for good, so write faults are only allowed in a folder created for the"
        " trial: let make_dataset take a folder (each trial passes an empty one), and write there"
    )
    return False
