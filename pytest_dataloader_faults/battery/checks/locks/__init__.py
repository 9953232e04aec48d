"""Checks of file locks: another job holds them, or the drive has none. Pure."""

from __future__ import annotations

import errno

from pytest_dataloader_faults.battery.checks._base import Check, Plan
from pytest_dataloader_faults.battery.checks.locks.rules import find_unlocked_write
from pytest_dataloader_faults.battery.targets import path_of
from pytest_dataloader_faults.battery.workload import NotApplicable, Workload
from pytest_dataloader_faults.faults import LockError
from pytest_dataloader_faults.faults.globs import GlobMatcher

_NO_LOCKS = "its workers lock no file"
_UNSEEN = "the python engine does not see file locks. engine='kernel' does"
_HELD = (
    "Every request for a lock failed, as if another job held it, and a call that waits for the lock"
    " did not return"
)
_WITHOUT_LOCKS = "Every request for a lock failed with ENOLCK, as on a drive without locks"
_LIMIT_WAITS = (
    "Limit every wait for a lock, as in filelock.FileLock(path, timeout=60), and raise an error"
    " when the limit expires. Open data that is only read without a lock: lmdb.open(path,"
    " readonly=True, lock=False), or h5py.File(path, 'r', locking=False). If waiting for the other"
    " job is intentional, list the check in expected_failures"
)
_RAISE_OTHERS = (
    "Only EAGAIN and EACCES mean that another process holds the lock. Raise every other error at"
    " once, instead of trying again or continuing without the lock"
)


def _fail_locks(number: int) -> Plan:
    """A plan in which each request for a lock fails with the errno *number*."""

    def plan(workload: Workload) -> LockError:
        _require_locks(workload)
        return LockError(path_of(workload.globs), number)

    return plan


def _require_locks(workload: Workload) -> None:
    """Raise NotApplicable if the workers lock none of the files that faults may hit."""
    if workload.is_python_engine:
        raise NotApplicable(_UNSEEN)
    is_meant = GlobMatcher(workload.globs)
    items = (item for worker in workload.fault_free.workers for item in worker.files.items())
    if not any(counts.locks and is_meant(path) for path, counts in items):
        raise NotApplicable(_NO_LOCKS)


LOCKS = (
    Check(
        "locked-file",
        "raises an error in time if another job holds the lock of a file",
        _fail_locks(errno.EAGAIN),
        rule=find_unlocked_write,
        preface=_HELD,
        advice=_LIMIT_WAITS,
    ),
    Check(
        "no-locks",
        "handles a drive without file locks",
        _fail_locks(errno.ENOLCK),
        rule=find_unlocked_write,
        preface=_WITHOUT_LOCKS,
        advice=_RAISE_OTHERS,
    ),
)
