"""The checks of the battery: what each promises, and the faults it needs. Pure.

A check sees what recon found and answers with a schedule, or says why it does not apply.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from pytest_dataloader_faults._engine._paths import is_excluded
from pytest_dataloader_faults.exceptions import InvalidArgumentError
from pytest_dataloader_faults.faults import (
    ClosedDescriptor,
    DescriptorExhaustion,
    Fault,
    OpenError,
    ReadError,
    TruncatedFile,
    WorkerKilled,
)
from pytest_dataloader_faults.outcomes import Outcome

_HALVES = 2
_USED_BEFORE = (
    "The main process read one sample before it started the workers. A handle that was opened for"
    " that sample is shared by forked workers, and cannot be sent to spawned ones. Open it once"
    " per process: keep os.getpid() beside the handle, and open again where it differs. Or"
    " exclude 'used-before', if nothing reads the dataset before the loop over the loader does"
)


Globs: TypeAlias = Callable[[tuple[str, ...], set[str]], tuple[str, ...]]


@dataclass(frozen=True)
class Unsuitable:
    """Why a check does not apply to a dataset."""

    reason: str


@dataclass(frozen=True)
class Recon:
    """What a dataset does when nothing is wrong.

    Attributes:
        control: One epoch with workers, the engine on and no fault.
        opened: Globs for exactly the data files that workers open.
        read: Globs for those that they read or have mapped.
        reads: The reads of the busiest worker.
        fetches: The batches that worker 0 makes.

    """

    control: Outcome
    opened: tuple[str, ...]
    read: tuple[str, ...]
    reads: int
    fetches: int

    @property
    def is_blind(self) -> bool:
        """Whether files may be opened and read, in C, with nobody noticing."""
        return self.control.engine == "python"

    def nothing(self, verb: str) -> Unsuitable:
        """Why a check has no victim: its workers *verb* none."""
        if self.is_blind:
            seen = f"the python engine saw its workers {verb} no data file; code in C may do so"
            return Unsuitable(f"{seen} unseen. engine='kernel' sees that, too")
        return Unsuitable(f"its workers {verb} no data file")

    @classmethod
    def of(cls, control: Outcome, matches: Callable[[str], bool], globs_for: Globs) -> Recon:
        """Sum up *control*, as far as files are concerned that *matches* means.

        *globs_for* makes globs for some of all the files seen.
        """
        seen = {path for worker in control.workers for path in worker.files}
        per_worker = [
            {path: counts for path, counts in worker.files.items() if matches(path)}
            for worker in control.workers
        ]
        opened = {path for files in per_worker for path, (opens, _, _) in files.items() if opens}
        read = {path for files in per_worker for path, (_, reads, _) in files.items() if reads}
        return cls(
            control,
            globs_for(tuple(sorted(opened)), seen),
            globs_for(tuple(sorted(read)), seen),
            max((sum(counts[1] for counts in files.values()) for files in per_worker), default=0),
            max((each.fetches for each in control.workers if each.worker == 0), default=0),
        )


Plan: TypeAlias = tuple[Fault, ...] | Unsuitable


@dataclass(frozen=True)
class Check:
    """One item of the battery.

    Attributes:
        changes: Loader options that it needs.
        touch: Whether the main process reads the dataset before it starts workers.
        advice: What to know and to do when it fails, beyond the evidence.
        moot: Of what recon found and the check's own trial: why it does not apply after all.

    """

    name: str
    promise: str
    plan: Callable[[Recon], Plan]
    changes: dict[str, Any] = field(default_factory=dict)
    touch: bool = False
    advice: str = ""
    moot: Callable[[Recon, Outcome], str | None] = lambda _recon, _outcome: None


def _path(globs: tuple[str, ...]) -> str | tuple[str, ...]:
    """As a person would write them."""
    return globs[0] if len(globs) == 1 else globs


def _no_fault(_: Recon) -> Plan:
    return ()


def _on_opened(make: Callable[[Any], Fault]) -> Callable[[Recon], Plan]:
    def plan(recon: Recon) -> Plan:
        if not recon.opened:
            return recon.nothing("open")
        return (make(_path(recon.opened)),)

    return plan


def _on_read(make: Callable[[Any], Fault]) -> Callable[[Recon], Plan]:
    def plan(recon: Recon) -> Plan:
        if not recon.read:
            return recon.nothing("read")
        return (make(_path(recon.read)),)

    return plan


def _on_content(make: Callable[[Any], Fault]) -> Callable[[Recon], Plan]:
    """For what happens as a file is opened: who reads it then, in Python or in C, is all one."""

    def plan(recon: Recon) -> Plan:
        files = recon.read or (recon.opened if recon.is_blind else ())
        return (make(_path(files)),) if files else recon.nothing("read")

    return plan


def _read_in_the_middle(times: int | None) -> Callable[[Recon], Plan]:
    def plan(recon: Recon) -> Plan:
        if recon.is_blind and not recon.read:
            return recon.nothing("read")
        if recon.reads < _HALVES:
            return Unsuitable(f"the busiest worker makes {recon.reads} reads, fewer than {_HALVES}")
        # Of an even number of items this is the last read of one, not the first of the next: it is
        # for content, and not for a header.
        nth = max(_HALVES, recon.reads // _HALVES)
        return (ReadError(_path(recon.read), nth=nth, times=times),)

    return plan


def _killed_in_the_middle(recon: Recon) -> Plan:
    if recon.fetches < _HALVES:
        return Unsuitable(f"worker 0 makes {recon.fetches} batches, fewer than {_HALVES}")
    return (WorkerKilled(at=recon.fetches // _HALVES + 1),)


def _needs_no_descriptor(recon: Recon, outcome: Outcome) -> str | None:
    opens = [counts[0] for worker in recon.control.workers for counts in worker.files.values()]
    if not outcome.fired and not any(opens):
        return recon.nothing("open").reason if recon.is_blind else "its workers need no descriptor"
    stuck = outcome.timed_out and outcome.phase != "recovery"
    if stuck and outcome.fired and not _met_data(outcome):
        return (
            "its workers need no descriptor for the samples, but torch needs one to share a batch;"
            " where that fails, torch's queue thread prints the error and drops the batch, and the"
            " loader waits for ever, whatever the dataset does"
        )
    return None


def _met_data(outcome: Outcome) -> bool:
    """Whether a fault befell a file that the dataset itself may have opened."""
    paths = [one.path for each in outcome.faults for one in each.firings]
    return any(path and not is_excluded(path) for path in paths)


CHECKS: dict[str, Check] = {
    check.name: check
    for check in (
        Check("workers-agree", "N workers give what the main process gives", _no_fault),
        Check(
            "used-before",
            "the same, after the main process has read a sample",
            _no_fault,
            touch=True,
            advice=_USED_BEFORE,
        ),
        Check(
            "pickles",
            "the dataset reaches a spawned worker",
            _no_fault,
            {"multiprocessing_context": "spawn", "num_workers": 1},
        ),
        Check("open-error", "files that cannot be opened are no surprise", _on_opened(OpenError)),
        Check("read-error-first", "the disk fails at the first read", _on_read(ReadError)),
        Check("read-error-later", "the disk fails half way", _read_in_the_middle(None)),
        Check("read-error-transient", "one read fails, the next works", _read_in_the_middle(1)),
        Check(
            "truncated-half",
            "files end in the middle",
            _on_content(lambda path: TruncatedFile(path, keep=0.5)),
        ),
        Check(
            "truncated-empty",
            "files are empty",
            _on_content(lambda path: TruncatedFile(path, keep=0)),
        ),
        Check(
            "closed-descriptor",
            "a descriptor is closed under the dataset",
            _on_content(ClosedDescriptor),
        ),
        Check(
            "descriptor-exhaustion",
            "no descriptor is left",
            lambda _: (DescriptorExhaustion(),),
            moot=_needs_no_descriptor,
        ),
        Check("worker-killed-first", "a worker dies at once", lambda _: (WorkerKilled(),)),
        Check("worker-killed-middle", "a worker dies half way", _killed_in_the_middle),
    )
}


def names_of_checks(argument: str, names: str | Iterable[str]) -> set[str]:
    """*names* as a set; each must be a check's."""
    chosen = {names} if isinstance(names, str) else set(names)
    for name in chosen:
        if name not in CHECKS:
            near = difflib.get_close_matches(str(name), CHECKS, n=2) or list(CHECKS)
            message = f"{argument} names {name!r}, which is no check. Did you mean {near}?"
            raise InvalidArgumentError(message)
    return chosen
