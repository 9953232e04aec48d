"""Which fault of writing is due for a write, and what the write does then. Pure."""

from __future__ import annotations

from typing import Any

from pytest_dataloader_faults import faults as vocabulary
from pytest_dataloader_faults._engine.calls import CALLS
from pytest_dataloader_faults._engine.plan import FaultCounter
from pytest_dataloader_faults._engine.policy import FaultPolicy
from pytest_dataloader_faults._engine.policy.actions import (
    Actions,
    Die,
    Fail,
    Operation,
    Short,
)


def written(policy: FaultPolicy, operation: Operation, length: int) -> Actions:
    """For a write of *length* bytes, or a call that makes earlier writes last: Die, Fail or Short.

    Where a call's length is not known, it is 0.
    """
    with policy.lock:
        if not policy.armed:
            return []
        policy.counter_of(operation.path).writes += 1
        call = CALLS[operation.call]
        for each in policy.death(operation, "writing") if call.has_data else ():
            if isinstance(each, Die) and _is_allowed(policy, each.counter, operation):
                return [each]
        for failing in policy.faults.for_path(vocabulary.WriteError, operation.path):
            if _happens(policy, failing, operation):
                return [Fail(failing.fault.errno)]
        for short in policy.faults.for_path(vocabulary.ShortWrite, operation.path):
            most = short.fault.most(length)
            is_cut = call.writes_buffers and most < length
            if is_cut and _happens(policy, short, operation):
                return [Short(most)]
        return []


def _happens(policy: FaultPolicy, counter: FaultCounter[Any], operation: Operation) -> bool:
    """Whether it is the turn of *counter*'s fault; it fires by that."""
    is_due = counter.reach() and _is_allowed(policy, counter, operation)
    if is_due:
        policy.fire(counter, *operation)
    return is_due


def _is_allowed(policy: FaultPolicy, counter: FaultCounter[Any], operation: Operation) -> bool:
    """Whether the file may be harmed. A fault that is due elsewhere is refused."""
    if policy.faults.may_fail_writes_of(operation.path):
        return True
    policy.refuse(
        f"{counter.fault!r} was due in a {operation.call} of {operation.path}. What a failed write"
        " leaves there would stay, so it may only happen in a folder that is made for the trial:"
        " have make_dataset take a folder (it gets an empty one for each trial), and put what is"
        " written there"
    )
    return False
