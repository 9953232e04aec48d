"""Checks of file locks: another job holds them, or the drive has none. Pure.

A dataset may take a lock in its constructor, and on files that it writes itself, such as a cache.
So the faults are armed before the dataset is created, whatever it writes.

Some facts about waiting. Jobs and ranks wait for a lock while another one prepares their files, so
a wait is no defect, even without a limit. So the other job releases its locks soon. A drive without
locks never has them. But SQLite tries again after each error of a lock, filelock after most, until
their own timeout expires, which is up to a minute: 60 s is the default of diskcache.
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from pytest_dataloader_faults.battery.checks._base import (
    Check,
    Plan,
    Planned,
    Scenario,
    TrialKind,
)
from pytest_dataloader_faults.battery.checks.locks.rules import (
    cause_of_hang,
    find_unlocked_write,
)
from pytest_dataloader_faults.battery.targets import path_of
from pytest_dataloader_faults.battery.workload import NotApplicable, Workload
from pytest_dataloader_faults.faults import Fault, LockError
from pytest_dataloader_faults.faults.globs import GlobMatcher
from pytest_dataloader_faults.outcomes import Contract, Finding, Outcome, Verdict, WorkerFacts
from pytest_dataloader_faults.steps import Processes, run_epochs

if TYPE_CHECKING:
    from pytest_dataloader_faults.battery.fault_free_run import FaultFreeRun

_NO_LOCKS = "neither its constructor nor its workers lock a file"
_RELEASED_AFTER = 1.0
"""Seconds."""
_DEADLINES = 7
"""How many times its deadline a trial on a drive without locks may take."""
_HELD = (
    f"For {_RELEASED_AFTER:g} s, another job held the locks: a call that waits for a lock returned"
    " after that, and any other request failed until then"
)
_WITHOUT_LOCKS = "Every request for a lock failed with ENOLCK, as on a drive without locks"
_WAIT_OR_RAISE = (
    "Wait for the lock, as in `with filelock.FileLock(path):`, or let the error of the failed"
    " request reach the loader. Open data that is only read without a lock: lmdb.open(path,"
    " readonly=True, lock=False), or h5py.File(path, 'r', locking=False)"
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

    def run_trial(self, run: FaultFreeRun, *faults: Fault, **arguments: Any) -> Outcome:
        """One trial, with time for the timeouts of libraries on a drive without locks."""
        if not all(isinstance(each, LockError) and each.is_held for each in faults):
            deadline = _DEADLINES * run.deadlines.for_trial
            arguments["deadline"] = arguments.get("deadline") or deadline
        return super().run_trial(run, *faults, **arguments)

    def workload(self, run: FaultFreeRun) -> Workload:
        """What the constructor, the main process and the workers do in that epoch."""
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
        if finding.verdict is not Verdict.HUNG or finding.cause:
            return finding
        return replace(finding, cause=cause_of_hang(outcome))

    def refine(self, finding: Finding, run: FaultFreeRun) -> Finding:
        """The same as for other trials in which the dataset is created under faults."""
        return self._before_init.refine(finding, run)


def _fail_locks(make_fault: Callable[..., LockError]) -> Plan:
    """A plan in which requests for locks meet the fault that *make_fault* makes of their globs.

    If the constructor locks files as well as the workers, its error may hide what they do.
    """

    def plan(workload: Workload) -> Planned:
        run, is_meant = workload.fault_free, GlobMatcher(workload.globs)
        ids = {each.worker for each in run.processes if _locks_file(each, is_meant)}
        if not ids:
            raise NotApplicable(_NO_LOCKS)
        fault = make_fault(path_of(workload.globs))
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
        "waits for the lock of a file that another job holds, or raises an error",
        _fail_locks(partial(LockError, seconds=_RELEASED_AFTER)),
        scenario=_SCENARIO,
        preface=_HELD,
        advice=_WAIT_OR_RAISE,
    ),
    Check(
        "no-locks",
        "handles a drive without file locks",
        _fail_locks(partial(LockError, errno=errno.ENOLCK)),
        scenario=_SCENARIO,
        preface=_WITHOUT_LOCKS,
        advice=_RAISE_OTHERS,
    ),
)
