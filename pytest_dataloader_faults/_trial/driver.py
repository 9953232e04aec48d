"""Drive a DataLoader: begin epochs, take batches, note how its workers end [in a trial].

Some facts about waiting for a worker. ``Process.join(timeout)`` first waits, for that long, for the
sentinel: the end of a pipe that the kernel closes with the worker. Then it waits by waitpid(2), for
as long as it takes. A forked worker that becomes another program by exec(2) closes the pipe and
lives on under the same pid; so does one that closes every descriptor. torch ends its workers by
``join`` with a timeout, and sends SIGTERM to those that are still alive afterwards: it never comes
to that here. A pidfd tells when the process itself has ended. The exit code of a fork server's
worker comes through the sentinel, a moment later.
"""

from __future__ import annotations

import contextlib
import itertools
import time
import traceback
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from pytest_dataloader_faults._engine.loader.iterator import IteratorListener
from pytest_dataloader_faults._engine.protocol import Idle
from pytest_dataloader_faults._engine.worker.fetch_hooks import seed_everything
from pytest_dataloader_faults._trial import samplers
from pytest_dataloader_faults._trial.journal import (
    BatchReceived,
    EpochLength,
    HarnessTime,
    Journal,
    LoaderTime,
    PassEnded,
    PhaseStarted,
    WorkersStarting,
)
from pytest_dataloader_faults._trial.loader_state import StateSaver, load_state
from pytest_dataloader_faults._trial.loaders import (
    USERS_ERRORS,
    end_workers,
    join,
    kept_by,
    kind_of,
    outer_of,
    owners_of,
    renew,
    require_users,
)
from pytest_dataloader_faults._trial.process.sigchld import SigchldGuard
from pytest_dataloader_faults._trial.process.stuck import is_stuck
from pytest_dataloader_faults._trial.samples.comparer import SampleComparer, delivery
from pytest_dataloader_faults._trial.samples.draws import Draw, recorded
from pytest_dataloader_faults.outcomes import Pass, Phase, Raised, Stage, WorkerDeath
from pytest_dataloader_faults.outcomes.chains import shortened
from pytest_dataloader_faults.outcomes.stages import START
from pytest_dataloader_faults.outcomes.text import text_or_error

_UNARMED = (Stage.RECOVERY, Stage.RESUMED, Stage.UNINTERRUPTED)
"""Whose workers meet no fault."""
_EXIT_PATIENCE = 5.0
"""Seconds between the last descriptor that a process closes and its end: it may dump core."""


_OTHERS_PATIENCE = 2.0
"""Seconds until a worker that has begun a batch meets the hang, too, if it does not wait for it."""


def idle_at_once(_patience: float | None = None) -> Idle:
    """What waits for no worker."""
    return Idle()


@dataclass(kw_only=True)
class LoaderDriver(IteratorListener):
    """A loader and its current epoch, if there is one. It has to hear the loader's iterators.

    Attributes:
        loader: The ``DataLoader``.
        length: How many samples its sampler may draw of the dataset, if that is known.
        keep_workers: Whether persistent workers that are all alive survive an error.
        use_batch: Does with a batch what a training loop does, and returns the result.
        wait_until_idle: Waits until the workers have made what they were asked for, or hang. It
            takes for how many seconds to wait for the others where one hangs.
        meet: Waits for other ranks after a batch, given the epoch and the batch, both from 1;
            whether the epoch goes on. None without ranks.
        saver: Takes the state of the loader after each batch; None where it is not asked for.

    """

    journal: Journal
    comparer: SampleComparer
    loader: Any
    length: int | None = None
    keep_workers: bool = False
    use_batch: Callable[[Any], Any] | None = None
    wait_until_idle: Callable[..., Idle] = idle_at_once
    meet: Callable[[int, int], bool] | None = None
    saver: StateSaver | None = None

    def __post_init__(self) -> None:
        self._sigchld = SigchldGuard()
        self._begun = weakref.WeakSet[Any]()
        """Iterators of torch's. One may be in a generator that the loader's author wrote."""
        self._phase = START
        self._draws: list[Draw] = []
        """Those of this epoch. An iterator that is kept has drawn some of them in the last one."""
        self._before = 0
        """How many of these were drawn before this epoch, by an iterator that may be kept."""
        self._delivered: set[int] = set()
        """The ids of those whose batches the loop has got."""
        self._arrived: deque[tuple[int | None, Draw]] = deque()
        """Of the batches that torch has given the loader, and the loader not yet the loop."""
        self._received = 0
        self._iterator: Any = None
        self._timeout: float | None = None
        self._pids: tuple[int, ...] = ()
        self._batches: int | None = None
        self._endless: int | None = None
        """How many batches an epoch has if its sampler has no end, and the loader counts."""
        if kind_of(self.loader.dataset) == "map":
            self._endless = samplers.length_of_endless(self.loader, outer_of(self.loader))

    def begun(self, iterator: Any) -> None:
        self._begun.add(iterator)
        if self._before:  # The iterator of the last epoch is not kept.
            del self._draws[: self._before]
            self._arrived.clear()
            self._before = 0

    def drawn(self, what: Any, dataset: Any, *, batched: bool) -> Draw:
        draw = recorded(what, dataset, batched=batched)
        self._draws.append(draw)
        return draw

    @property
    def drawn_so_far(self) -> list[Any]:
        """What the sampler drew for the current epoch, or for the last one."""
        return [draw.drawn for draw in self._draws]

    def received(self, worker: int | None, draw: Draw) -> None:
        self._arrived.append((worker, draw))

    def queue_of_batches(self, batches: Any, expected: Callable[[], list[Any]]) -> Any:
        return self._sigchld.interruptible(batches, expected)

    def start(
        self,
        phase: Phase,
        seed: int,
        patience: float | None = None,
        state: str | None = None,
    ) -> bool:
        """Begin *phase*, an epoch or the recovery; whether the loader raised no error.

        Its iterator waits at most *patience* seconds for a batch; with None as long as it would.
        With *state*, packed, the loader goes on from it.
        """
        self._phase, self._received, self._batches = phase, 0, None
        self.journal.write(PhaseStarted(phase, time.monotonic()))
        self._draws = [each for each in self._draws if id(each) not in self._delivered]
        self._before = len(self._draws)
        self._delivered.clear()
        self.comparer.begin()
        seed_everything(seed)
        try:
            if self.meet and phase.epoch is not None:
                samplers.set_epoch(self.loader, outer_of(self.loader), phase.epoch - 1)
            if state is not None:
                load_state(self.loader, state)
            self._start_iterator(patience)
            if patience is not None:
                self.wait_until_idle(_OTHERS_PATIENCE)
                self._sigchld.is_stuck = self._is_stuck
        except USERS_ERRORS as error:  # The error is the finding.
            self._end_epoch(error)
            return False
        return True

    def take(self, batches: int | None = None) -> bool:
        """Take so many *batches* and leave the epoch, or take all; whether there was no error."""
        taken = itertools.islice(self._iterator, batches)
        try:
            if self.meet is None:
                for batch in taken:
                    self._write_batch(batch)
            elif not self._take_in_step(taken, self.meet):
                self._end_epoch(None)
                return False
            if self.saver:
                self.saver.after(self._received, at_end=True)
        except USERS_ERRORS as error:  # The error is the finding.
            self._end_epoch(error)
            return False
        self._end_epoch(None, complete=batches is None)
        return True

    def _take_in_step(self, taken: Iterator[Any], meet: Callable[[int, int], bool]) -> bool:
        """Take batches as long as the other ranks have one, too; whether all were taken."""
        for batch in taken:
            self._write_batch(batch)
            if not meet(self._phase.epoch or 0, self._received):
                return False
        return True

    def end_workers(self) -> None:
        kept = renew(self.loader, *owners_of(self.loader))
        working = self._inner_iterators()
        for iterator in (self._iterator, self.loader._iterator, *kept, *working):
            end_workers(iterator)
        self._iterator = self.loader._iterator = None
        self._pids = ()

    def drop_batches_in_advance(self) -> None:
        """Take from kept iterators what their workers were asked for before the next epoch.

        Faults may have hit these batches, and any error of theirs with them.
        """
        for iterator in kept_by(*owners_of(self.loader)):
            for _ in range(len(getattr(iterator, "_draws", ()))):
                with contextlib.suppress(*USERS_ERRORS):
                    next(iterator)
        self._arrived.clear()

    def _is_stuck(self) -> bool:
        return is_stuck(self._pids, self.wait_until_idle)

    def _inner_iterators(self) -> list[Any]:
        """Those that a loader with an ``__iter__`` of its own takes batches from now."""
        dataset, begun = self.loader.dataset, list(self._begun)
        working = (each for each in begun if not getattr(each, "_shutdown", True))
        return [each for each in working if each._dataset is dataset]

    def _start_iterator(self, patience: float | None) -> None:
        starting, self._timeout = time.monotonic(), self.loader.timeout
        if patience is not None:  # Until the end: a generator makes torch's iterator later.
            self.loader.timeout = min(self._timeout or patience, patience)
        self._iterator = iter(outer_of(self.loader))
        self._write_length()
        pids = tuple(each.pid for each in getattr(self._iterator, "_workers", ()))
        if pids != self._pids:
            self._pids = pids
            since = None if self._phase.stage in _UNARMED else starting
            self.journal.write(WorkersStarting(pids, since))

    def _write_length(self) -> None:
        """Write down how many batches the epoch will have, if its sampler says so."""
        if kind_of(self.loader.dataset) == "map":
            with contextlib.suppress(*USERS_ERRORS):
                self._batches = self._endless or len(self.loader._index_sampler)
                self.journal.write(EpochLength(self._batches))

    def _write_batch(self, batch: Any) -> None:
        at = time.monotonic()
        if self.use_batch is not None:
            batch = self.use_batch(batch)
        worker, made_of = self._arrived.popleft() if self._arrived else (None, None)
        self._delivered.add(id(made_of))
        draw = most = None
        if self._phase.stage is Stage.RESUMED:  # It may have drawn what it leaves out.
            most = max((len(each.names) for each in self._draws), default=None)
        elif kind_of(self.loader.dataset) == "map":
            draw = made_of
        self._received += 1
        received = delivery(batch, draw, self.loader, self.comparer, most)
        packed = draw and draw.packed
        found = replace(received, worker=worker)
        self.journal.write(BatchReceived(self._phase, at, found, packed or None))
        if self.saver:
            self.saver.after(self._received)

    def _end_epoch(self, error: BaseException | None, *, complete: bool = False) -> None:
        """End the epoch. Persistent workers stay if there was no *error*, or if all are alive."""
        ended, persistent = time.monotonic(), self.loader._iterator
        iterator = self._iterator if persistent is None else persistent
        if not hasattr(iterator, "_workers"):
            iterator = next(iter(self._inner_iterators()), iterator)
        raised, died = (None, ()) if error is None else self._describe(error, iterator)
        workers = getattr(iterator, "_workers", ())
        are_alive = bool(workers) and all(each.is_alive() for each in workers)
        may_stay = error is None or (self.keep_workers and are_alive)
        # Before the workers are ended: that may take longer than the deadline.
        drawn = tuple(each.names for each in self._asked(is_over=complete and error is None))
        found = Pass(drawn, (), raised, complete, died, self._batches, self.length)
        self.journal.write(PassEnded(self._phase, ended, found))
        self._sigchld.is_stuck = None
        if self._timeout is not None:
            self.loader.timeout, self._timeout = self._timeout, None
        is_kept = bool(kept_by(*owners_of(self.loader)))
        if not may_stay or (persistent is None and not is_kept):
            self.end_workers()
        self._iterator = None

    def _asked(self, *, is_over: bool) -> list[Draw]:
        """The draws that the epoch owes a batch of."""
        if is_over and self._endless is not None and self._received >= self._endless:
            return [each for each in self._draws if id(each) in self._delivered]
        return self._draws

    def _describe(
        self, error: BaseException, iterator: Any
    ) -> tuple[Raised, tuple[WorkerDeath, ...]]:
        """*error* and the workers that have died by now. This takes the trial's time."""
        self.journal.write(HarnessTime(time.monotonic()))
        raised = raised_by(error)
        died = deaths(iterator, self.wait_until_idle(_OTHERS_PATIENCE))
        self.journal.write(LoaderTime(time.monotonic()))
        return raised, tuple(died)


def deaths(iterator: Any, ended: Idle) -> list[WorkerDeath]:
    """How those workers of *iterator* died that were not at the end of their stream.

    The supervisor notices an end when the kernel closes the worker's descriptors, which is before
    the loader's process can wait for it. The supervisor does not know a worker that died unarmed.
    """
    found = []
    for number, worker in enumerate(getattr(iterator, "_workers", ())):
        is_early = number in ended.early
        if is_early:
            join(worker, _EXIT_PATIENCE)
        if number not in ended.in_time and (worker.exitcode or (is_early and worker.exitcode == 0)):
            found.append(WorkerDeath(number, worker.pid, worker.exitcode))
    return found


def raised_by(error: BaseException) -> Raised:
    """*error* as a finding about the dataset; an error of our own code is raised again."""
    require_users(error)
    text = "".join(traceback.format_exception(error))
    message, unprintable = text_or_error(error)
    return Raised(type(error).__name__, shortened(message), shortened(text), unprintable)
