"""Trials that run before a check needs them, so that several run at once.

Checks run one after the other, whatever the number of jobs. What the next ones will run is mostly
known beforehand, and is started meanwhile. So results and their order do not depend on that number.

Some facts about trials at once. A deadline does not count the time for which processes wait for a
processor. But two trials may share what one of them changes, the offset of a file that this process
has opened, or a server that answers one client at a time. And little time is left for what is
measured. So a trial that ran next to others only counts if the dataset passes in it. If not, the
check is run again, alone, and that decides.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import TypeAlias

from pytest_dataloader_faults._engine.system.proc import descriptor_links
from pytest_dataloader_faults._settings.jobs import TrialJob
from pytest_dataloader_faults._trial import StartedTrial, run_trial_job
from pytest_dataloader_faults.battery.fault_free_run import FaultFreeRun
from pytest_dataloader_faults.exceptions import DataLoaderFaultsError
from pytest_dataloader_faults.outcomes import Outcome

PlanJobs: TypeAlias = Callable[[], Iterable[TrialJob]]
"""Returns the trials of a check that are known before it runs."""
_TRIALS_PER_JOB = 2
"""Up to this many trials are ahead, so that a slow one does not keep all others waiting."""


@dataclass
class _TrialAhead:
    """A trial for the check *number*, and its outcome once it is over."""

    number: int
    request: TrialJob
    started: StartedTrial
    outcome: Outcome | None = None

    @property
    def is_over(self) -> bool:
        return self.outcome is not None or self.started.is_over

    def is_for(self, request: TrialJob) -> bool:
        """Whether it is the trial of *request*, except that its recovery may be more thorough."""
        in_workers = self.request.recovers_in_workers
        same = replace(request, recovers_in_workers=in_workers) == self.request
        return same and in_workers >= request.recovers_in_workers


class NeedsTrialError(Exception):
    """A check cannot be planned before a trial without a fault has run."""


class TrialsAhead:
    """Runs up to *jobs* trials at once."""

    def __init__(self, jobs: int) -> None:
        self._jobs = jobs
        self._trials: list[_TrialAhead] = []
        self._number = -1
        """The check that runs now."""
        self._checks: list[PlanJobs] = []
        self._last_planned = -1
        self._planned: deque[TrialJob] = deque()
        """The jobs of that check that are not started yet."""
        self._is_planning = False

    @property
    def is_needed(self) -> bool:
        """Whether more than one trial may run at once."""
        return self._jobs > 1

    def plan(self, checks: Iterable[PlanJobs]) -> None:
        """Start the trials of *checks*, in this order, as soon as there is room for them."""
        self._checks = list(checks)

    def begin_check(self) -> None:
        """The next of the checks begins. End what was started for the ones before."""
        self._number += 1
        self._end(each for each in self._trials if each.number < self._number)

    def run(self, request: TrialJob) -> Outcome | None:
        """The outcome of *request*, next to other trials; None if it has none."""
        with contextlib.suppress(DataLoaderFaultsError):
            trial = next((each for each in self._trials if each.is_for(request)), None)
            return self._wait(trial or self._start(self._number, request), self._start_more)
        return None

    def run_alone(self, request: TrialJob) -> Outcome:
        """The outcome of *request*, which runs once all other trials are over."""
        if self._is_planning:
            raise NeedsTrialError
        for trial in list(self._trials):
            with contextlib.suppress(DataLoaderFaultsError):
                trial.outcome = self._wait(trial)
                self._trials.append(trial)
        return run_trial_job(request)

    def close(self) -> None:
        """End all trials that still run."""
        self._end(self._trials)

    def _start(self, number: int, request: TrialJob) -> _TrialAhead:
        trial = _TrialAhead(number, request, StartedTrial(request))
        self._trials.append(trial)
        return trial

    def _wait(self, trial: _TrialAhead, look: Callable[[], None] | None = None) -> Outcome:
        """The outcome of *trial*, which is not ahead any more."""
        self._trials.remove(trial)
        return trial.outcome or trial.started.wait(look)

    def _end(self, trials: Iterable[_TrialAhead]) -> None:
        for trial in list(trials):
            self._trials.remove(trial)
            if trial.outcome is None:
                trial.started.end()

    def _start_more(self) -> None:
        """Start planned trials, as far as there is room."""
        if self._is_planning:
            return
        self._is_planning = True
        try:
            while self._has_room and (job := self._next_job()) is not None:
                self._start(self._last_planned, job)
        except DataLoaderFaultsError:  # Such as too few processes: the others run one by one.
            self._checks = []
        finally:
            self._is_planning = False

    @property
    def _has_room(self) -> bool:
        """Whether one more trial may run next to the one that is waited for."""
        running = sum(not each.is_over for each in self._trials)
        return running < self._jobs - 1 and len(self._trials) < _TRIALS_PER_JOB * self._jobs

    def _next_job(self) -> TrialJob | None:
        """The first job of a check that has not begun; None if none is known now."""
        if self._last_planned <= self._number:
            self._planned.clear()
            self._last_planned = self._number
        while not self._planned and self._last_planned + 1 < len(self._checks):
            try:
                self._planned.extend(self._checks[self._last_planned + 1]())
            except NeedsTrialError:
                return None
            self._last_planned += 1
        return self._planned.popleft() if self._planned else None


def may_disturb_others(run: FaultFreeRun) -> bool:
    """Whether a trial of the dataset of *run* could disturb another one at the same time."""
    opened_here = set(descriptor_links().values())
    return bool(run.own_folders.paths or run.cached) or any(
        process.addresses or process.changed_files or not opened_here.isdisjoint(process.files)
        for process in run.working.processes
    )
