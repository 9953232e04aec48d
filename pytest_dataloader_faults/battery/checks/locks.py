"""The check of file locks: another job holds them, or the drive has none. Pure.

A dataset may take a lock in its constructor, and on files that it writes itself, such as a cache.
So the faults are armed before the dataset is created, whatever it writes.

Some facts about waiting. Jobs and ranks wait for a lock while another one prepares their files, so
a wait is no defect, even without a limit. So the other job releases its locks soon. A drive without
locks never has them. But SQLite tries again after each error of a lock, filelock after most, until
their own timeout expires, which is up to a minute: 60 s is the default of diskcache.

Some facts about what a lock is for. The kernel does not know which file a lock file protects, and
its name need not say so: many files next to it are written without it, such as a log. So the
fault-free run shows it: a process holds the lock during each of its writes to the file. A worker
that writes a temporary file under a name of its own, and renames it, needs no lock. Neither does
one that has waited for the lock and holds it by the time it writes.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pytest_dataloader_faults.battery.checks._at_rest import AtRest
from pytest_dataloader_faults.battery.checks._base import Scenario, check
from pytest_dataloader_faults.battery.targets import path_of
from pytest_dataloader_faults.battery.workload import NotApplicable, Workload
from pytest_dataloader_faults.faults import Fault, LockError
from pytest_dataloader_faults.faults.globs import GlobMatcher
from pytest_dataloader_faults.faults.resources import WRITE_LOCKS
from pytest_dataloader_faults.outcomes import Contract, Finding, Outcome, Verdict, WorkerFacts
from pytest_dataloader_faults.outcomes.contract import Cause
from pytest_dataloader_faults.outcomes.records import TrialFacts
from pytest_dataloader_faults.outcomes.stages import RECOVERY, Activity
from pytest_dataloader_faults.steps import run_epochs

if TYPE_CHECKING:
    from pytest_dataloader_faults.battery.fault_free_run import FaultFreeRun

_NO_LOCKS = "neither its constructor nor its workers lock a file"
_RELEASED_AFTER = 1.0
"""Seconds."""
_DEADLINES = 7
"""How many times its deadline a trial on a drive without locks may take."""
_HELD, _WITHOUT_LOCKS = "another job has the lock", "a drive without locks"
_REFUSED = (
    f"For {_RELEASED_AFTER:g} s, another job held the locks: a call that waits for a lock returned"
    " after that, and any other request failed until then. In other trials, every request failed"
    " with ENOLCK, as on a drive without locks"
)
_WAIT_OR_RAISE = (
    "Wait for the lock, as in `fcntl.flock(file, fcntl.LOCK_EX)`, or let the error of the failed"
    " request reach the loader. Only EAGAIN and EACCES mean that another process holds the lock:"
    " raise every other error at once, instead of trying again or continuing without the lock. Open"
    " data that is only read without a lock: lmdb.open(path, readonly=True, lock=False), or"
    " h5py.File(path, 'r', locking=False)"
)
UNLOCKED = Cause(
    "writes a file that it could not lock",
    "The error of a failed lock was caught, and the file was written without the lock, so two jobs"
    " can overwrite each other's data. Let the error reach the loader, or write to a temporary file"
    " and rename it with os.replace(), which needs no lock",
    overrides=True,
    fix="raise the error of a failed lock",
)
_WAITS = Cause(
    "keeps waiting after a file lock is released",
    "Another job held the lock and released it, but the dataset did not continue. Wait for the lock"
    " itself, which the kernel releases if the other job dies, and not for a file that the other"
    " job should write",
    overrides=True,
    fix="wait for the lock itself, not for what the other job should do",
)
_RETRIES = Cause(
    "takes every error of a lock for a held lock",
    fix="retry only if the errno is EAGAIN or EACCES, and raise every other error",
)


@check(
    "file-locks",
    "handles locks of files that another job holds, and a drive without locks",
    scenario=Scenario(processes=run_epochs(before_init=True), locks=True),
    preface=_REFUSED,
    advice=_WAIT_OR_RAISE,
)
def file_locks(workload: Workload) -> Iterator[Scenario]:
    """If the constructor locks files as well as the workers, its error may hide what they do."""
    run, is_meant = workload.fault_free, GlobMatcher(workload.globs)
    ids = {each.worker for each in run.processes if _locks_file(each, is_meant)}
    if not ids:
        raise NotApplicable(_NO_LOCKS)
    path = path_of(workload.globs)
    held = LockError(path, seconds=_RELEASED_AFTER)
    for title, fault in ((_HELD, held), (_WITHOUT_LOCKS, LockError(path, errno=errno.ENOLCK))):
        yield Scenario(faults=(fault,), title=title)
        if None in ids and len(ids) > 1:
            workers = tuple(sorted(each.worker for each in run.workers if each.worker is not None))
            in_workers = replace(fault, workers=workers)
            yield Scenario(faults=(in_workers,), title=f"{title}, in the workers only")


def _locks_file(process: WorkerFacts, is_meant: GlobMatcher) -> bool:
    """Whether *process* locks a file that faults may hit."""
    return any(counts.locks and is_meant(path) for path, counts in process.files.items())


class LockTrials(AtRest):
    """Trials in which locks fail, also those of files that the dataset itself writes."""

    def includes(self, scenario: Scenario) -> bool:
        """Whether its faults are about locks."""
        return scenario.locks

    def fault_free_outcome(self, run: FaultFreeRun) -> Outcome:
        """An epoch without a fault, in which files are followed from the constructor on."""
        return self.complete_outcome(run)

    def refusal(self, run: FaultFreeRun) -> None:
        """Locks of files that each run writes can fail as well."""

    def notes(self, run: FaultFreeRun) -> tuple[str, ...]:  # noqa: ARG002
        """Nothing is left out."""
        return ()

    def run_trial(self, run: FaultFreeRun, *faults: Fault, **arguments: Any) -> Outcome:
        """One trial, with time for the timeouts of libraries on a drive without locks."""
        if not all(isinstance(each, LockError) and each.is_held for each in faults):
            deadline = _DEADLINES * run.deadlines.for_trial
            arguments["deadline"] = arguments.get("deadline") or deadline
        return super().run_trial(run, *faults, **arguments)

    def judge(
        self, run: FaultFreeRun, outcome: Outcome, contract: Contract | None = None
    ) -> Finding:
        """The usual verdict, or a write without the lock that protects the file otherwise.

        If the loader got the error of the lock, nothing was written in its place.
        """
        finding = super().judge(run, outcome, contract)
        if finding.verdict in (Verdict.SURVIVED, Verdict.FAILED_UNCLEARLY):
            return find_unlocked_write(outcome, self.fault_free_outcome(run)) or finding
        if finding.verdict is not Verdict.HUNG or finding.cause:
            return finding
        return replace(finding, cause=_cause_of_hang(outcome))


def find_unlocked_write(outcome: TrialFacts, fault_free: TrialFacts) -> Finding | None:
    """A write in *outcome* without the lock that protects the file in the *fault_free* run.

    A lock that was never refused does not count.
    """
    firings = (firing for each in outcome.faults for firing in each.firings)
    refused = {firing.path for firing in firings if firing.path}
    for process in outcome.processes:
        held = process.notes.get(WRITE_LOCKS, {})
        for path in sorted(path for path, counts in process.files.items() if counts.writes):
            missing = (_list_locks(fault_free, path) & refused).difference(held.get(path, ()))
            if missing:
                return _unlocked_write(process, path, min(missing))
    return None


def _list_locks(fault_free: TrialFacts, path: str) -> set[str]:
    """The files whose locks each process that wrote to *path* held during each write."""
    held = [each.notes.get(WRITE_LOCKS, {}) for each in fault_free.processes]
    writers = [each for each in held if path in each]
    return set.intersection(*(set(each[path]) for each in writers)) if writers else set()


def _unlocked_write(process: WorkerFacts, path: str, lock: str) -> Finding:
    writer = "the main process" if process.worker is None else "a worker"
    target = "it" if path == lock else os.path.basename(lock)
    sentence = f"{writer} wrote {os.path.basename(path)}, but could not lock {target}"
    return Finding(Verdict.CORRUPTED, sentence, UNLOCKED)


def _cause_of_hang(outcome: TrialFacts) -> Cause | None:
    """Why *outcome* hung after a lock was refused; None if it was only slow."""
    end = outcome.end.at_deadline
    is_slow = end is not None and end.activity is Activity.DELIVERS
    if not outcome.fired or outcome.phase == RECOVERY or is_slow:
        return None
    faults = (each.fault for each in outcome.faults if each.fired)
    is_held = any(isinstance(fault, LockError) and fault.is_held for fault in faults)
    return _WAITS if is_held else _RETRIES
