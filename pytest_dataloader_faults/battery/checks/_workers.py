"""Checks that take from workers what they need to live: descriptors, and their lives. Pure."""

from __future__ import annotations

from pytest_dataloader_faults.battery.checks._base import Check, NotApplicable, Plan, Recon, path_of
from pytest_dataloader_faults.faults import DescriptorExhaustion, WorkerKilled
from pytest_dataloader_faults.outcomes import Outcome
from pytest_dataloader_faults.outcomes._judge._deaths import torch_dropped_a_batch

_HALVES = 2


def _killed_in_the_middle(recon: Recon) -> Plan:
    if recon.fetches < _HALVES:
        return NotApplicable(f"worker 0 makes {recon.fetches} batches, fewer than {_HALVES}")
    return (WorkerKilled(at=recon.fetches // _HALVES + 1),)


def _killed_while_it_reads(recon: Recon) -> Plan:
    if not (recon.read and recon.readers):
        return recon.nothing("read")
    # In its first batch: a reader may keep the interpreter lock, without which none that was made
    # before could be handed over.
    return (WorkerKilled(reading=path_of(recon.read), worker=min(recon.readers)),)


def _killed_at_the_end(recon: Recon) -> Plan:
    if recon.fetches < _HALVES:
        return NotApplicable(f"worker 0 makes {recon.fetches} batches, and the first is the last")
    return (WorkerKilled(at=recon.fetches),)


def _needs_no_descriptor(recon: Recon, outcome: Outcome) -> str | None:
    opens = [counts[0] for worker in recon.control.workers for counts in worker.files.values()]
    if not outcome.fired and not any(opens):
        return recon.nothing("open").reason if recon.is_blind else "its workers need no descriptor"
    if torch_dropped_a_batch(outcome):
        return (
            "its workers need no descriptor for the samples, but torch needs one to share a batch;"
            " where that fails, torch's queue thread prints the error and drops the batch, and the"
            " loader waits for ever, whatever the dataset does"
        )
    return None


WORKERS = (
    Check(
        "descriptor-exhaustion",
        "no descriptor is left",
        lambda _: (DescriptorExhaustion(),),
        moot=_needs_no_descriptor,
    ),
    Check("worker-killed-first", "a worker dies at once", lambda _: (WorkerKilled(),)),
    Check("worker-killed-middle", "a worker dies half way", _killed_in_the_middle),
    Check("worker-killed-last", "a worker dies near its end", _killed_at_the_end),
    Check("worker-killed-reading", "a worker dies inside a read", _killed_while_it_reads),
    Check(
        "worker-killed-sending",
        "a worker dies as it passes a batch",
        lambda _: (WorkerKilled(sending=True),),
    ),
)
