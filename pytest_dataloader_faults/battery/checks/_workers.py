"""Checks that take from workers what they need to live: descriptors, and their lives. Pure."""

from __future__ import annotations

from pytest_dataloader_faults._engine.globs import is_excluded
from pytest_dataloader_faults.battery.checks._base import Check, NotApplicable, Plan, Recon, path_of
from pytest_dataloader_faults.faults import (
    DescriptorExhaustion,
    SharedMemoryExhaustion,
    WorkerKilled,
)
from pytest_dataloader_faults.outcomes import Outcome

_HALVES = 2
_SCARCITY = (DescriptorExhaustion, SharedMemoryExhaustion)


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
    if waits_for_a_lost_batch(outcome):
        return (
            "its workers need no descriptor for the samples, but torch needs one to share a batch;"
            " where that fails, torch's queue thread prints the error and drops the batch, and the"
            " loader waits for ever, whatever the dataset does"
        )
    return None


def waits_for_a_lost_batch(outcome: Outcome) -> bool:
    """Whether torch hangs by itself: only what it needs to share a batch was taken from it."""
    stuck = outcome.timed_out and outcome.phase != "recovery"
    fired = [each for each in outcome.faults if each.fired]
    scarce = all(isinstance(each.fault, _SCARCITY) for each in fired)
    return bool(stuck and fired and scarce) and not _met_data(outcome)


def _met_data(outcome: Outcome) -> bool:
    """Whether a fault befell a file that the dataset itself may have opened."""
    paths = [one.path for each in outcome.faults for one in each.firings]
    return any(path and not is_excluded(path) for path in paths)


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
