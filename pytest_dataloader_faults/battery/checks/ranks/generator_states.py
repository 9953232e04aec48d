"""Record the states of the global generators in workers [in a trial]."""

from __future__ import annotations

import hashlib
import multiprocessing
import pickle
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias

from pytest_dataloader_faults._engine.worker.fetch_hooks import (
    FetchListener,
    generator_states,
    observe_fetches,
    seed_sample,
)
from pytest_dataloader_faults._trial.journal import Journal, Noted
from pytest_dataloader_faults.battery.checks.ranks.process_group import Meetings
from pytest_dataloader_faults.wire import Note

if TYPE_CHECKING:
    from torch.utils.data import DataLoader

    from pytest_dataloader_faults._trial.run import TrialProcess

_MakeNote: TypeAlias = Callable[[int, str, str], Note]


def record(process: TrialProcess, loader: DataLoader[Any], make_note: _MakeNote) -> None:
    """Have the workers of *loader* record their generators in the journal of *process*."""
    context = loader.multiprocessing_context or multiprocessing
    queue = context.SimpleQueue()
    meetings = process.meetings
    if loader.worker_init_fn is not None and isinstance(meetings, Meetings):
        meetings.await_second()
    seed = process.job.comparison.seeded
    loader.worker_init_fn = _RecordStates(queue, seed, loader.worker_init_fn)
    process.start_driver().after_batch = _WriteNotes(queue, process.journal, make_note)


class _WriteNotes:
    """Writes down what the workers sent, after each batch."""

    def __init__(self, queue: Any, journal: Journal, make_note: _MakeNote) -> None:
        self._queue, self._journal, self._make_note = queue, journal, make_note

    def __call__(self, _: int, *, at_end: bool = False) -> None:  # noqa: ARG002
        """A batch was delivered."""
        while not self._queue.empty():
            self._journal.write(Noted(self._make_note(*self._queue.get())))


class _RecordStates:
    """A ``worker_init_fn`` that runs the user's own, and then records the generators."""

    def __init__(
        self, queue: Any, seed: int | None, init_fn: Callable[[int], object] | None
    ) -> None:
        self._queue, self._seed, self._then = queue, seed, init_fn

    def __call__(self, worker: int) -> None:
        """Run in the worker, before it makes its first sample."""
        if self._then is not None:
            self._then(worker)
        observe_fetches(_FirstFetch(worker, self._queue, self._seed), samples=True)


class _FirstFetch(FetchListener):
    """Sends the state of each generator before the first fetch, if the fetch used it.

    *seed*: what random numbers restart from at each sample of this trial, if they do.
    """

    def __init__(self, worker: int, queue: Any, seed: int | None) -> None:
        self._worker, self._queue, self._seed = worker, queue, seed
        self._sample: int | None = None
        self._states: dict[str, Any] | None = generator_states()
        """From when ``worker_init_fn`` has run until the first fetch is over."""

    def begin_sample(self, sample: int | None, *, alone: bool) -> None:  # noqa: ARG002
        """A sample starts."""
        self._sample = sample

    def end(self, *, ended: bool) -> None:  # noqa: ARG002
        """The fetch is over."""
        if self._states is None:
            return
        states, self._states = self._states, None
        later = generator_states(states)
        unused = self._unused_states(states)
        for library, state in states.items():
            if later[library] != unused[library]:
                digest = hashlib.sha256(pickle.dumps(state)).hexdigest()
                self._queue.put((self._worker, library, digest))

    def _unused_states(self, states: dict[str, Any]) -> dict[str, Any]:
        """The states if the last sample drew nothing; *states*: those before the fetch."""
        if self._seed is None:
            return states
        seed_sample(self._seed, self._sample)  # The next sample restarts them anyway.
        return generator_states(states)
