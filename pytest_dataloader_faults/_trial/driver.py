"""One loader after another over a dataset: epochs begun, gone on with, broken off [in a trial].

After each call of torch's it is waited until the workers have made what they were asked for: so
what they met does not depend on how quickly the next step comes.
"""

from __future__ import annotations

import itertools
import pickle
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from pytest_dataloader_faults._engine.loader.client import EndedWorkers
from pytest_dataloader_faults._trial.batches import (
    are_alive,
    deaths,
    delivery,
    end_workers,
    places,
    raised_by,
)
from pytest_dataloader_faults._trial.journal import Journal
from pytest_dataloader_faults._trial.loaders import (
    USERS_ERRORS,
    kind_of,
    loader_for,
    seed_everything,
)
from pytest_dataloader_faults._trial.process.sigchld import SigchldGuard, kill
from pytest_dataloader_faults._trial.resources import GcEachEpoch
from pytest_dataloader_faults._trial.samples.comparer import SampleComparer
from pytest_dataloader_faults._trial.samples.reference import plain_indices
from pytest_dataloader_faults.outcomes import Raised

if TYPE_CHECKING:
    from torch.utils.data import DataLoader


class LoaderDriver:
    """A dataset, the loader over it, and the epoch that is going on, if there are any."""

    def __init__(
        self,
        dataset: Any,
        journal: Journal,
        teller: SampleComparer,
        seed: int,
        drawn: list[Any],
        settle: Callable[[], EndedWorkers],
    ) -> None:
        self._dataset = dataset
        self._journal = journal
        self._teller = teller
        self._seed = seed
        self._drawn = drawn
        self._settle = settle
        self._death_watch = SigchldGuard()
        self._options: Mapping[str, Any] = {}
        self._loader: DataLoader[Any] | None = None
        self._iterator: Any = None
        self._place_of: Callable[[int], int] = lambda number: number
        self._epoch = self._came = 0
        self._killed: set[int] = set()
        self.loaders = 0
        """How many iterators have had workers of their own."""
        self.pids: tuple[int, ...] = ()
        """Those of the workers that are there, dead ones too until their iterator has ended."""

    def make(self, options: Mapping[str, Any]) -> None:
        """Have a loader with *options*."""
        self.delete()
        self._options = options
        self._loader = loader_for(self._dataset, options)
        self._loader.worker_init_fn = GcEachEpoch(self._loader.worker_init_fn)

    def take(self, batches: int | None) -> None:
        """Take so many batches, or all that are left, up to the first error."""
        try:
            if self._iterator is None:
                self._begin()
            for _ in itertools.count() if batches is None else range(batches):
                self._write(next(self._iterator))
                self._settle()
            self._tell()
        except StopIteration:
            self._end(None)
        except USERS_ERRORS as error:  # The error is the finding.
            self._end(raised_by(error))

    def restart(self) -> None:
        """Begin an epoch."""
        try:
            self._begin()
        except USERS_ERRORS as error:
            self._end(raised_by(error))

    def break_off(self) -> None:
        """Let the epoch go that is going on, and its workers unless they are to stay."""
        assert self._loader is not None
        if self._iterator is not None and not self._loader.persistent_workers:
            self._end_workers()
        self._iterator = None

    def kill(self, worker: int) -> int | None:
        """Kill a worker; its pid, or None if there is none that lives."""
        pid = self.pids[worker] if worker < len(self.pids) else None
        if pid is None or pid in self._killed:
            return None
        self._killed.add(pid)
        kill(pid)
        return pid

    def copy(self) -> None:
        """Go on with a pickled copy of the dataset."""
        try:
            copy = pickle.loads(pickle.dumps(self._dataset))  # noqa: S301  # the user's own
        except USERS_ERRORS as error:
            self._epoch += 1
            self._tell(exception=asdict(raised_by(error)))
            return
        had_one = self._loader is not None
        self.delete()
        self._dataset = copy
        if had_one:
            self.make(self._options)

    def delete(self) -> None:
        """Delete the loader."""
        if self._loader is not None:
            self._end_workers()
        self._loader = None

    def _begin(self) -> None:
        assert self._loader is not None
        self._epoch += 1
        self._came = 0
        self._drawn.clear()
        self._teller.begin()
        self._tell()
        seed_everything(self._seed + self._epoch)
        before = self._iterator
        self._iterator = iter(self._loader)
        if before is not None and before is not self._iterator:
            end_workers(before)
        self._death_watch.look_while_waiting(self._iterator)
        self._place_of = places(self._iterator)
        self._note_workers()
        self._settle()
        self._tell()

    def _note_workers(self) -> None:
        pids = tuple(each.pid for each in self._iterator._workers)
        if pids != self.pids:
            self.pids = pids
            self.loaders += 1
            self._journal.write(pids=pids)

    def _write(self, batch: Any) -> None:
        assert self._loader is not None
        is_map = kind_of(self._loader) == "map"
        drawn = self._drawn[self._place_of(self._came)] if is_map else None
        self._came += 1
        indices = plain_indices(drawn) if is_map else None
        came = delivery(batch, indices, self._loader, self._teller)
        self._journal.write(epoch=self._epoch, batch=asdict(came))

    def _tell(self, **what: Any) -> None:
        """Write down the epoch as it is."""
        drawn = [plain_indices(each) for each in self._drawn]
        told = {"drawn": drawn, "exception": None, "complete": False, **what}
        self._journal.write(epoch=self._epoch, **{"pass": told})

    def _end(self, raised: Raised | None) -> None:
        """The epoch is over. Workers that are to stay do so if all are alive."""
        assert self._loader is not None
        iterator = self._loader._iterator
        current = self._iterator if iterator is None else iterator
        died = deaths(current, self._settle()) if raised else []
        self._tell(
            exception=raised and asdict(raised),
            complete=raised is None,
            deaths=[asdict(each) for each in died],
        )
        if iterator is None or (raised is not None and not are_alive(iterator)):
            self._end_workers()
        self._iterator = None

    def _end_workers(self) -> None:
        assert self._loader is not None
        for iterator in (self._iterator, self._loader._iterator):
            end_workers(iterator)
        self._iterator = self._loader._iterator = None
        self.pids = ()
