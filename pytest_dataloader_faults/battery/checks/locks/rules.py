"""Whether a worker wrote a file although it could not lock it. Pure.

Some facts about what a lock is for. The kernel does not know which file a lock file protects. It is
the locked file itself, or one next to it with its name (``cache.bin.lock`` or ``cache.lock`` for
``cache.bin``), or one next to it that several workers write. A worker that writes a temporary file
under a name of its own, and renames it, needs no lock.
"""

from __future__ import annotations

import os
from collections import Counter

from pytest_dataloader_faults.outcomes.contract import Cause, Finding, Verdict
from pytest_dataloader_faults.outcomes.records import TrialFacts
from pytest_dataloader_faults.outcomes.reference import Reference

UNLOCKED = Cause(
    "writes a file that it could not lock",
    "The error of a failed lock was caught, and the file was written without the lock, so two jobs"
    " can overwrite each other's data. Let the error reach the loader, or write to a temporary file"
    " and rename it with os.replace(), which needs no lock",
    overrides=True,
    fix="raise the error of a failed lock",
)


def find_unlocked_write(outcome: TrialFacts, _: Reference) -> Finding | None:
    """A write to a file whose lock was refused in *outcome*."""
    firings = [firing for each in outcome.faults for firing in each.firings]
    locks = sorted({firing.path for firing in firings if firing.path})
    writers = Counter(
        path for worker in outcome.workers for path, counts in worker.files.items() if counts.writes
    )
    for path, count in sorted(writers.items()):
        lock = next((each for each in locks if _protects(each, path, writer_count=count)), None)
        if lock is not None:
            return _unlocked_write(path, lock)
    return None


def _protects(lock: str, path: str, *, writer_count: int) -> bool:
    """Whether *lock* is the lock of *path*, which several workers write if *writer_count* says."""
    folder, name = os.path.split(path)
    lock_folder, lock_name = os.path.split(lock)
    stem, suffix = os.path.splitext(lock_name)
    names = {stem, os.path.splitext(stem)[0]}
    has_name = suffix == ".lock" and bool(names & {name, os.path.splitext(name)[0]})
    return path == lock or (folder == lock_folder and (has_name or writer_count > 1))


def _unlocked_write(path: str, lock: str) -> Finding:
    name, lock_name = os.path.basename(path), os.path.basename(lock)
    target = "it" if path == lock else lock_name
    sentence = f"a worker wrote {name}, but could not lock {target}"
    return Finding(Verdict.CORRUPTED, sentence, UNLOCKED)
