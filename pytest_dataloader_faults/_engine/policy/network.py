"""Which fault is due for a TCP connection. Pure."""

from __future__ import annotations

from typing import NamedTuple

from pytest_dataloader_faults import faults as vocabulary
from pytest_dataloader_faults._engine.policy import Actions, Fail, FaultPolicy, Operation

CONNECT = "connect"
"""How firings name the making of a connection."""


class CutOff(NamedTuple):
    """The connection ends at *offset* of an answer: it is reset, or closed as at its end."""

    offset: int
    is_reset: bool


def connect_actions(policy: FaultPolicy, operation: Operation) -> Actions:
    """For a TCP connection that is about to be made: Fail."""
    if not policy.armed:
        return []
    policy.tallies["connections"][operation.path] += 1
    fault = policy.fire_first_due(vocabulary.ConnectError, operation)
    return [Fail(fault.errno)] if fault else []


def answer_actions(policy: FaultPolicy, operation: Operation) -> Actions:
    """For the start of a peer's answer: Hang or Delay."""
    return policy.delay_actions(operation) if policy.armed else []


def answer_cut_off(
    policy: FaultPolicy, operation: Operation, begin: int, end: int
) -> CutOff | None:
    """For the bytes of an answer from *begin* to *end*: whether it ends within them."""

    def is_among(fault: vocabulary.ConnectionReset | vocabulary.ConnectionClosed) -> bool:
        return begin <= fault.after < end

    if not policy.armed:
        return None
    if reset := policy.fire_first_due(vocabulary.ConnectionReset, operation, is_among):
        return CutOff(reset.after, is_reset=True)
    closed = policy.fire_first_due(vocabulary.ConnectionClosed, operation, is_among)
    return CutOff(closed.after, is_reset=False) if closed else None
