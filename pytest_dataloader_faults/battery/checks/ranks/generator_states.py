"""Record the states of the global generators in workers [in a trial]."""

from __future__ import annotations

import hashlib
import multiprocessing
import pickle
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from pytest_dataloader_faults._engine.fetch_hooks import (
    FetchListener,
    generator_states,
    observe_fetches,
    seed_sample,
)
from pytest_dataloader_faults.wire import Note

if TYPE_CHECKING:
    from torch.utils.data import DataLoader

    from pytest_dataloader_faults._trial.run import TrialProcess

CALLS_USER_CODE = True


def record(
    process: TrialProcess, loader: DataLoader[Any], make_note: Callable[[int, str, str], Note]
) -> None:
    """Have the workers of *loader* record their generators in the journal of *process*."""
    queue = (loader.multiprocessing_context or multiprocessing).SimpleQueue()
    if loader.worker_init_fn is not None and process.meetings is not None:
        process.meetings.await_second()
    seed = process.job.comparison.seeded
    loader.worker_init_fn = _SendStates(queue, seed, loader.worker_init_fn)

    def write_notes(_: int, *, at_end: bool = False) -> None:  # noqa: ARG001  # of each batch
        while not queue.empty():
            process.journal.write(make_note(*queue.get()))

    process.start_driver().after_batch = write_notes


class _SendStates(FetchListener):
    """A ``worker_init_fn`` that sends the state of each generator that the first fetch uses.

    It runs the user's own before. *seed*: what random numbers restart from at each sample of this
    trial, if they do.
    """

    def __init__(
        self, queue: Any, seed: int | None, init_fn: Callable[[int], object] | None
    ) -> None:
        self._queue, self._seed, self._then = queue, seed, init_fn
        self._worker, self._sample = 0, None
        self._states: dict[str, Any] | None = None
        """From when the user's function has run until the first fetch is over."""

    def __call__(self, worker: int) -> None:
        """Run in the worker, before it makes its first sample."""
        if self._then is not None:
            self._then(worker)
        self._worker, self._states = worker, generator_states()
        observe_fetches(self, samples=True)

    def begin_sample(self, sample: Any, *, alone: bool) -> None:  # noqa: ARG002
        """A sample starts."""
        self._sample = sample

    def end(self, *, ended: bool) -> None:  # noqa: ARG002
        """The fetch is over."""
        if self._states is None:
            return
        states, self._states = self._states, None
        unused, later = states, generator_states(states)
        if self._seed is not None:
            # The state if the last sample drew nothing. The next sample restarts them anyway.
            seed_sample(self._seed, self._sample)
            unused = generator_states(states)
        for library, state in states.items():
            if later[library] != unused[library]:
                digest = hashlib.sha256(pickle.dumps(state)).hexdigest()
                self._queue.put((self._worker, library, digest))
