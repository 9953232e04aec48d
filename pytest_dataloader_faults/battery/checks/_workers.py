"""Checks that take descriptors from workers, or kill them. Pure."""

from __future__ import annotations

from pytest_dataloader_faults.battery._workload import NotApplicable, Workload
from pytest_dataloader_faults.battery.checks._base import Check, Plan
from pytest_dataloader_faults.faults import DescriptorExhaustion, WorkerKilled
from pytest_dataloader_faults.outcomes import Outcome
from pytest_dataloader_faults.outcomes._judge._errors import torch_dropped_a_batch

_HALVES = 2


def _killed_in_the_middle(workload: Workload) -> Plan:
    fetches = workload.fetches
    if fetches < _HALVES:
        return NotApplicable(f"worker 0 makes {fetches} batches, fewer than {_HALVES}")
    return (WorkerKilled(at=fetches // _HALVES + 1),)


def _killed_reading(workload: Workload) -> Plan:
    if not workload.readers:
        return workload.no_target("read")
    # In its first batch: a reader may keep the interpreter lock, and then the worker could not hand
    # over the batches that it made before.
    return (WorkerKilled(reading=workload.read.path, worker=min(workload.readers)),)


def _killed_at_the_end(workload: Workload) -> Plan:
    fetches = workload.fetches
    if fetches < _HALVES:
        return NotApplicable(f"worker 0 makes {fetches} batches, and the first is the last")
    return (WorkerKilled(at=fetches),)


def _needs_no_descriptor(workload: Workload, outcome: Outcome) -> str | None:
    opens = [each.opens for worker in workload.control.workers for each in worker.files.values()]
    if not outcome.fired and not any(opens):
        if workload.is_python_engine:
            return workload.no_target("open").reason
        return "its workers need no descriptor"
    if torch_dropped_a_batch(outcome):
        return (
            "its workers need no descriptor for the samples, but torch needs one to share a batch."
            " Where that fails, torch's queue thread prints the error and drops the batch, and the"
            " loader waits forever, whatever the dataset does"
        )
    return None


WORKERS = (
    Check(
        "descriptor-exhaustion",
        "handles a worker that has no free descriptor",
        lambda _: (DescriptorExhaustion(),),
        skip_reason=_needs_no_descriptor,
    ),
    Check(
        "worker-killed-first",
        "handles a worker that dies in its first batch",
        lambda _: (WorkerKilled(),),
    ),
    Check("worker-killed-middle", "handles a worker that dies half way", _killed_in_the_middle),
    Check("worker-killed-last", "handles a worker that dies in its last batch", _killed_at_the_end),
    Check("worker-killed-reading", "handles a worker that dies inside a read", _killed_reading),
    Check(
        "worker-killed-sending",
        "handles a worker that dies while it sends a batch",
        lambda _: (WorkerKilled(sending=True),),
    ),
)
