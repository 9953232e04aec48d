"""Drive a DataLoader: start epochs, take batches, record how its workers end [in a trial]."""

from __future__ import annotations

import contextlib
import functools
import itertools
import math
import os
import pickle
import queue
import time
import traceback
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from multiprocessing import connection
from typing import Any

from torch.utils.data._utils import signal_handling

from pytest_dataloader_faults._engine.fetch_hooks import seed_everything
from pytest_dataloader_faults._engine.iterator import IteratorListener
from pytest_dataloader_faults._engine.protocol import Idle
from pytest_dataloader_faults._engine.system.libc import end_with_parent
from pytest_dataloader_faults._engine.system.processes import fork, reap
from pytest_dataloader_faults._trial import samplers
from pytest_dataloader_faults._trial.job import Job
from pytest_dataloader_faults._trial.journal import (
    HARNESS,
    LOADER,
    BatchReceived,
    FactsFound,
    Journal,
    PassEnded,
    PhaseStarted,
    ProcessesStarted,
)
from pytest_dataloader_faults._trial.loaders import (
    USERS_ERRORS,
    dataset_of,
    end_workers,
    join,
    kept_iterators,
    renew,
    reraise_own_error,
)
from pytest_dataloader_faults._trial.passes import SampleComparer
from pytest_dataloader_faults._trial.samples import Draw, record_draw
from pytest_dataloader_faults.outcomes import LoaderFacts, Pass, Phase, Raised, Stage, WorkerDeath
from pytest_dataloader_faults.outcomes.chains import origin_of, shorten_chain
from pytest_dataloader_faults.outcomes.stages import START
from pytest_dataloader_faults.outcomes.text import text_or_error

# Some facts about waiting for a worker. ``Process.join(timeout)`` first waits, for that long, for
# the sentinel: the end of a pipe that the kernel closes with the worker. Then it waits by
# waitpid(2) for as long as it takes. A forked worker that becomes another program by exec(2) closes
# the pipe and lives on under the same pid; so does one that closes every descriptor. torch ends its
# workers by ``join`` with a timeout, and sends SIGTERM to those that are still alive afterwards:
# that never happens here. A pidfd shows when the process itself has ended. The exit code of a fork
# server's worker arrives through the sentinel, a moment later.
#
# Some facts about a pass in a child. Workers that start cost a fifth of a trial. What a pass opens
# in the trial's own process would look like a leak, and a library that is used there for the first
# time would be shared by later workers. An error in the child may come from the missing worker, so
# that the whole trial is then run again, and its recovery has workers.


CALLS_USER_CODE = (
    *("start", "_start_iterator", "take"),
    *("get", "_read", "_wait", "_get_in_slices", "_raise_if_ended", "_has_ended"),
)

_WITHOUT_FAULTS = (Stage.RECOVERY, Stage.RESUMED, Stage.UNINTERRUPTED)
"""Stages whose workers are not armed."""
_EXIT_PATIENCE = 5.0
"""Seconds between the last descriptor that a process closes and its end: it may dump core."""


_OTHERS_PATIENCE = 2.0
"""Seconds in which a worker that has started a batch also reaches the hang, if it will."""


def idle_at_once(_patience: float | None = None) -> Idle:
    """The default of ``wait_until_idle``: do not wait."""
    return Idle()


@dataclass(kw_only=True)
class LoaderDriver(IteratorListener):
    """A loader and its current epoch, if any. It must be notified of the loader's iterators.

    Attributes:
        loader: The ``DataLoader``.
        facts: What is known of it.
        length: How many samples its sampler may draw of the dataset, if that is known.
        draws: What is requested in place of what the sampler draws, pickled.
        keep_workers: Whether persistent workers that are all alive survive an error.
        use_batch: Does with a batch what a training loop does, and returns the result.
        wait_until_idle: Waits until the workers have made what was requested, or hang. Its argument
            is the number of seconds to wait for the others if one hangs.
        meet: Waits for other jobs after a batch, called with the epoch and the batch, both from 1;
            returns whether the epoch continues. None for a job that runs alone.
        after_batch: Called after each batch of an epoch with their number, and once more after the
            epoch; or None.

    """

    journal: Journal
    job: Job
    loader: Any
    facts: LoaderFacts
    length: int | None = None
    draws: Sequence[bytes] = ()
    keep_workers: bool = False
    use_batch: Callable[[Any], Any] | None = None
    wait_until_idle: Callable[..., Idle] = idle_at_once
    meet: Callable[[int, int], bool] | None = None
    after_batch: Callable[..., None] | None = None

    def __post_init__(self) -> None:
        remove_handler()
        self.comparer = SampleComparer(self.job.comparison, self.job.settings.contract, self.loader)
        self._begun = weakref.WeakSet[Any]()
        """Iterators of torch's. One may be in a generator that the loader's author wrote."""
        self._phase = START
        self._draws: list[Draw] = []
        """The draws of this epoch. A kept iterator has made some of them in the last one."""
        self._drawn_ahead = 0
        """How many of these were drawn before this epoch, by an iterator that may be kept."""
        self._received_ids: set[int] = set()
        """The ids of the draws whose batches the loop has received."""
        self._passed_on: deque[tuple[int | None, Draw, Any]] = deque()
        """The batches that torch has passed to the loader, and the loader not yet to the loop."""
        self._received = 0
        self._draw_number = 0
        """Of the next draw of the latest iterator, from 0."""
        self._iterator: Any = None
        self._timeout: float | None = None
        self._pids: tuple[int, ...] = ()
        self._is_starting = False
        self._batches: int | None = None
        self._endless: int | None = None
        """How many batches an epoch has if its sampler has no end, and the loader counts."""
        if self.facts.kind == "map":
            self._endless = samplers.length_of_endless(self.loader)

    def on_begin(self, iterator: Any) -> None:
        self._begun.add(iterator)
        self._draw_number = 0
        if self._drawn_ahead:  # The iterator of the last epoch is not kept.
            del self._draws[: self._drawn_ahead]
            self._passed_on.clear()
            self._drawn_ahead = 0

    def on_draw(self, sampled: Any, dataset: Any, *, batched: bool) -> tuple[Any, Draw]:
        if not (self._pids or self._is_starting):
            self._write_workers(self.working, time.monotonic())
        draw = record_draw(sampled, dataset, batched=batched)
        number, count = self._draw_number, len(self.draws)
        self._draw_number += 1
        is_replayed = bool(count) and (number < count or self._endless is not None)
        if is_replayed and dataset is dataset_of(self.loader):
            sampled = pickle.loads(self.draws[number % count])  # noqa: S301  # the sampler's own
            draw = record_draw(sampled, dataset, batched=batched)
        self._draws.append(draw)
        return sampled, draw

    def on_batch(self, worker: int | None, draw: Draw, batch: Any) -> None:
        self._passed_on.append((worker, draw, batch))

    def queue_of_batches(self, batches: Any, expected: Callable[[], list[Any]]) -> Any:
        is_watchful = isinstance(batches, WatchfulQueue)
        return batches if is_watchful else WatchfulQueue(batches, expected)

    def start(
        self,
        phase: Phase,
        seed: int,
        patience: float | None = None,
        prepare: Callable[[Any], None] | None = None,
    ) -> bool:
        """Begin *phase*, an epoch or the recovery; whether the loader raised no error.

        Its iterator waits at most *patience* seconds for a batch; with None as long as it would.
        *prepare* is called with the loader before that.
        """
        self._phase, self._received, self._batches = phase, 0, None
        self.journal.write(PhaseStarted(phase, time.monotonic()))
        self._draws = [each for each in self._draws if id(each) not in self._received_ids]
        self._drawn_ahead = len(self._draws)
        self._received_ids.clear()
        self.comparer.begin()
        seed_everything(seed)
        try:
            if self.meet and phase.epoch is not None:
                samplers.set_epoch(self.loader, phase.epoch - 1)
            if prepare is not None:
                prepare(self.loader)
            self._start_iterator(patience)
            if patience is not None:
                self.wait_until_idle(_OTHERS_PATIENCE)
        except USERS_ERRORS as error:  # The error is the finding.
            self._end_epoch(error)
            return False
        return True

    def take(self, batches: int | None = None) -> bool:
        """Take that many *batches* and leave the epoch, or take all; whether it succeeded."""
        try:
            for batch in itertools.islice(self._iterator, batches):
                self._write_batch(batch)
                if self.meet and not self.meet(self._phase.epoch or 0, self._received):
                    self._end_epoch(None)
                    return False
            if self.after_batch:
                self.after_batch(self._received, at_end=True)
        except USERS_ERRORS as error:  # The error is the finding.
            self._end_epoch(error)
            return False
        self._end_epoch(None, complete=batches is None)
        return True

    def run_in_child(self, phase: Phase, seed: int, prepare: Callable[[Any], None]) -> None:
        """Run *phase* in a child of this process, without workers."""
        parent = os.getpid()
        with self.journal.passed_on():
            child = fork()
        if child:
            self.journal.write(ProcessesStarted([child]))
            reap(child)
            return
        try:
            end_with_parent(parent)
            vars(self.loader).update(num_workers=0, timeout=0)
            if self.start(phase, seed, prepare=prepare):
                self.take()
        finally:
            os._exit(0)

    def end_workers(self) -> None:
        iterators = self._kept_iterators()
        for iterator in (self._iterator, self.loader._iterator, *iterators):
            end_workers(iterator)
        for iterator in iterators:
            self._begun.discard(iterator)
            renew(iterator, self.loader)
        self._iterator = self.loader._iterator = None
        self._pids = ()

    def drop_batches_in_advance(self) -> None:
        """Take from kept iterators what their workers were requested to make before the next epoch.

        Faults may have hit these batches, and any error of theirs with them.
        """
        for iterator in self._kept_iterators():
            for _ in range(len(getattr(iterator, "_draws", ()))):
                with contextlib.suppress(*USERS_ERRORS):
                    next(iterator)
        self._passed_on.clear()

    @property
    def working(self) -> list[Any]:
        """The workers of the loader, wherever it has their iterator."""
        return [worker for each in self._inner_iterators() for worker in each._workers]

    def _inner_iterators(self) -> list[Any]:
        """The iterators from which a loader with its own ``__iter__`` takes batches now."""
        dataset, begun = dataset_of(self.loader), list(self._begun)
        working = (each for each in begun if not getattr(each, "_shutdown", True))
        return [each for each in working if each._dataset is dataset]

    def _kept_iterators(self) -> list[Any]:
        """The iterators that the loader has kept, in attributes or elsewhere.

        Between two epochs. In an epoch, these are also those in the loader's own ``__iter__``.
        """
        in_attributes = [iterator for *_, iterator in kept_iterators(self.loader)]
        excluded = {*map(id, (self._iterator, self.loader._iterator, *in_attributes))}
        return [
            *in_attributes,
            *(each for each in self._inner_iterators() if id(each) not in excluded),
        ]

    def _start_iterator(self, patience: float | None) -> None:
        starting, self._timeout = time.monotonic(), self.loader.timeout
        if patience is not None:  # Until the end: a generator makes torch's iterator later.
            self.loader.timeout = min(self._timeout or patience, patience)
        self._is_starting = True
        self._iterator = iter(samplers.outer_loader(self.loader))
        self._is_starting = False
        if self.facts.kind == "map":
            with contextlib.suppress(*USERS_ERRORS):  # Of a sampler that has no length.
                self._batches = self._endless or len(self.loader._index_sampler)
                self.journal.write(FactsFound(replace(self.facts, batches=self._batches)))
        self._write_workers(getattr(self._iterator, "_workers", ()), starting)

    def _write_workers(self, workers: Iterable[Any], starting: float) -> None:
        """Record new *workers*. Those of a loader whose __iter__ is a generator start late."""
        pids = tuple(each.pid for each in workers)
        if pids != self._pids:
            self._pids = pids
            since = None if self._phase.stage in _WITHOUT_FAULTS else starting
            self.journal.write(ProcessesStarted(pids, since))

    def _write_batch(self, batch: Any) -> None:
        places = [place for place, each in enumerate(self._passed_on) if each[2] is batch]
        for _ in range(places[0] if places else 0):  # The loader leaves these out.
            self._passed_on.popleft()
        worker, made_of, delivered = (
            self._passed_on.popleft() if self._passed_on else (None, None, batch)
        )
        # The loader's own ``__iter__`` may have changed it, as if to normalize it.
        result = delivered if self.use_batch is None else self.use_batch(batch)
        self._received_ids.add(id(made_of))
        draw = max_samples = None
        if self._phase.stage is Stage.RESUMED:  # It may have drawn what it leaves out.
            max_samples = max((len(each.names) for each in self._draws), default=None)
        elif self.facts.kind == "map":
            draw = made_of
        self._received += 1
        received = self.comparer.record_batch(result, draw, max_samples)
        received = replace(received, worker=worker)
        self.journal.write(BatchReceived(self._phase, received))
        if self.after_batch:
            self.after_batch(self._received)

    def _end_epoch(self, error: BaseException | None, *, complete: bool = False) -> None:
        """End the epoch. Persistent workers stay if there was no *error*, or if all are alive."""
        ended, persistent = time.monotonic(), self.loader._iterator
        iterator = self._iterator if persistent is None else persistent
        if not hasattr(iterator, "_workers"):
            iterator = next(iter(self._inner_iterators()), iterator)
        raised, died = None, list[WorkerDeath]()
        if error is not None:  # This takes the trial's time.
            self.journal.write_turn(HARNESS)
            raised = describe_error(error)
            died = find_deaths(iterator, self.wait_until_idle(_OTHERS_PATIENCE))
            self.journal.write_turn(LOADER)
        workers = getattr(iterator, "_workers", ())
        are_alive = bool(workers) and all(each.is_alive() for each in workers)
        may_stay = error is None or (self.keep_workers and are_alive)
        # Before the workers are ended: that may take longer than the deadline.
        drawn = tuple(each.names for each in self._requested(is_over=complete and error is None))
        facts = (raised, complete, tuple(died), self._batches, self.length)
        self.journal.write(PassEnded(ended, Pass(self._phase, drawn, (), *facts)))
        if self._timeout is not None:
            self.loader.timeout, self._timeout = self._timeout, None
        is_kept = bool(self._kept_iterators() if complete else kept_iterators(self.loader))
        if not may_stay or (persistent is None and not is_kept):
            self.end_workers()
        self._iterator = None

    def _requested(self, *, is_over: bool) -> list[Draw]:
        """The draws for which a batch is due."""
        if is_over and self._endless is not None and self._received >= self._endless:
            return [each for each in self._draws if id(each) in self._received_ids]
        return self._draws


def find_deaths(iterator: Any, ended: Idle) -> list[WorkerDeath]:
    """How those workers of *iterator* died that were not at the end of their stream.

    The supervisor notices an end when the kernel closes the worker's descriptors, which is before
    the main process can wait for it. The supervisor does not know a worker that died unarmed.
    """
    worker_deaths = []
    for number, worker in enumerate(getattr(iterator, "_workers", ())):
        is_early = number in ended.early
        if is_early:
            join(worker, _EXIT_PATIENCE)
        if number not in ended.in_time and (worker.exitcode or (is_early and worker.exitcode == 0)):
            worker_deaths.append(WorkerDeath(number, worker.pid, worker.exitcode))
    return worker_deaths


def describe_error(error: BaseException) -> Raised:
    """*error* as a finding about the dataset; an error of this package is raised again."""
    text = "".join(traceback.format_exception(error))
    reraise_own_error(error, text)
    message, unprintable = text_or_error(error)
    texts = shorten_chain(message), shorten_chain(text), unprintable
    return Raised(type(error).__name__, *texts, file=origin_of(error))


# Some facts about torch's handler of SIGCHLD. It raises RuntimeError at whatever bytecode the main
# thread has reached when a worker has died (torch/utils/data/_utils/signal_handling.py). If that is
# after ``multiprocessing.Queue.put`` has acquired the lock ``_notempty`` and before the ``with``
# block that would release it, the lock stays acquired, and torch's own ``_shutdown_workers`` waits
# for it forever. If it is a ``try`` block of other code, the error is swallowed. If it is the code
# of a trial, the trial fails instead of the loader. And any handler gives EINTR to calls that a
# filter holds, although the kernel has not started them, which Python does not expect of
# connect(2).
#
# So a trial has no handler. It does what torch's does, which checks each worker by waitid(2), while
# the loader is in the ``get`` of the queue of batches, and nothing elsewhere: a worker that died
# before is found when the next ``get`` starts. A worker that dies while it sends leaves half a
# message in the pipe, so each read of the pipe waits for the workers' ends as well. With
# ``pin_memory`` a thread of torch's reads that pipe. The loader then waits for a queue between
# threads, and looks every few milliseconds.
#
# Some facts about torch's 5 s (``MP_STATUS_CHECK_INTERVAL``). A worker that exits with status 0 is
# not a failure to that handler. The loader misses it for 5 s: then ``get`` raises queue.Empty, and
# the loader looks for workers that are dead but should not be. Here ``get`` waits for the sentinels
# of these workers as well, and raises as soon as one is ready and the queue is empty: the answer is
# the same, only sooner. It does not look every few milliseconds, since a busy machine would keep it
# waiting each time, and its time to wait for a processor counts (see ``process/clock.py``). In the
# same 5 s a worker that received its end must exit, or gets SIGTERM: a healthy one may be in the
# middle of a slow read, so that is not changed.


_BETWEEN_LOOKS = 0.01
_now = time.monotonic
_raise_for_deaths = signal_handling._error_if_any_worker_fails  # type: ignore[attr-defined]


def remove_handler() -> None:
    """Have torch believe that its handler of SIGCHLD is there, so that it never installs it."""
    signal_handling._SIGCHLD_handler_set = True


class WatchfulQueue:
    """A loader's queue of batches, with the one method that its iterator uses.

    *expected* returns the processes of the workers that batches are expected from.
    """

    def __init__(self, batches: Any, expected: Callable[[], list[Any]]) -> None:
        self._batches, self._expected = batches, expected
        if not isinstance(batches, queue.Queue):
            self._reader = batches._recv_bytes.__self__
            self._reader._recv = functools.partial(self._reader._recv, read=self._read)

    def get(self, timeout: float) -> Any:
        """The next batch; RuntimeError if a worker failed.

        Raises queue.Empty after *timeout* seconds, or if a worker left and nothing has arrived.
        """
        until = _now() + timeout
        _raise_for_deaths()
        if isinstance(self._batches, queue.Queue):
            return self._get_in_slices(until)
        self._wait(until)
        return self._batches.get(timeout=max(0.0, until - _now()))

    def _read(self, descriptor: int, size: int) -> bytes:
        self._wait(math.inf)
        return os.read(descriptor, size)

    def _wait(self, until: float) -> None:
        """Wait until there is something to read; raise for a worker that has died before that."""
        while True:
            sentinels = {worker.sentinel: worker for worker in self._expected()}
            seconds = None if until == math.inf else max(0.0, until - _now())
            ready = connection.wait([self._reader, *sentinels], seconds)
            if self._reader in ready:
                return
            if not ready:
                raise queue.Empty
            _raise_if_ended([sentinels[each] for each in ready])
            # One that closed its sentinel itself lives on, and one that ends does so in a moment.
            connection.wait([self._reader], _BETWEEN_LOOKS)

    def _get_in_slices(self, until: float) -> Any:
        while until - _now() > _BETWEEN_LOOKS:
            with contextlib.suppress(queue.Empty):
                return self._batches.get(timeout=_BETWEEN_LOOKS)
            _raise_if_ended(self._expected())
        return self._batches.get(timeout=_BETWEEN_LOOKS)


def _raise_if_ended(workers: list[Any]) -> None:
    """Raise torch's error if one of *workers* failed, and queue.Empty if one just exited."""
    if any(map(_has_ended, workers)):
        _raise_for_deaths()
        raise queue.Empty


def _has_ended(worker: Any) -> bool:
    """Whether its end can be waited for. The kernel closes the sentinel some time before that."""
    try:
        return bool(os.waitid(os.P_PID, worker.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT))
    except ChildProcessError:  # It is a fork server's, or was waited for.
        return not worker.is_alive()
