"""What a dataset does without the lock that it could not get. Pure.

Some facts about what a lock is for. The kernel does not know which file a lock file protects, and
its name need not say so: many files next to it are written without it, such as a log. So the
fault-free run shows it: a process holds the lock during each of its writes to the file. A worker
that writes a temporary file under a name of its own, and renames it, needs no lock. Neither does
one that has waited for the lock and holds it by the time it writes.
"""

from __future__ import annotations

import os

from pytest_dataloader_faults.faults.locks import WRITE_LOCKS, LockError
from pytest_dataloader_faults.outcomes.contract import Cause, Finding, Verdict
from pytest_dataloader_faults.outcomes.records import TrialFacts
from pytest_dataloader_faults.outcomes.stages import RECOVERY, Activity
from pytest_dataloader_faults.wire import WorkerFacts

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


def cause_of_hang(outcome: TrialFacts) -> Cause | None:
    """Why *outcome* hung after a lock was refused; None if it was only slow."""
    end = outcome.end.at_deadline
    is_slow = end is not None and end.activity is Activity.DELIVERS
    if not outcome.fired or outcome.phase == RECOVERY or is_slow:
        return None
    faults = (each.fault for each in outcome.faults if each.fired)
    is_held = any(isinstance(fault, LockError) and fault.is_held for fault in faults)
    return _WAITS if is_held else _RETRIES
