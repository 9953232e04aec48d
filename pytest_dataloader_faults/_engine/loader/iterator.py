"""Iterators that arm their workers and report which batch they await [runs where the loader does].

torch/utils/data/dataloader.py: ``DataLoader._get_iterator`` makes the iterator; ``_get_data``
waits for the batch ``_rcvd_idx``; ``_try_put_index`` asks a worker for the batch ``_send_idx`` and
records that worker in ``_task_info``. Subclasses, such as torchdata's StatefulDataLoader, make
iterators of classes of their own, which derive from torch's; so an iterator is made as it always
is, and then becomes one of a class derived from its own.
"""

from __future__ import annotations

import contextlib
import functools
import os
import sys
import time
import traceback
import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

from torch._utils import ExceptionWrapper
from torch.utils.data import DataLoader
from torch.utils.data import _utils as torch_utils

from pytest_dataloader_faults._engine.loader.client import SupervisorClient
from pytest_dataloader_faults._engine.loader.own_faults import (
    LoaderDescriptorLimit,
    PinMemoryFaults,
)
from pytest_dataloader_faults._engine.plan import Plan
from pytest_dataloader_faults._engine.protocol import AwaitingBatch, Idle, ReleaseLoader
from pytest_dataloader_faults._engine.worker.arm import ArmWorker, arm, arm_function
from pytest_dataloader_faults._engine.worker.session import WorkerSession
from pytest_dataloader_faults.exceptions import InvalidArgumentError
from pytest_dataloader_faults.outcomes.chains import shortened

_Make = Callable[[DataLoader[Any]], Any]


class LoaderMonitor:
    """What the iterators of one scope share."""

    def __init__(self, client: SupervisorClient, plan: Plan, *, may_arm_own_process: bool) -> None:
        self.client = client
        self.descriptor_limit = LoaderDescriptorLimit(plan)
        self._pin_memory = PinMemoryFaults(plan, self.descriptor_limit.record_error)
        self.reports_awaited = plan.needs.fetches
        """A death waits until its batch is awaited, so the supervisor has to know which one is."""
        self.errors: list[str] = []
        self.may_arm_own_process = may_arm_own_process
        """Arming is permanent, so only the process of a trial may be armed."""
        self.iterators = 0
        self.not_made: str | None = None
        """The error, in one line, if the latest iterator could not be made."""
        self._latest: weakref.ref[Any] | None = None
        """Weak, since an iterator that the user drops ends its workers at once."""
        self._armed_process: int | None = None
        self._session: WorkerSession | None = None
        self._making = False
        arm_function(client.config.engine)

    def iterator(self, loader: DataLoader[Any], make: _Make) -> Any:
        """What ``iter(loader)`` gives in this scope, where *make* makes it elsewhere."""
        if self._making:  # A subclass called its base class.
            return make(loader)
        self.not_made = None
        try:
            return self._monitored_iterator(loader, make)
        except Exception as error:
            self.not_made = shortened("".join(traceback.format_exception_only(error)).strip())
            raise

    def _monitored_iterator(self, loader: DataLoader[Any], make: _Make) -> Any:
        self.iterators += 1
        if not loader.num_workers:
            self._arm_this_process()
            return _monitored(make(loader), self, self.iterators)
        users = loader.worker_init_fn
        loader.worker_init_fn = ArmWorker(self.client.config, self.iterators, users)
        self._making = True
        try:
            with self._pin_memory.installed():
                made = _monitored(make(loader), self, self.iterators)
        finally:
            self._making = False
            loader.worker_init_fn = users
        self._latest = weakref.ref(made)
        return made

    def reports(self) -> dict[int, Any]:
        """The counters of the faults of this process, by their index in the schedule."""
        counters = (*self.descriptor_limit.counters, *self._pin_memory.counters)
        return {each.index: each.to_dict() for each in counters}

    def wait_until_idle(self) -> Idle:
        """Wait until the workers have done all that the latest iterator asked of them."""
        latest = self._latest() if self._latest else None
        if latest is None:
            return Idle()
        # One that died before it was armed is not known to the supervisor.
        workers, sent = latest._workers, latest._sent
        alive = {worker: sent[worker] for worker in sent if workers[worker].is_alive()}
        return self.client.wait_until_idle(latest._number, latest._epoch, alive)

    def record_error(self, error: BaseException) -> None:
        """Keep what a loop over a loader got, as printed."""
        self.errors.append(shortened("".join(traceback.format_exception(error))))

    def disarm(self) -> None:
        """The scope ends."""
        if self._session is not None:
            self._session.disarm()

    def _arm_this_process(self) -> None:
        if not self.may_arm_own_process:
            raise InvalidArgumentError(
                "inject() reaches worker processes, but this DataLoader has num_workers=0 and would"
                " read in this process, which is never filtered. Use num_workers=1 or more, or"
                " run_trial(), which runs the loader in a process of its own"
            )
        if self._armed_process != os.getpid():
            self._armed_process = os.getpid()
            self._session = arm(self.client.config, 0, self.iterators)


def _monitored(iterator: Any, monitor: LoaderMonitor, number: int) -> Any:
    iterator._monitor, iterator._number = monitor, number
    iterator._epoch, iterator._sent, iterator._ordinals = 1, Counter(), {}
    if not hasattr(iterator, "_task_info"):
        iterator.__class__ = _derived(_MonitoredIterator, iterator.__class__)
        return iterator
    iterator.__class__ = _derived(_MonitoredWorkersIterator, iterator.__class__)
    for index in sorted(iterator._task_info):  # Those that it asked for as it was made.
        iterator._count_sent(index)
    return iterator


@functools.cache
def _derived(mixin: Any, base: Any) -> Any:
    return type(f"Monitored{base.__name__}", (mixin, base), {})


class _MonitoredIterator:
    """Mixed into torch's iterators."""

    _monitor: LoaderMonitor

    def __next__(self) -> Any:
        try:
            with self._monitor.descriptor_limit.lowered():
                return super().__next__()  # type: ignore[misc]  # of torch's iterator
        except StopIteration:
            raise
        except Exception as error:
            self._monitor.record_error(error)
            _break_cycle(error)
            raise


def _break_cycle(error: Exception) -> None:
    """Have *error* refer to itself no longer, so that the iterator goes with the last use of it.

    torch raises the error of a worker out of a variable (torch/_utils.py, ``reraise``), which its
    traceback has. Left to the garbage collector, the iterator's queues are finalized first, the
    workers are not told to end, and each costs 5 s.
    """
    place = error.__traceback__
    while place is not None:
        if place.tb_frame.f_code is ExceptionWrapper.reraise.__code__:
            place.tb_frame.clear()
        place = place.tb_next


class _MonitoredWorkersIterator(_MonitoredIterator):
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
        self._epoch += 1  # Its first reset came before it was monitored.
        self._sent.clear()
        self._ordinals.clear()
        super()._reset(*args, **kwargs)  # type: ignore[misc]

    def _count_sent(self, index: int) -> None:
        worker = self._task_info[index][0]
        self._sent[worker] += 1
        self._ordinals[index] = (worker, self._sent[worker])

    def _try_put_index(self) -> None:
        before = self._send_idx
        super()._try_put_index()  # type: ignore[misc]
        if self._send_idx > before:
            self._count_sent(before)

    def _get_data(self) -> Any:
        if self._monitor.reports_awaited and self._rcvd_idx in self._ordinals:
            worker, nth = self._ordinals[self._rcvd_idx]
            self._monitor.client.send(AwaitingBatch(self._number, worker, self._epoch, nth))
        return super()._get_data()  # type: ignore[misc]

    def _try_get_data(self, *args: Any, **kwargs: Any) -> Any:
        found = super()._try_get_data(*args, **kwargs)  # type: ignore[misc]
        if not found[0]:  # Nothing came for 5 s. Workers may be waiting for the supervisor.
            self._monitor.client.require_running()
        return found

    def _mark_worker_as_unavailable(self, worker_id: int, *args: Any, **kwargs: Any) -> None:
        _report_lost_lock(self._index_queues[worker_id])
        super()._mark_worker_as_unavailable(worker_id, *args, **kwargs)  # type: ignore[misc]

    def _shutdown_workers(self) -> None:
        # As torch's own does: nothing at the interpreter's exit, when this module may be gone.
        if torch_utils is not None and torch_utils.python_exit_status is False:
            self._monitor.client.send(ReleaseLoader(self._number))
        super()._shutdown_workers()  # type: ignore[misc]


@contextlib.contextmanager
def iterators_made_by(make_iterator: Callable[[DataLoader[Any], _Make], Any]) -> Iterator[None]:
    """Each iterator that a DataLoader makes in this scope comes from *make_iterator*."""
    if hasattr(DataLoader._get_iterator, "__wrapped__"):
        raise InvalidArgumentError(
            "faults are armed already in this process: give all of them to one inject(), or to one"
            " FaultInjector, since a worker can be armed once only"
        )
    with contextlib.ExitStack() as patches:
        for kind in with_iterators_of_their_own(DataLoader):
            original = kind._get_iterator
            patches.callback(setattr, kind, "_get_iterator", original)
            kind._get_iterator = _calling(make_iterator, original)
        yield


def _calling(make_iterator: Callable[[DataLoader[Any], _Make], Any], original: _Make) -> _Make:
    @functools.wraps(original)
    def get_iterator(loader: DataLoader[Any]) -> Any:
        return make_iterator(loader, original)

    return get_iterator


def with_iterators_of_their_own(kind: Any) -> Iterator[Any]:
    """*kind* and those of its subclasses that make their iterators themselves."""
    if "_get_iterator" in vars(kind):
        yield kind
    for each in kind.__subclasses__():
        yield from with_iterators_of_their_own(each)


# Some facts about a lock that is never released. ``multiprocessing.Queue.put`` acquires the lock
# ``_notempty`` by a ``with`` statement. When a worker dies, torch's handler of SIGCHLD raises in
# the main thread, and where it does so between the acquisition and the first line of that block,
# nothing releases the lock. torch ends an iterator by ``_mark_worker_as_unavailable``, which puts
# into the same queue, and waits forever. The queue's own thread holds that lock for microseconds
# at a time.
#
# Under ``inject`` the loop is the user's, and torch does there what it always does. All that can
# be done is to say what it waits for.


_PATIENCE = 5.0
_MESSAGE = (
    "pytest-dataloader-faults: this loop hangs in torch, not in the dataset. A DataLoader worker"
    " died while torch was putting indices into its queue, torch's SIGCHLD handler raised inside"
    " multiprocessing.Queue.put, and the lock of that queue was never released: the loader now"
    " waits for it forever in _mark_worker_as_unavailable. A small prefetch_factor makes this"
    " rare; run_trial() does not meet it\n"
)


def _report_lost_lock(queue: Any) -> None:
    """Write to standard error if the lock of *queue* stays locked for seconds."""
    until = time.monotonic() + _PATIENCE
    # Not acquired here: torch's handler could raise before it would be released.
    while queue._notempty._lock.locked():
        if time.monotonic() > until:
            sys.stderr.write(_MESSAGE)
            return
        time.sleep(0.01)
