"""Hooks on the iterators of torch's DataLoader, all of them [runs where the loader does].

Under faults an iterator arms its workers and reports which batch they await. In a trial it reports
what its sampler drew, and which worker made a batch.
"""

from __future__ import annotations

import contextlib
import functools
import os
import threading
import traceback
import weakref
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from torch._utils import ExceptionWrapper
from torch.utils.data import DataLoader, get_worker_info
from torch.utils.data import _utils as torch_utils
from torch.utils.data.dataloader import _BaseDataLoaderIter

from pytest_dataloader_faults._engine import arm
from pytest_dataloader_faults._engine.client import SupervisorClient
from pytest_dataloader_faults._engine.fake import fake_files, write_tree
from pytest_dataloader_faults._engine.plan import FaultPlan
from pytest_dataloader_faults._engine.protocol import AwaitingBatch, Idle, ReleaseLoader
from pytest_dataloader_faults._engine.system.imports import import_late_modules
from pytest_dataloader_faults.exceptions import InvalidArgumentError
from pytest_dataloader_faults.outcomes.chains import origin_noted_in, shorten_chain

_Make = Callable[[DataLoader[Any]], Any]
_Prepare = Callable[[Any], None]


class LoaderMonitor:
    """What the iterators of one scope share."""

    def __init__(
        self, client: SupervisorClient, plan: FaultPlan, *, may_arm_own_process: bool
    ) -> None:
        self.client = client
        self.reports_awaited = plan.needs.fetches
        """A death waits until its batch is awaited, so the supervisor must know which one is."""
        self.errors: list[str] = []
        self.may_arm_own_process = may_arm_own_process
        """Arming is permanent, so only the process of a trial may be armed."""
        self.iterators = 0
        self.not_made: str | None = None
        """The error, in one line, if the latest iterator could not be made."""
        self._latest: weakref.ref[Any] | None = None
        """Weak, since an iterator that the user drops ends its workers at once."""
        self._begun: weakref.ref[Any] | None = None
        """The one that is being made."""
        self._armed_process: int | None = None
        self._session: arm.WorkerSession | None = None
        self._is_observed = False
        """Whether the fetches of this process are."""
        self._making: defaultdict[int, list[tuple[DataLoader[Any], int]]] = defaultdict(list)
        """By thread: the loaders that make an iterator now, each with the iterator's number."""
        import_late_modules()  # Before the fork, so that a worker does not.

    def iterator(self, loader: DataLoader[Any], make: _Make) -> Any:
        """What ``iter(loader)`` returns in this scope; outside of it, *make* creates that."""
        making = self._making[threading.get_ident()]
        if any(each is loader for each, _ in making):  # A subclass called its base class.
            return make(loader)
        self.not_made = None
        self.iterators += 1
        making.append((loader, self.iterators))
        try:
            return self._make(loader, self.iterators, make)
        except Exception as error:
            self.not_made = shorten_chain("".join(traceback.format_exception_only(error)).strip())
            raise
        finally:
            making.pop()

    def _make(self, loader: DataLoader[Any], number: int, make: _Make) -> Any:
        if not loader.num_workers:
            self._arm_this_process()
            return make(loader)
        users = loader.worker_init_fn
        name = f"files-{number}-{os.urandom(4).hex()}"
        path = os.path.join(self.client.folder, name)
        tree = write_tree(path) if fake_files() is not None else None
        config = replace(self.client.config, workers=loader.num_workers, tree=tree)
        loader.worker_init_fn = arm.ArmWorker(config, number, users)
        try:
            iterator = make(loader)
        finally:
            loader.worker_init_fn = users
        self._latest = self._begun
        return iterator

    def prepare(self, iterator: Any) -> None:
        """*iterator* is being made: have it report here, if its loader's scope is this one."""
        if making := self._making[threading.get_ident()]:
            iterator._monitor, iterator._number = self, making[-1][1]
            self._begun = weakref.ref(iterator)
            _observe(iterator)

    def wait_until_idle(self, patience: float | None = None) -> Idle:
        """Wait until the workers have made every batch of the latest iterator, or hang.

        *patience*: for how many seconds to wait for the others if one hangs.
        """
        latest = self._latest() if self._latest else None
        if latest is None:
            return Idle()
        # One that died before it was armed is not known to the supervisor.
        workers, sent = latest._workers, latest._sent
        alive = {worker: sent[worker] for worker in sent if workers[worker].is_alive()}
        pids = [workers[worker].pid for worker in alive]
        return self.client.wait_until_idle(latest._number, latest._epoch, alive, pids, patience)

    def record_error(self, error: BaseException) -> None:
        """Keep what a loop over a loader got, as printed."""
        self.errors.append(shorten_chain("".join(traceback.format_exception(error))))

    def arm_before_dataset(self) -> None:
        """Arm this process, which is about to make the dataset. Its workers join it."""
        config, self._armed_process = self.client.config, os.getpid()
        self._session = arm.arm_kernel_session(config, None, 0)
        # Without faults, workers list what they inherit, as those of a bystander.
        shares_files = bool(config.plan.faults)
        self.client.config = replace(config, armed=self._armed_process, shares_files=shares_files)

    def arm_bystander(self) -> None:
        """Arm this process, in which no fault fires: it only starts workers, which join it."""
        config = self.client.config
        if fake_files() is None:
            self._session = arm.arm_kernel_session(config, None, 0, bystander=True)
            self.client.config = replace(config, armed=os.getpid())

    def _arm_this_process(self) -> None:
        if not self.may_arm_own_process:
            raise InvalidArgumentError(
                "inject() only reaches worker processes, but this DataLoader has num_workers=0, so"
                " it would read in this process, which is never filtered. Use num_workers=1 or"
                " more, or run_trial(), which runs the loader in its own process"
            )
        if self._armed_process != os.getpid():
            self._armed_process, self._is_observed = os.getpid(), True
            self._session = arm.arm_worker(self.client.config, 0, self.iterators)
        elif self._session is not None and not self._is_observed:
            self._is_observed = True
            arm.observe(self._session, self.client.config.plan)


# Some facts about torch's iterator (torch/utils/data/dataloader.py). ``DataLoader._get_iterator``
# makes it, of one class without workers and of another one with them. Its ``__init__`` starts the
# workers, calls ``_reset``, and so requests the first batches. ``_reset`` also starts each later
# epoch, if the workers are persistent. ``_try_put_index`` takes from the sampler, by
# ``_next_index``, the indices of the batch ``_send_idx``, puts them into a worker's queue, and
# records that worker in ``_task_info``. ``_next_data`` waits for the batch ``_rcvd_idx``: it calls
# ``_get_data``, that calls ``_try_get_data``, and that takes one from ``_data_queue``, for 5 s at
# most. With ``in_order=False`` it takes the batches in the order of their arrival, and
# ``_get_data`` returns the number of each. ``_process_data`` gets each batch with the id of its
# worker.
#
# Subclasses of DataLoader, such as torchdata's StatefulDataLoader, make iterators of classes of
# their own. They derive from torch's, but call few of torch's methods. So each iterator becomes one
# of a class derived from its own, and does so when the ``__init__`` of torch's base class starts:
# from then on, all calls of its methods are seen.


# Some facts about loaders that a dataset iterates, as for pairs, episodes and queues of patches.
# Such a loader is part of the dataset and is not under test. A forked worker inherits what replaces
# methods of torch here, and runs it again when its dataset makes an iterator.


_stepping = threading.local()
"""Its ``depth``: how many iterators under test this thread is in the middle of a step of."""


def _is_nested(process: int) -> bool:
    """Whether a loader that makes an iterator now belongs to the dataset or to a sampler.

    *process*: the one that iterates the loader under test.
    """
    is_in_worker = os.getpid() != process and get_worker_info() is not None
    return is_in_worker or getattr(_stepping, "depth", 0) > 0


@contextlib.contextmanager
def _enter_step() -> Iterator[None]:
    _stepping.depth = getattr(_stepping, "depth", 0) + 1
    try:
        yield
    finally:
        _stepping.depth -= 1


def _observe(iterator: Any) -> None:
    """Have *iterator* report to its monitor, or its listener, or both."""
    if not isinstance(iterator, _ObservedIterator):
        has_workers = hasattr(iterator, "_try_put_index")
        mixin = _ObservedWorkersIterator if has_workers else _ObservedIterator
        iterator.__class__ = _mixed_class(mixin, iterator.__class__)
        iterator._draws = {}


@functools.cache
def _mixed_class(mixin: Any, base: Any) -> Any:
    return type(f"Observed{base.__name__}", (mixin, base), {})


class _PreparedInit:
    """In the place of ``__init__``: *prepare* gets the iterator as its ``__init__`` is looked up.

    A function around ``__init__`` would be the caller that torch's warnings are about.
    """

    def __init__(self, prepare: _Prepare, original: Any) -> None:
        self._prepare, self._original = prepare, original
        self._process = os.getpid()

    def __get__(self, iterator: Any, kind: Any) -> Any:
        if iterator is not None and not _is_nested(self._process):
            self._prepare(iterator)
        return self._original.__get__(iterator, kind)


@contextlib.contextmanager
def _iterators_prepared_by(prepare: _Prepare) -> Iterator[None]:
    """In this scope *prepare* gets each iterator before there is more of it."""
    original = vars(_BaseDataLoaderIter)["__init__"]
    replaced: Any = _PreparedInit(prepare, original)
    _BaseDataLoaderIter.__init__ = replaced  # type: ignore[method-assign]
    try:
        yield
    finally:
        _BaseDataLoaderIter.__init__ = original  # type: ignore[method-assign]


def _break_cycle(error: Exception) -> None:
    """Have *error* refer to itself no longer, so that the iterator goes with the last use of it.

    torch raises the error of a worker out of a variable (torch/_utils.py, ``reraise``), which its
    traceback has. Left to the garbage collector, the iterator's queues are finalized first, the
    workers are not ended, and each costs 5 s.
    """
    place = error.__traceback__
    while place is not None:
        if place.tb_frame.f_code is ExceptionWrapper.reraise.__code__:
            place.tb_frame.clear()
        place = place.tb_next


class IteratorListener:
    """What is called as iterators work. This one does nothing."""

    def on_begin(self, iterator: Any) -> None:
        """*iterator*, which is one of torch's, is being created, or starts a later epoch."""

    def on_draw(self, sampled: Any, _dataset: Any, *, batched: bool) -> tuple[Any, Any]:  # noqa: ARG002  # of subclasses
        """A sampler drew *sampled*, for *_dataset*; *batched*: by automatic batching.

        Returns what to request instead, and what is passed back as *draw*.
        """
        return sampled, None

    def on_batch(self, worker: int | None, draw: Any, batch: Any) -> None:
        """The *batch* of *draw* was made by *worker*; None without workers."""

    def queue_of_batches(self, batches: Any, _expected: Callable[[], list[Any]]) -> Any:
        """What to take batches from instead of *batches*, at first and for each later epoch.

        *_expected* returns the processes that batches are expected from.
        """
        return batches


@contextlib.contextmanager
def listen_to_iterators(listener: IteratorListener) -> Iterator[None]:
    """Have each iterator that is created in this scope call *listener* while it lives."""

    def prepare(iterator: Any) -> None:
        iterator._listener = listener
        listener.on_begin(iterator)
        _observe(iterator)

    with _iterators_prepared_by(prepare):
        yield


class _ObservedIterator:
    """Mixed into all iterators of the loader under test: under faults, in a trial, or both."""

    is_under_test = True
    _monitor: LoaderMonitor | None = None
    """Under faults."""
    _listener = IteratorListener()
    """In a trial."""
    _dataset: Any
    _auto_collation: bool
    _draws: dict[int, Any]
    """By the number of the batch: what ``on_draw`` returned, until the batch arrives."""

    def __next__(self) -> Any:
        try:
            with _enter_step():
                return super().__next__()  # type: ignore[misc]  # of torch's iterator
        except StopIteration:
            raise
        except Exception as error:
            if self._monitor is not None:
                self._monitor.record_error(error)
                _break_cycle(error)
            raise

    def _next_index(self) -> Any:
        with _enter_step():
            sampled = super()._next_index()  # type: ignore[misc]
        requested, self._draws[self._number_of_next] = self._listener.on_draw(
            sampled, self._dataset, batched=self._auto_collation
        )
        return requested

    @property
    def _number_of_next(self) -> int:
        return 0

    def _next_data(self) -> Any:
        batch = super()._next_data()  # type: ignore[misc]
        self._listener.on_batch(None, self._draws.pop(0, None), batch)
        return batch


class _ObservedWorkersIterator(_ObservedIterator):
    """Mixed into those that have workers."""

    _number: int
    _epoch = 0
    _sent: Counter[int]
    _ordinals: dict[int, tuple[int, int]]
    _number_of_last: int | None = None
    _in_order = True
    _data_queue: Any
    _send_idx: int
    _rcvd_idx: int
    _task_info: dict[int, Any]
    _workers: list[Any]
    _workers_status: list[bool]

    def _reset(self, *args: Any, **kwargs: Any) -> None:
        self._epoch += 1
        self._sent, self._ordinals = Counter(), {}
        # Weakly: an iterator that is part of a cycle ends its workers late (see _break_cycle).
        find = weakref.WeakMethod(self._expected)
        expected = functools.partial(_call_if_alive, find)
        self._data_queue = self._listener.queue_of_batches(self._data_queue, expected)
        self._draws.clear()
        self._listener.on_begin(self)
        super()._reset(*args, **kwargs)  # type: ignore[misc]

    def _expected(self) -> list[Any]:
        pairs = zip(self._workers, self._workers_status, strict=True)
        return [worker for worker, is_expected in pairs if is_expected]

    @property
    def _number_of_next(self) -> int:
        return self._send_idx

    def _try_put_index(self) -> None:
        index = self._send_idx
        super()._try_put_index()  # type: ignore[misc]
        if self._send_idx > index:
            worker = self._task_info[index][0]
            self._sent[worker] += 1
            self._ordinals[index] = (worker, self._sent[worker])

    def _next_data(self) -> Any:
        return super(_ObservedIterator, self)._next_data()  # type: ignore[misc]

    def _get_data(self) -> Any:
        monitor = self._monitor
        if monitor and monitor.reports_awaited and self._rcvd_idx in self._ordinals:
            worker, nth = self._ordinals[self._rcvd_idx]
            monitor.client.send(AwaitingBatch(self._number, worker, self._epoch, nth))
        result = super()._get_data()  # type: ignore[misc]
        self._number_of_last = result[0]
        return result

    def _try_get_data(self, *args: Any, **kwargs: Any) -> Any:
        result = super()._try_get_data(*args, **kwargs)  # type: ignore[misc]
        # If nothing arrived for 5 s, workers may be waiting for the supervisor.
        if self._monitor and not result[0]:
            self._monitor.client.require_running()
        return result

    def _process_data(self, data: Any, worker: int, *arguments: Any) -> Any:
        number: Any = next(iter(self._draws), None) if self._in_order else self._number_of_last
        draw = self._draws.pop(number, None)
        with origin_noted_in(data):
            batch = super()._process_data(data, worker, *arguments)  # type: ignore[misc]
        self._listener.on_batch(worker, draw, batch)
        return batch

    def _shutdown_workers(self) -> None:
        # As torch's own does: nothing at the interpreter's exit, when this module may be cleared.
        if self._monitor and torch_utils is not None and torch_utils.python_exit_status is False:
            self._monitor.client.send(ReleaseLoader(self._number))
        super()._shutdown_workers()  # type: ignore[misc]


def _call_if_alive(find: Callable[[], Callable[[], list[Any]] | None]) -> list[Any]:
    """The result of the method that *find* returns; empty if its object was collected."""
    method = find()
    return method() if method else []


@contextlib.contextmanager
def monitor_iterators(monitor: LoaderMonitor) -> Iterator[None]:
    """Put each iterator that is made in this scope, and its workers, under *monitor*."""
    with replace_iterators(monitor.iterator), _iterators_prepared_by(monitor.prepare):
        yield


@contextlib.contextmanager
def replace_iterators(make_iterator: Callable[[DataLoader[Any], _Make], Any]) -> Iterator[None]:
    """Let *make_iterator* create each iterator of a DataLoader in this scope."""
    if hasattr(DataLoader._get_iterator, "__wrapped__"):
        raise InvalidArgumentError(
            "faults are already armed in this process. A worker can be armed only once, so pass all"
            " faults to one inject(), or to one FaultInjector"
        )

    process = os.getpid()

    def replace_method(original: _Make) -> _Make:
        @functools.wraps(original)
        def get_iterator(loader: DataLoader[Any]) -> Any:
            if _is_nested(process):
                return original(loader)
            return make_iterator(loader, original)

        return get_iterator

    with replace_iterator_makers(replace_method):
        yield


@contextlib.contextmanager
def replace_iterator_makers(replacement: Callable[[_Make], _Make]) -> Iterator[None]:
    """Replace in this scope what makes iterators: of DataLoader, and of subclasses that do it."""
    with contextlib.ExitStack() as patches:
        for kind in _classes_with_own_iterators(DataLoader):
            original = kind._get_iterator
            patches.callback(setattr, kind, "_get_iterator", original)
            kind._get_iterator = replacement(original)
        yield


def _classes_with_own_iterators(kind: Any) -> Iterator[Any]:
    if "_get_iterator" in vars(kind):
        yield kind
    for subclass in kind.__subclasses__():
        yield from _classes_with_own_iterators(subclass)
