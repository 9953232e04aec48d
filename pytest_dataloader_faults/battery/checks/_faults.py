"""Checks with faults in files that are read, and in workers. Pure."""

from __future__ import annotations

import errno

from pytest_dataloader_faults import faults
from pytest_dataloader_faults.battery.checks._base import (
    FLIPS,
    HALF,
    Check,
    Plan,
    Planned,
    Scenario,
    Scenarios,
    faults_at_tails,
    for_each_kind,
    on,
)
from pytest_dataloader_faults.battery.workload import NotApplicable, Workload
from pytest_dataloader_faults.faults.globs import GlobMatcher
from pytest_dataloader_faults.outcomes import Outcome
from pytest_dataloader_faults.outcomes.judge.errors import torch_dropped_a_batch
from pytest_dataloader_faults.outcomes.text import pluralize

_HALVES = 2
_ALL_CUT = 1000
"""The number of first reads of a worker that are shortened, and about that of later ones."""


def _fails_halfway(times: int | None) -> Plan:
    def plan(workload: Workload) -> faults.Fault:
        if workload.reads < _HALVES:
            reason = (
                f"the busiest worker makes {pluralize(workload.reads, 'read')}, but this check"
                f" needs {_HALVES} or more"
            )
            raise workload.out_of_reach(reason)
        # If an even number of items is read, this is the last read of an item, which reads content,
        # not the first read of the next item, which reads a header.
        nth = max(_HALVES, workload.reads // _HALVES)
        return faults.ReadError(workload.read.path, nth=nth, times=times)

    return for_each_kind(plan)


@for_each_kind
def _short_reads(workload: Workload) -> Scenarios:
    """Two ways, because a reader may check the length of its short header, but not of the rest.

    With halves, a reader that continues needs few calls, however long the read is.
    """
    by_halves = Scenario(faults=_short_read_faults(workload, HALF), title="half of each read")
    if workload.mean_read <= 1:
        return (by_halves,)
    long = _short_read_faults(workload, workload.mean_read)
    title = f"reads of {pluralize(workload.mean_read, 'byte')} at most"
    return (by_halves, Scenario(faults=long, title=title))


def _short_read_faults(workload: Workload, max_bytes: float) -> tuple[faults.Fault, ...]:
    """Every read is short; if a worker makes very many, the first ones and some of the others."""
    path = workload.read.path
    if workload.reads <= _ALL_CUT:
        return (faults.ShortRead(path, max_bytes=max_bytes),)
    step = workload.reads // _ALL_CUT * 2 + 1  # Odd, because headers and data alternate.
    first_fault = faults.ShortRead(path, max_bytes=max_bytes, times=_ALL_CUT)
    return (first_fault, faults.ShortRead(path, max_bytes=max_bytes, every=step))


def _require_long_read(workload: Workload, outcome: Outcome) -> None:
    if not any(each.matched for each in outcome.faults):
        raise workload.out_of_reach("its workers map their files, or read one byte at a time")


@for_each_kind
def _truncated_tails(workload: Workload) -> tuple[faults.Fault, ...]:
    path = workload.cut.path
    return faults_at_tails(workload) or (faults.TruncatedFile(path, keep=0.9),)


@for_each_kind
def _corrupted_files(workload: Workload) -> Planned:
    """All files, and one: a substitute for its samples shows while the others are intact."""
    every_file = faults.CorruptedFile(workload.read.path, flips=FLIPS)
    if len(workload.read.paths) == 1:
        return every_file
    one_file = faults.CorruptedFile(workload.read.middle, flips=FLIPS)
    return (
        Scenario(faults=(every_file,), title="every file"),
        Scenario(faults=(one_file,), title="one file"),
    )


def _killed_halfway(workload: Workload) -> faults.Fault:
    fetches = workload.fetches
    if fetches < _HALVES:
        raise NotApplicable(
            f"worker 0 makes {pluralize(fetches, 'batch')}, but this check needs {_HALVES} or more"
        )
    return faults.WorkerKilled(at=fetches // _HALVES + 1)


def _killed_reading(workload: Workload) -> faults.Fault:
    if not workload.readers:
        raise workload.no_target("read")
    # In its first batch: a reader may hold the GIL, and then the worker could not send the batches
    # that it made before.
    return faults.WorkerKilled(reading=workload.read.path, worker=min(workload.readers))


def _killed_sending(workload: Workload) -> faults.Fault:
    if workload.fault_free.loader.start_method == "forkserver":
        raise NotApplicable(
            "its workers come from a fork server. If one of them dies within a message, torch waits"
            " for the rest of it forever, whatever the dataset does: the worker is not a child of"
            " the main process, so no signal interrupts read(2)"
        )
    return faults.WorkerKilled(sending=True)


def _killed_at_the_end(workload: Workload) -> faults.Fault:
    fetches = workload.fetches
    if fetches < _HALVES:
        raise NotApplicable(
            f"worker 0 makes {pluralize(fetches, 'batch')}, so its first batch is its last"
        )
    return faults.WorkerKilled(at=fetches)


def _require_descriptor(workload: Workload, outcome: Outcome) -> None:
    """A mapping outlives its descriptor, which Arrow closes when it has mapped a file."""
    is_target = GlobMatcher(tuple(path for each in outcome.schedule for path in each.globs))
    if any(each.matched for each in outcome.faults) or any(map(is_target, workload.opened.paths)):
        return
    reason = "its workers open none of these files, and hold no descriptor of them: they are mapped"
    raise workload.out_of_reach(reason)


def _require_use_of_descriptors(workload: Workload, outcome: Outcome) -> None:
    opens = [each.opens for worker in workload.fault_free.workers for each in worker.files.values()]
    if not outcome.fired and not any(opens):
        if workload.fault_free.unobserved:
            raise workload.no_target("open")
        raise NotApplicable("its workers need no descriptor")
    if torch_dropped_a_batch(outcome):
        raise NotApplicable(
            "its workers need no descriptor for the samples, but torch needs one to share a batch."
            " If that fails, torch's queue thread prints the error and drops the batch, and the"
            " loader waits forever, whatever the dataset does"
        )


FAULTS = (
    Check("open-error", "handles files that cannot be opened", on("opened", faults.OpenError)),
    Check(
        "file-missing",
        "handles a file that does not exist",
        on("opened", faults.OpenError, single=True, errno=errno.ENOENT),
    ),
    Check(
        "permission-denied",
        "handles files that it is not permitted to read",
        on("opened", faults.OpenError, errno=errno.EACCES),
    ),
    Check(
        "read-error",
        "handles a disk that fails at the first read",
        on("read", faults.ReadError),
    ),
    Check("read-error-halfway", "handles a disk that starts to fail halfway", _fails_halfway(None)),
    Check(
        "read-error-transient",
        "handles a single read error, after which reads work again",
        _fails_halfway(1),
    ),
    Check(
        "short-read",
        "handles reads that return fewer bytes than requested",
        _short_reads,
        scenario=Scenario(require_effect=_require_long_read),
    ),
    Check(
        "truncated-half",
        "handles files that are truncated in the middle",
        on("cut", faults.TruncatedFile, keep=0.5),
    ),
    Check(
        "truncated-empty",
        "handles a file that is empty",
        on("cut", faults.TruncatedFile, single=True, keep=0),
    ),
    Check(
        "truncated-tail",
        "handles truncated files that still look complete",
        _truncated_tails,
    ),
    Check(
        "corrupted-file",
        "handles files with damaged bytes",
        _corrupted_files,
    ),
    Check(
        "closed-descriptor",
        "handles a descriptor that is closed while the dataset uses it",
        on("read", faults.ClosedDescriptor),
        scenario=Scenario(require_effect=_require_descriptor),
    ),
    Check(
        "descriptor-exhaustion",
        "handles a worker that has run out of file descriptors",
        lambda _: faults.DescriptorExhaustion(),
        scenario=Scenario(require_effect=_require_use_of_descriptors),
    ),
    Check(
        "worker-killed-first",
        "handles a worker that dies in its first batch",
        lambda _: faults.WorkerKilled(),
    ),
    Check("worker-killed-middle", "handles a worker that dies halfway", _killed_halfway),
    Check("worker-killed-last", "handles a worker that dies in its last batch", _killed_at_the_end),
    Check("worker-killed-reading", "handles a worker that dies inside a read", _killed_reading),
    Check(
        "worker-killed-sending",
        "handles a worker that dies while it sends a batch",
        _killed_sending,
    ),
)
