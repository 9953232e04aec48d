"""The state of a loader: save it as a checkpoint does, and resume from it [in the trial]."""

from __future__ import annotations

import importlib
import os
import pickle
import signal
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from torch.utils.data import DataLoader, RandomSampler, SequentialSampler

from pytest_dataloader_faults._trial.journal import Journal, Kept, PhaseStarted
from pytest_dataloader_faults._trial.loaders import USERS_ERRORS, dataset_of, kind_of
from pytest_dataloader_faults._trial.samplers import STATEFUL, outer_loader, state_of
from pytest_dataloader_faults.outcomes.chains import shorten_chain
from pytest_dataloader_faults.outcomes.stages import DONE, ChangedState, SavedState, StateOf
from pytest_dataloader_faults.outcomes.text import format_value, shorten

if TYPE_CHECKING:
    from pytest_dataloader_faults.battery.checks.resume import SaveStates

# Some facts about state_dict(). By torch's convention it may return an object that the loader still
# uses. A checkpoint that is written at once holds the right state then, and one that another thread
# writes during the next batch holds a later one. So each state is pickled at once, and once more
# when the next batch has come.


CALLS_USER_CODE = True

_OPTIONS = (
    "num_workers collate_fn pin_memory drop_last timeout worker_init_fn multiprocessing_context"
    " generator prefetch_factor persistent_workers in_order"
).split()


def make_stateful(loader: DataLoader[Any]) -> DataLoader[Any]:
    """*loader*, or one with a state, if only its dataset has one."""
    if state_of(loader) is not StateOf.DATASET:
        return loader
    options = {name: getattr(loader, name) for name in _OPTIONS if hasattr(loader, name)}
    kind = importlib.import_module(STATEFUL).StatefulDataLoader
    stateful: DataLoader[Any] = kind(dataset_of(loader), **_drawing_options(loader), **options)
    return stateful


def _drawing_options(loader: DataLoader[Any]) -> dict[str, Any]:
    """The options by which *loader* draws. torchdata has samplers with a state for torch's own."""
    sampler: Any = loader.sampler
    if kind_of(dataset_of(loader)) == "iterable":
        return {"batch_size": loader.batch_size}
    if loader.batch_size is None and loader.batch_sampler is not None:
        return {"batch_sampler": loader.batch_sampler}
    if type(sampler) is RandomSampler and not sampler.replacement and sampler._num_samples is None:
        return {"batch_size": loader.batch_size, "shuffle": True}
    if type(sampler) is SequentialSampler:
        return {"batch_size": loader.batch_size}
    return {"batch_size": loader.batch_size, "sampler": sampler}


@dataclass
class StateSaver:
    """Takes the state of *loader* after each batch of an epoch, until that fails.

    Attributes:
        step: Which of them are kept, and whether the process is killed.
        count: How many states have been saved in this trial.
    """

    journal: Journal
    loader: DataLoader[Any]
    step: SaveStates
    count: int = 0

    def __post_init__(self) -> None:
        self._last: tuple[Any, bytes] | None = None
        self._has_failed = False

    def __call__(self, batches: int, *, at_end: bool = False) -> None:
        """That many *batches* were delivered; *at_end*: and the epoch is over."""
        self._look_again()
        if batches == self.step.killed_after:
            self.journal.write(PhaseStarted(DONE, time.monotonic()))
            os.kill(os.getpid(), signal.SIGKILL)
        state = SavedState(batches, at_end=at_end)
        if self._has_failed:
            return
        try:
            state_dict = outer_loader(self.loader).state_dict()
            pickled = pickle.dumps(state_dict)
        except USERS_ERRORS as error:
            text = shorten(shorten_chain(format_value(error)))
            self.journal.write(replace(state, error=text))
            self._has_failed = True
            return
        # What is pickled in another way each time cannot be seen to change.
        self._last = (state_dict, pickled) if pickle.dumps(state_dict) == pickled else None
        is_kept = self.step.at_end if at_end else batches in self.step.after_batches
        self.journal.write(replace(state, size=len(pickled)))
        if is_kept:
            self.journal.write(Kept(self.count, pickled))
        self.count += 1

    def _look_again(self) -> None:
        if self._last is None:
            return
        state_dict, pickled = self._last
        self._last = None
        if pickle.dumps(state_dict) != pickled:
            self.journal.write(ChangedState())


def load_state(pickled: bytes, loader: DataLoader[Any]) -> None:
    """Pass the *pickled* state to the *loader*, as a job does that restarts."""
    state = pickle.loads(pickled)  # noqa: S301  # the loader's own
    outer_loader(loader).load_state_dict(state)
