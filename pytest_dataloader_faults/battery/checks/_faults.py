"""Checks of faults: in the files and connections of a dataset, and of its workers. Pure."""

from __future__ import annotations

import errno
from collections.abc import Callable
from typing import Any

from pytest_dataloader_faults import faults
from pytest_dataloader_faults._settings.jobs import TrialOptions
from pytest_dataloader_faults.battery._workload import FileSet, NotApplicable, Workload
from pytest_dataloader_faults.battery.checks._base import (
    FLIPS,
    HALF,
    Check,
    Plan,
    Variant,
    for_each_kind,
    on,
    once,
    tails_cut_off,
)
from pytest_dataloader_faults.globs import GlobMatcher
from pytest_dataloader_faults.outcomes import Outcome, Reference, Verdict
from pytest_dataloader_faults.outcomes.contract import Finding
from pytest_dataloader_faults.outcomes.judge.errors import torch_dropped_a_batch
from pytest_dataloader_faults.outcomes.judge.hangs import gave_up
from pytest_dataloader_faults.outcomes.text import counted

_HALVES = 2
_ALL_CUT = 1000
"""So many reads of a worker are cut. Of those that follow, about as many more."""
_PATIENCE = 1.0
"""Seconds. A dataset or a client with a shorter time limit of its own reaches that first."""


def _half_way(times: int | None) -> Callable[[Workload], Plan]:
    def plan(workload: Workload) -> Plan:
        if workload.is_python_engine and not workload.read.paths:
            return workload.no_target("read")
        if workload.reads < _HALVES:
            reason = (
                f"the busiest worker makes {counted(workload.reads, 'read')}, fewer than {_HALVES}"
            )
            return workload.not_reached(reason)
        # Where an even number of items is read, this is the last read of an item and not the first
        # read of the next: it reads content, and not a header.
        nth = max(_HALVES, workload.reads // _HALVES)
        return once(faults.ReadError(workload.read.path, nth=nth, times=times))

    return for_each_kind(plan)


@for_each_kind
def _short(workload: Workload) -> Plan:
    """Two ways: a reader may check that its short header is whole, and not what follows.

    By halves, a reader that reads on needs few calls for a read of any length.
    """
    if not workload.read.paths:
        return workload.no_target("read")
    by_halves = Variant(_cut(workload, HALF), "half of each read")
    if workload.mean_read <= 1:
        return (by_halves,)
    long = _cut(workload, workload.mean_read)
    return (by_halves, Variant(long, f"reads of {counted(workload.mean_read, 'byte')} at most"))


def _cut(workload: Workload, most: float) -> tuple[faults.Fault, ...]:
    """Every read is cut; where a worker makes very many, the first ones, and some of the others."""
    path = workload.read.path
    if workload.reads <= _ALL_CUT:
        return (faults.ShortRead(path, max_bytes=most),)
    every = workload.reads // _ALL_CUT * 2 + 1  # Odd, since headers and data take turns.
    first = faults.ShortRead(path, max_bytes=most, times=_ALL_CUT)
    return (first, faults.ShortRead(path, max_bytes=most, every=every))


def _cannot_be_short(workload: Workload, outcome: Outcome) -> NotApplicable | None:
    if any(each.reached for each in outcome.faults):
        return None
    return workload.not_reached("its workers map their files, or read one byte at a time")


@for_each_kind
def _cut_off(workload: Workload) -> Plan:
    if isinstance(workload.cut, FileSet) and (tails := tails_cut_off(workload)):
        return once(*tails)
    return on("cut", faults.TruncatedFile, keep=0.9)(workload)


@for_each_kind
def _damaged(workload: Workload) -> Plan:
    """All files, and one: what comes in its place can be told while the others are whole."""
    found = workload.content
    if not found.paths:
        return workload.no_target("read")
    if len(found.paths) == 1:
        return once(faults.CorruptedFile(found.path, flips=FLIPS))
    return (
        Variant((faults.CorruptedFile(found.path, flips=FLIPS),), "every file"),
        Variant((faults.CorruptedFile(found.middle, flips=FLIPS),), "one file"),
    )


def _hung(workload: Workload) -> Plan:
    if not workload.readers:
        return workload.no_target("read")
    return once(faults.HungRead(workload.read.path))


def _killed_in_the_middle(workload: Workload) -> Plan:
    fetches = workload.fetches
    if fetches < _HALVES:
        return NotApplicable(f"worker 0 makes fewer than {_HALVES} batches")
    return once(faults.WorkerKilled(at=fetches // _HALVES + 1))


def _killed_reading(workload: Workload) -> Plan:
    if not workload.readers:
        return workload.no_target("read")
    # In its first batch: a reader may keep the interpreter lock, and then the worker could not hand
    # over the batches that it made before.
    return once(faults.WorkerKilled(reading=workload.read.path, worker=min(workload.readers)))


def _killed_sending(workload: Workload) -> Plan:
    if workload.fault_free.start_method == "forkserver":
        return NotApplicable(
            "its workers come from a fork server. Where one of them dies within a message, torch"
            " waits for the rest of it forever, whatever the dataset does: the worker is no child"
            " of the loader's process, and no signal interrupts read(2)"
        )
    return once(faults.WorkerKilled(sending=True))


def _killed_at_the_end(workload: Workload) -> Plan:
    fetches = workload.fetches
    if fetches < _HALVES:
        return NotApplicable(
            f"worker 0 makes {counted(fetches, 'batch')}, and the first is the last"
        )
    return once(faults.WorkerKilled(at=fetches))


def _has_no_descriptor(workload: Workload, outcome: Outcome) -> NotApplicable | None:
    """A mapping outlives its descriptor, and Arrow closes that as soon as it has mapped a file."""
    wanted = GlobMatcher(tuple(path for each in outcome.schedule for path in each.globs))
    if any(each.reached for each in outcome.faults) or any(map(wanted, workload.opened.paths)):
        return None
    reason = "its workers open none of these files, and hold no descriptor of them: they are mapped"
    return workload.not_reached(reason)


def _needs_no_descriptor(workload: Workload, outcome: Outcome) -> NotApplicable | None:
    opens = [each.opens for worker in workload.fault_free.workers for each in worker.files.values()]
    if not outcome.fired and not any(opens):
        if workload.is_python_engine or workload.fault_free.unobserved:
            return workload.no_target("open")
        return NotApplicable("its workers need no descriptor")
    if torch_dropped_a_batch(outcome):
        return NotApplicable(
            "its workers need no descriptor for the samples, but torch needs one to share a batch."
            " Where that fails, torch's queue thread prints the error and drops the batch, and the"
            " loader waits forever, whatever the dataset does"
        )
    return None


FAULTS = (
    Check("open-error", "handles files that cannot be opened", on("opened", faults.OpenError)),
    Check(
        "file-missing",
        "handles a file that does not exist",
        on("opened", faults.OpenError, one=True, errno=errno.ENOENT),
    ),
    Check(
        "permission-denied",
        "handles files that it may not read",
        on("opened", faults.OpenError, errno=errno.EACCES),
    ),
    Check(
        "read-error-first",
        "handles a disk that fails at the first read",
        on("read", faults.ReadError),
    ),
    Check("read-error-later", "handles a disk that fails half way", _half_way(None)),
    Check("read-error-transient", "handles one read error, after which reads work", _half_way(1)),
    Check(
        "short-read",
        "handles reads that return fewer bytes than requested",
        _short,
        skip_reason=_cannot_be_short,
    ),
    Check(
        "truncated-half",
        "handles files that end in the middle",
        on("cut", faults.TruncatedFile, keep=0.5),
    ),
    Check(
        "truncated-empty",
        "handles a file that is empty",
        on("cut", faults.TruncatedFile, one=True, keep=0),
    ),
    Check(
        "truncated-tail",
        "handles files whose end is missing, although they look complete",
        _cut_off,
    ),
    Check(
        "corrupted-file",
        "handles files with damaged bytes",
        _damaged,
    ),
    Check(
        "closed-descriptor",
        "handles a descriptor that is closed while the dataset uses it",
        on("content", faults.ClosedDescriptor),
        skip_reason=_has_no_descriptor,
    ),
    Check(
        "hung-read",
        "raises an error in time where the storage does not answer",
        _hung,
        options=TrialOptions(patience=_PATIENCE),
    ),
    Check(
        "descriptor-exhaustion",
        "handles a worker that has no free descriptor",
        lambda _: once(faults.DescriptorExhaustion()),
        skip_reason=_needs_no_descriptor,
    ),
    Check(
        "worker-killed-first",
        "handles a worker that dies in its first batch",
        lambda _: once(faults.WorkerKilled()),
    ),
    Check("worker-killed-middle", "handles a worker that dies half way", _killed_in_the_middle),
    Check("worker-killed-last", "handles a worker that dies in its last batch", _killed_at_the_end),
    Check("worker-killed-reading", "handles a worker that dies inside a read", _killed_reading),
    Check(
        "worker-killed-sending",
        "handles a worker that dies while it sends a batch",
        _killed_sending,
    ),
)


# What a fault leaves in a file is found by the pass without faults that follows each trial: it
# reads the same files, and has to give the right samples.


def _on_written(plan: Callable[[Workload, Any], Plan]) -> Callable[[Workload], Plan]:
    """*plan*, given the path of what workers write; or why they write nothing that may fail."""

    def checked(workload: Workload) -> Plan:
        written = workload.written
        return written if isinstance(written, NotApplicable) else plan(workload, written.path)

    return checked


@_on_written
def _fails_at_once(_: Workload, path: Any) -> Plan:
    return once(faults.WriteError(path, errno.EIO))


@_on_written
def _fills_up_half_way(workload: Workload, path: Any) -> Plan:
    """Twice: a file may be written by a header and its data, and the error of one be dropped."""
    half = workload.writes // 2 + 1
    return tuple(
        Variant((faults.WriteError(path, errno.ENOSPC, nth=nth),), f"from write {nth} on")
        for nth in (half, half + 1)
        if nth <= workload.writes
    )


@_on_written
def _dies_writing(workload: Workload, path: Any) -> Plan:
    return once(faults.WorkerKilled(writing=path, worker=min(workload.writers)))


WRITES = (
    Check("write-error", "handles files that cannot be written", _fails_at_once),
    Check("disk-full", "handles a disk that is full half way", _fills_up_half_way),
    Check(
        "worker-killed-writing",
        "handles a file that a dying worker left half written",
        _dies_writing,
    ),
)


_WITHIN = 1024
"""Most headers of HTTP are shorter: this many bytes end within the content."""
_NO_CONNECTION = (
    "its workers make no TCP connection. One that was made before they started is not seen: make it"
    " in the worker, at its first sample"
)

_NO_ANSWER = "no server answered on a connection that the engine can see"


def _on_connections(*variants: tuple[str, Callable[..., faults.Fault]]) -> Callable[..., Plan]:
    def plan(workload: Workload) -> Plan:
        found = workload.connections
        if not found.paths:
            return NotApplicable(_NO_CONNECTION)
        return tuple(Variant((make(found.path),), title) for title, make in variants)

    return plan


def _closed_early(kind: Callable[..., faults.Fault]) -> Callable[..., Plan]:
    return _on_connections(
        ("before an answer", kind),
        (f"after {_WITHIN} bytes of an answer", lambda path: kind(path, after=_WITHIN)),
    )


def _has_no_answer(_: Workload, outcome: Outcome) -> NotApplicable | None:
    """A log, a probe and telemetry send only. A session of before the fork answers unseen."""
    is_met = any(each.reached for each in outcome.faults)
    return None if is_met else NotApplicable(_NO_ANSWER)


def _has_no_limit(outcome: Outcome, _: Reference) -> Finding | None:
    """The loader gave up, and the client would not have."""
    waits = sorted({path for each in outcome.workers for path in each.unlimited_waits})
    if not waits or not gave_up(outcome):
        return None
    sentence = f"a worker waited for an answer of {waits[0]} without a time limit of its own"
    ended = "only the loader's timeout, which this check sets, ended that"
    return Finding(Verdict.HUNG, f"{sentence}; {ended}")


NETWORK = (
    Check(
        "connect-error",
        "handles a server that refuses connections",
        _on_connections(("", faults.ConnectError)),
    ),
    Check(
        "connection-reset",
        "handles a server that resets a connection",
        _closed_early(faults.ConnectionReset),
        skip_reason=_has_no_answer,
    ),
    Check(
        "connection-closed",
        "handles a server that closes a connection in the middle of an answer",
        _closed_early(faults.ConnectionClosed),
        skip_reason=_has_no_answer,
    ),
    Check(
        "connection-hung",
        "raises an error in time where a server does not answer",
        _on_connections(("", faults.HungRead)),
        options=TrialOptions(patience=_PATIENCE),
        extra_rule=_has_no_limit,
        skip_reason=_has_no_answer,
    ),
)
