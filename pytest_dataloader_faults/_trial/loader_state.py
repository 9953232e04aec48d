"""The state of a loader: save it as a checkpoint does, and go on from it [in the trial].

Some facts about state_dict(). By the custom of torch it may return what the loader goes on using. A
checkpoint that is written at once holds the right state then, and one that another thread writes
during the next batch holds a later one. So each state is pickled at once, and once more when the
next batch has come.
"""

from __future__ import annotations

import base64
import importlib
import importlib.util
import os
import pickle
import signal
import time
from dataclasses import dataclass, replace
from typing import Any

from torch.utils.data import DataLoader, RandomSampler, SequentialSampler

from pytest_dataloader_faults._settings.jobs import Resume
from pytest_dataloader_faults._trial.journal import (
    Journal,
    PhaseStarted,
    StateChanged,
    StateSaved,
)
from pytest_dataloader_faults._trial.loaders import USERS_ERRORS, kind_of, outer_of
from pytest_dataloader_faults._trial.samplers import has_state
from pytest_dataloader_faults.outcomes.chains import shortened
from pytest_dataloader_faults.outcomes.stages import DONE, SavedState, StateOf
from pytest_dataloader_faults.outcomes.text import cut, shown

_STATEFUL = "torchdata.stateful_dataloader"
_OPTIONS = (
    "num_workers collate_fn pin_memory drop_last timeout worker_init_fn multiprocessing_context"
    " generator prefetch_factor persistent_workers in_order"
).split()


def state_of(loader: DataLoader[Any]) -> StateOf:
    """Whose state a checkpoint can hold.

    accelerate's loaders have the methods in any case, and Fabric's hide those of what they wrap.
    """
    if has_state(loader):
        return StateOf.LOADER if has_state(outer_of(loader)) else StateOf.NOBODY
    if type(loader) is not DataLoader or not has_state(loader.dataset):
        return StateOf.NOBODY
    return StateOf.DATASET if _has_torchdata() else StateOf.UNASKED


def _has_torchdata() -> bool:
    try:
        return importlib.util.find_spec(_STATEFUL) is not None
    except ModuleNotFoundError:
        return False


def with_state(loader: DataLoader[Any]) -> DataLoader[Any]:
    """*loader*, or one with a state, where only its dataset has one."""
    if state_of(loader) is not StateOf.DATASET:
        return loader
    how = {name: getattr(loader, name) for name in _OPTIONS if hasattr(loader, name)}
    kind = importlib.import_module(_STATEFUL).StatefulDataLoader
    made: DataLoader[Any] = kind(loader.dataset, **_drawn_as(loader), **how)
    return made


def _drawn_as(loader: DataLoader[Any]) -> dict[str, Any]:
    """The options by which *loader* draws. torchdata has samplers with a state for torch's own."""
    sampler: Any = loader.sampler
    if kind_of(loader.dataset) == "iterable":
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
    """Takes the state of *loader* after each batch of an epoch, and keeps those of *resume*."""

    journal: Journal
    loader: DataLoader[Any]
    resume: Resume

    def __post_init__(self) -> None:
        self._last: tuple[int, Any, bytes] | None = None

    def after(self, batches: int, *, at_end: bool = False) -> None:
        """So many *batches* have come; *at_end*: and the epoch is over.

        Raises:
            BaseException: What state_dict() or pickle raised.
        """
        self._look_again()
        if batches == self.resume.killed_after:
            self.journal.write(PhaseStarted(DONE, time.monotonic()))
            os.kill(os.getpid(), signal.SIGKILL)
        state = SavedState(batches, at_end=at_end)
        try:
            given = outer_of(self.loader).state_dict()
            pickled = pickle.dumps(given)
        except USERS_ERRORS as error:
            said = cut(shortened(shown(error)))
            self.journal.write(StateSaved(replace(state, error=said)))
            raise
        # What is pickled in another way each time cannot be seen to change.
        self._last = (batches, given, pickled) if pickle.dumps(given) == pickled else None
        is_kept = self.resume.at_end if at_end else batches in self.resume.after
        packed = base64.b64encode(pickled).decode() if is_kept else None
        self.journal.write(StateSaved(replace(state, size=len(pickled)), packed))

    def _look_again(self) -> None:
        if self._last is None:
            return
        batches, given, pickled = self._last
        self._last = None
        if pickle.dumps(given) != pickled:
            self.journal.write(StateChanged(batches))


def kept_states(journal: Journal, resume: Resume) -> list[tuple[int, str]]:
    """Those that new processes go on from: the number of each, from 0, and what it is, packed."""
    saved = enumerate(journal.of(StateSaved))
    kept = [(number, each.pickled) for number, each in saved if each.pickled is not None]
    return kept[-1:] if resume.of_last else kept


def load_state(loader: DataLoader[Any], packed: str) -> None:
    """Hand the state that was *packed* to *loader*, as a job does that begins again."""
    state = pickle.loads(base64.b64decode(packed))  # noqa: S301  # the loader's own
    outer_of(loader).load_state_dict(state)
