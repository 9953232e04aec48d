"""Checks of file locks: another job holds them, or the drive has none. Pure.

A dataset may take a lock in its constructor, and on files that it writes itself, such as a cache.
So the faults are armed before the dataset is created, whatever it writes.
"""

from __future__ import annotations

import errno
from dataclasses import replace
from typing import TYPE_CHECKING

from pytest_dataloader_faults.battery.checks._base import (
    Check,
    Plan,
    Planned,
    Scenario,
    TrialKind,
)
from pytest_dataloader_faults.battery.checks.locks.rules import (
    WAITS,
    find_unlocked_write,
    waits_for_lock,
)
from pytest_dataloader_faults.battery.targets import path_of
from pytest_dataloader_faults.battery.workload import NotApplicable, Workload
from pytest_dataloader_faults.faults import LockError
from pytest_dataloader_faults.faults.globs import GlobMatcher
from pytest_dataloader_faults.outcomes import Contract, Finding, Outcome, Verdict, WorkerFacts
from pytest_dataloader_faults.steps import Processes, run_epochs

if TYPE_CHECKING:
    from pytest_dataloader_faults.battery.fault_free_run import FaultFreeRun

_NO_LOCKS = "neither its constructor nor its workers lock a file"
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
_SCENARIO = Scenario(processes=run_epochs(before_init=True), locks=True)


class LockTrials(TrialKind):
    """Trials *before_init* in which locks fail, also those of files that the dataset writes."""

    def __init__(self, before_init: TrialKind) -> None:
        super().__init__()
        self._before_init = before_init

    def includes(self, scenario: Scenario) -> bool:
        """Whether its faults are about locks."""
        return scenario.locks

    def run_epochs(self, count: int = 1) -> Processes:
        """The same, with faults in the constructor, the main process and the workers."""
        return self._before_init.run_epochs(count)

    def fault_free_outcome(self, run: FaultFreeRun) -> Outcome:
        """An epoch without a fault, in which files are followed from the constructor on."""
        return self._before_init.complete_outcome(run)

    def workload(self, run: FaultFreeRun) -> Workload:
        """What the constructor, the main process and the workers do in that epoch."""
        if run.settings.engine == "python":
            raise NotApplicable(_UNSEEN)
        self._before_init.workload(run)  # Raises NotApplicable if that epoch fails.
        return Workload.of(self.fault_free_outcome(run), run.settings.files, run.own_folders)

    def judge(
        self, run: FaultFreeRun, outcome: Outcome, contract: Contract | None = None
    ) -> Finding:
        """The same, or a write without the lock that protects the file in the fault-free run.

        If the loader got the error of the lock, nothing was written in its place.
        """
        finding = super().judge(run, outcome, contract)
        if finding.verdict in (Verdict.SURVIVED, Verdict.FAILED_UNCLEARLY):
            return find_unlocked_write(outcome, self.fault_free_outcome(run)) or finding
        is_wait = finding.verdict is Verdict.HUNG and waits_for_lock(outcome)
        return replace(finding, cause=finding.cause or WAITS) if is_wait else finding

    def refine(self, finding: Finding, run: FaultFreeRun) -> Finding:
        """The same as for other trials in which the dataset is created under faults."""
        return self._before_init.refine(finding, run)


def _fail_locks(number: int) -> Plan:
    """A plan in which each request for a lock fails with the errno *number*.

    If the constructor locks files as well as the workers, its error may hide what they do.
    """

    def plan(workload: Workload) -> Planned:
        run, is_meant = workload.fault_free, GlobMatcher(workload.globs)
        ids = {each.worker for each in run.processes if _locks_file(each, is_meant)}
        if not ids:
            raise NotApplicable(_NO_LOCKS)
        fault = LockError(path_of(workload.globs), number)
        if None not in ids or len(ids) == 1:
            return fault
        workers = tuple(sorted(each.worker for each in run.workers if each.worker is not None))
        return (
            Scenario(faults=(fault,), title="when the dataset is created"),
            Scenario(faults=(replace(fault, workers=workers),), title="in the workers"),
        )

    return plan


def _locks_file(process: WorkerFacts, is_meant: GlobMatcher) -> bool:
    """Whether *process* locks a file that faults may hit."""
    return any(counts.locks and is_meant(path) for path, counts in process.files.items())


LOCKS = (
    Check(
        "locked-file",
        "raises an error in time if another job holds the lock of a file",
        _fail_locks(errno.EAGAIN),
        scenario=_SCENARIO,
        preface=_HELD,
        advice=_LIMIT_WAITS,
    ),
    Check(
        "no-locks",
        "handles a drive without file locks",
        _fail_locks(errno.ENOLCK),
        scenario=_SCENARIO,
        preface=_WITHOUT_LOCKS,
        advice=_RAISE_OTHERS,
    ),
)
