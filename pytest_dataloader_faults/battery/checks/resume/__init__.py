"""The check of a loader's state: a job that was stopped resumes from a checkpoint. Pure.

The steps are here. What they do in a trial is in ``states``, which is imported there only.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from pytest_dataloader_faults.battery.checks._base import Scenario, check
from pytest_dataloader_faults.battery.checks.resume.rules import describe, find_violation
from pytest_dataloader_faults.battery.workload import NotApplicable, Workload
from pytest_dataloader_faults.outcomes.stages import LoadedState, Phase, SavedState, Stage, StateOf
from pytest_dataloader_faults.steps import (
    Action,
    Epoch,
    FaultFreePass,
    Look,
    Make,
    Process,
    Processes,
    Step,
)
from pytest_dataloader_faults.wire import Note

if TYPE_CHECKING:
    from torch.utils.data import DataLoader

    from pytest_dataloader_faults._trial.journal import Journal
    from pytest_dataloader_faults._trial.run import TrialProcess

CALLS_USER_CODE = True

_NO_STATE = (
    "its loader has no state_dict() and load_state_dict(), so a stopped job starts its epoch from"
    " scratch. torchdata's StatefulDataLoader has both"
)
_NO_TORCHDATA = (
    "its dataset has state_dict(), but torch's DataLoader never calls it, and torchdata, whose"
    " StatefulDataLoader does, is not installed: pip install torchdata"
)
_NO_END = "the stream is endless or very long, so there is no rest of an epoch to compare"
_RANDOM = "its samples are random and each worker draws its own, so the rest of an epoch is unknown"
_ONE_BATCH = "its epoch has only one batch, which leaves nothing to resume"
_SEEDS_APART = 7_919
_FEW_TO_RESUME_TWICE = 3
"""Batches of an epoch, so that it can be stopped in its rest as well."""
_AGAIN = (
    "The state was taken with state_dict() between two batches, and pickled. A new process called"
    " make_dataset and then load_state_dict() on the new loader, and iterated with other random"
    " seeds"
)


@dataclass(frozen=True)
class SaveStates(Step):
    """Save the state of the loader after each batch, and keep some for other processes.

    Attributes:
        after_batches: After how many batches of the epoch a state is kept.
        at_end: Whether one is kept after the epoch.
        killed_after: After how many batches the process gets SIGKILL; None to let it live.
    """

    after_batches: tuple[int, ...]
    at_end: bool = False
    killed_after: int | None = None

    @property
    def harms(self) -> bool:
        """Whether the process is killed."""
        return self.killed_after is not None

    def run(self, process: TrialProcess) -> None:
        """Save them from now on."""
        from pytest_dataloader_faults.battery.checks.resume.states import StateSaver

        first = sum(isinstance(note, SavedState) for note in process.journal.of(Note))
        saver = StateSaver(process.journal, process.loader, self, first)
        process.start_driver().after_batch = saver


@dataclass(frozen=True)
class LoadState(Step):
    """Have the loader resume from the kept state *number*, from 0, or the last one if it is -1.

    The process is left out if no such state was kept.

    Attributes:
        more_workers: Whether the loader gets one more worker before.
    """

    number: int
    more_workers: bool = False

    def may_run(self, journal: Journal) -> bool:
        """Whether there is such a state."""
        from pytest_dataloader_faults._trial.journal import Kept

        count = len(list(journal.of(Kept)))
        return -count <= self.number < count

    def run(self, process: TrialProcess) -> None:
        """Load it before the next pass."""
        from pytest_dataloader_faults._trial.journal import Kept
        from pytest_dataloader_faults.battery.checks.resume.states import load_state

        saved = list(process.journal.of(Kept))[self.number]
        process.journal.write(LoadedState(saved.number, self.more_workers))
        if self.more_workers:
            more = process.loader.num_workers + 1
            object.__setattr__(process.loader, "num_workers", more)  # torch forbids it.
        process.prepare = partial(load_state, saved.state)


def _make_stateful(loader: DataLoader[Any]) -> DataLoader[Any]:
    """*loader*, or one with a state, if only its dataset has one."""
    from pytest_dataloader_faults.battery.checks.resume import states

    return states.make_stateful(loader)


def _count_batches_to_resume(workload: Workload) -> int:
    """How many batches an epoch has; raises NotApplicable if the loader cannot resume."""
    run = workload.fault_free
    if run.loader.state_of is StateOf.NONE:
        raise NotApplicable(_NO_STATE)
    if run.loader.state_of is StateOf.UNAVAILABLE:
        raise NotApplicable(_NO_TORCHDATA, "torchdata is not installed")
    if run.comparison.limit is not None and run.comparison.differs_per_worker:
        raise NotApplicable(_RANDOM, "its samples are random")
    if run.comparison.limit is not None:
        raise NotApplicable(_NO_END, "its stream is endless or very long")
    count = len(run.epochs[0].delivered)
    if count <= 1:
        raise NotApplicable(_ONE_BATCH)
    return count


def save_states(step: SaveStates, *following: Process) -> Processes:
    """An epoch that saves the states of its loader, and the processes that follow."""
    begin = (Make(adapt=_make_stateful), Look(Stage.START), Action.ARM, step)
    return (*begin, Epoch(), Action.END_WORKERS, Look(Stage.EPOCH), Action.DISARM), *following


def _resume_from(state: int, number: int = 1, *saving: SaveStates) -> Process:
    """A process that knows only the *state*. Its random numbers are those of another run."""
    return _run_again(Phase(Stage.RESUMED, number), LoadState(state), *saving)


def _run_again(phase: Phase, *before: Step) -> Process:
    seed = 1 + _SEEDS_APART * (phase.epoch or 0)
    make, again = Make(phase, _make_stateful), FaultFreePass(phase, seed=seed, after_faults=False)
    return (make, *before, again, Action.END_WORKERS)


FROM_LAST_STATE = _resume_from(-1), _run_again(Phase(Stage.UNINTERRUPTED))


@check(
    "resumes",
    "a loader resumed from its saved state delivers the rest of the epoch exactly once",
    rule=find_violation,
    describe=describe,
    preface=_AGAIN,
)
def resumes(workload: Workload) -> Iterator[Scenario]:
    """After the first batch, in the middle, after the last batch and after the epoch.

    These states are those of one process, which ends its epoch. One that is killed cannot write
    down at its end where it was, so it dies at the batch after the one whose state was kept.
    """
    count = _count_batches_to_resume(workload)
    # Whole batches of a stream are others with another number of workers.
    delivered = workload.fault_free.epochs[0].delivered
    is_comparable = workload.fault_free.kind == "map" or not delivered[0].is_whole
    yield Scenario(title="stopped", processes=_stop_after_each(count, more_workers=is_comparable))
    killed = SaveStates((count // 2,), killed_after=count // 2 + 1)
    yield Scenario(title="killed", processes=save_states(killed, *FROM_LAST_STATE))


def _stop_after_each(count: int, *, more_workers: bool) -> Processes:
    """The processes of a job whose epoch has *count* batches."""
    after = tuple(sorted({1, count // 2, count}))
    again = {}
    if count >= _FEW_TO_RESUME_TWICE:
        # After the first batch, and after the epoch: the rest of the next epoch counts as well.
        again = {0: SaveStates(((count - 1) // 2,)), len(after): SaveStates((count // 2,))}
    processes = [
        _resume_from(number, number + 1, *filter(None, [again.get(number)]))
        for number in range(len(after) + 1)
    ]
    twice = range(len(processes), len(processes) + len(again))
    processes += [_resume_from(number, number + 1) for number in twice]
    if more_workers:
        load = LoadState(after.index(max(1, count // 2)), more_workers=True)
        processes.append(_run_again(Phase(Stage.RESUMED, len(processes) + 1), load))
    return save_states(SaveStates(after, at_end=True), *processes)
