"""Loaders' iterators that arm their workers and say how far they are [runs where the loader does].

torch/utils/data/dataloader.py: ``DataLoader._get_iterator`` makes the iterator; ``_get_data``
waits for the batch ``_rcvd_idx``; ``_try_put_index`` asks a worker for the batch ``_send_idx`` and
notes that worker in ``_task_info``. Subclasses, such as torchdata's StatefulDataLoader, make
iterators of classes of their own, which derive from torch's; so an iterator is made as it always
is, and then becomes one of a class derived from its own.

Some facts about torch's 5 s (``MP_STATUS_CHECK_INTERVAL``). A loader that waits for a batch looks
every 5 s for workers that are dead. One that dies by a signal is told of at once, by SIGCHLD; one
that leaves with status 0 is missed for 5 s. A trial looks more often: batches are delivered in
order, so those after the lost one would never come, and the answer is the same, only sooner. In the
same 5 s a worker that was told to end must do so, or gets SIGTERM: a healthy one may be in the
midst of a slow read then, so that is left as it is. So is everything under inject(), whose loop is
the user's.
"""

from __future__ import annotations

import contextlib
import functools
import os
from collections import Counter
from collections.abc import Callable, Iterator
from multiprocessing.util import get_temp_dir
from typing import Any

from torch.utils.data import DataLoader

from pytest_dataloader_faults._engine.loader.client import EndedWorkers, SupervisorClient
from pytest_dataloader_faults._engine.loader.descriptor_limit import LoaderDescriptorLimit
from pytest_dataloader_faults._engine.loader.lost_lock import name_a_lost_lock
from pytest_dataloader_faults._engine.loader.pin_memory import PinMemoryFaults
from pytest_dataloader_faults._engine.plan import Plan
from pytest_dataloader_faults._engine.worker.arm import ArmWorker, arm, way_of
from pytest_dataloader_faults._engine.worker.session import WorkerSession
from pytest_dataloader_faults.exceptions import InjectionError, InvalidArgumentError

_Make = Callable[[DataLoader[Any]], Any]
_BETWEEN_LOOKS = 0.2


class LoaderMonitor:
    """What the iterators of one scope share."""

    def __init__(
        self,
        link: SupervisorClient,
        plan: Plan,
        on_error: Callable[[BaseException], None],
        *,
        here: bool,
    ) -> None:
        self.link = link
        self.exhaustion = LoaderDescriptorLimit(plan)
        self._pin_thread = PinMemoryFaults(plan, self.exhaustion.note)
        self.on_error = on_error
        self.here = here
        """Whether this very process may be armed, which is for good: only a trial's may."""
        self.iterators = 0
        self.failed: list[Any] = []
        self._latest: Any = None
        self._armed_process: int | None = None
        self._armed: WorkerSession | None = None
        self._making = False
        way_of(link.posting.engine)

    def iterator(self, loader: DataLoader[Any], make: _Make) -> Any:
        """What ``iter(loader)`` gives in this scope, where *make* makes it elsewhere."""
        if self._making:  # A subclass has asked its base class.
            return make(loader)
        self.iterators += 1
        get_temp_dir()  # This process's, which it removes; a worker that is killed leaves its own.
        if not loader.num_workers:
            self._arm_this_process()
            return _watched(make(loader), self, self.iterators)
        self._making = True
        try:
            with _arming(loader, self.link, self.iterators), self._pin_thread.holds():
                self._latest = _watched(make(loader), self, self.iterators)
        finally:
            self._making = False
        return self._latest

    def told(self) -> dict[int, Any]:
        """What became of the faults that befall this process, by their place in the schedule."""
        return {**self.exhaustion.told(), **self._pin_thread.told()}

    def drain(self) -> EndedWorkers:
        """Wait until the workers have done all that the latest iterator asked of them.

        Returns those that have ended.
        """
        latest = self._latest
        if latest is None:
            return EndedWorkers()
        alive = {  # One that died before it was armed is not known to the supervisor.
            worker: count
            for worker, count in latest._sent.items()
            if latest._workers[worker].is_alive()
        }
        return self.link.drain(latest._number, latest._epoch, alive)

    def end_failed(self) -> None:
        """End the workers of iterators that raised, so that they do not outlive the scope.

        torch's exception is in a cycle with the iterator and its queues (torch/_utils.py,
        ``reraise``). Left to the garbage collector, the queues are finalized first, the workers are
        not told to end, and each costs 5 s.
        """
        while self.failed:
            self.failed.pop()._shutdown_workers()

    def forget(self) -> None:
        """Let go of an iterator that was left before its end, so that its workers end now.

        It holds this object, and the garbage collector would find both in a cycle: see above.
        """
        self._latest = None

    def disarm(self) -> None:
        """The scope is at its end."""
        if self._armed is not None:
            self._armed.disarm()

    def _arm_this_process(self) -> None:
        if not self.here:
            message = (
                "inject() reaches worker processes, but this DataLoader has num_workers=0 and would"
                " read in this process, which is never filtered. Use num_workers=1 or more, or"
                " run_trial(), which runs the loader in a process of its own"
            )
            raise InjectionError(message)
        if self._armed_process != os.getpid():
            self._armed_process = os.getpid()
            self._armed = arm(self.link.posting, 0, self.iterators)


def _watched(iterator: Any, watch: LoaderMonitor, number: int) -> Any:
    """*iterator*, of a class that tells *watch* what it does."""
    iterator._watch, iterator._number = watch, number
    iterator._epoch, iterator._sent, iterator._ordinals = 1, Counter(), {}
    if not hasattr(iterator, "_task_info"):
        iterator.__class__ = _derived(MonitoredIterator, iterator.__class__)
        return iterator
    iterator.__class__ = _derived(MonitoredWorkersIterator, iterator.__class__)
    for index in sorted(iterator._task_info):  # Asked for while it was made.
        iterator._note_sent(index)
    return iterator


@functools.cache
def _derived(mixin: Any, base: Any) -> Any:
    return type(f"Watched{base.__name__}", (mixin, base), {})


class MonitoredIterator:
    """Mixed into torch's iterators."""

    _watch: LoaderMonitor

    def __next__(self) -> Any:
        try:
            with self._watch.exhaustion.holds():
                return super().__next__()  # type: ignore[misc]  # of torch's iterator
        except StopIteration:
            raise
        except Exception as error:
            self._watch.on_error(error)
            if hasattr(self, "_shutdown_workers"):
                self._watch.failed.append(self)  # Kept, or the garbage collector may have it.
            raise


class MonitoredWorkersIterator(MonitoredIterator):
    """Mixed into those that have workers."""

    _number: int
    _epoch: int
    _sent: Counter[int]
    _ordinals: dict[int, tuple[int, int]]
    _send_idx: int
    _rcvd_idx: int
    _task_info: dict[int, Any]
    _index_queues: list[Any]

    def _reset(self, *args: Any, **kwargs: Any) -> None:
        self._epoch += 1  # It was made, and reset for that, before it became one of these.
        self._sent.clear()
        self._ordinals.clear()
        super()._reset(*args, **kwargs)  # type: ignore[misc]

    def _note_sent(self, index: int) -> None:
        worker = self._task_info[index][0]
        self._sent[worker] += 1
        self._ordinals[index] = (worker, self._sent[worker])

    def _try_put_index(self) -> None:
        before = self._send_idx
        super()._try_put_index()  # type: ignore[misc]
        if self._send_idx > before:
            self._note_sent(before)

    def _try_get_data(self, *timeout: float) -> Any:
        """Once; where torch gives no time of its own, in a trial, for a shorter one."""
        if self._watch.here and not timeout:
            timeout = (_BETWEEN_LOOKS,)
        return super()._try_get_data(*timeout)  # type: ignore[misc]

    def _get_data(self) -> Any:
        if self._rcvd_idx in self._ordinals:
            worker, nth = self._ordinals[self._rcvd_idx]
            place = {"epoch": self._epoch, "nth": nth}
            self._watch.link.tell({"loader": self._number, "waiting": worker, **place})
        return super()._get_data()  # type: ignore[misc]

    def _mark_worker_as_unavailable(self, worker_id: int, *args: Any, **kwargs: Any) -> None:
        name_a_lost_lock(self._index_queues[worker_id])
        super()._mark_worker_as_unavailable(worker_id, *args, **kwargs)  # type: ignore[misc]

    def _shutdown_workers(self) -> None:
        self._watch.link.tell({"release": self._number})
        super()._shutdown_workers()  # type: ignore[misc]


@contextlib.contextmanager
def _arming(loader: DataLoader[Any], link: SupervisorClient, number: int) -> Iterator[None]:
    """While workers start, have them arm themselves before the user's own ``worker_init_fn``."""
    own = loader.worker_init_fn
    loader.worker_init_fn = ArmWorker(link.posting, number, own)
    try:
        yield
    finally:
        loader.worker_init_fn = own


@contextlib.contextmanager
def watched(watch: LoaderMonitor) -> Iterator[None]:
    """Every iterator that a DataLoader makes in this scope is *watch*'s."""
    if hasattr(DataLoader._get_iterator, "__wrapped__"):
        message = (
            "faults are armed already in this process: give all of them to one inject(), or to one"
            " FaultInjector, since a worker can be armed once only"
        )
        raise InvalidArgumentError(message)
    with contextlib.ExitStack() as patches:
        for kind in with_iterators_of_their_own(DataLoader):
            original = kind._get_iterator
            patches.callback(setattr, kind, "_get_iterator", original)
            kind._get_iterator = _watching(watch, original)
        yield


def _watching(watch: LoaderMonitor, original: _Make) -> _Make:
    @functools.wraps(original)
    def get_iterator(loader: DataLoader[Any]) -> Any:
        return watch.iterator(loader, original)

    return get_iterator


def with_iterators_of_their_own(kind: Any) -> Iterator[Any]:
    """*kind* and those of its subclasses that make their iterators themselves."""
    if "_get_iterator" in vars(kind):
        yield kind
    for each in kind.__subclasses__():
        yield from with_iterators_of_their_own(each)
