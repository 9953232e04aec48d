"""A loader's iterator that arms its workers and says how far it is [runs where the loader does].

torch/utils/data/dataloader.py: ``DataLoader._get_iterator`` makes the iterator; ``_get_data``
waits for the batch ``_rcvd_idx``; ``_try_put_index`` asks a worker for the batch ``_send_idx`` and
notes that worker in ``_task_info``.
"""

from __future__ import annotations

import contextlib
import os
from collections import Counter
from collections.abc import Callable, Iterator
from multiprocessing.util import get_temp_dir
from typing import Any

from torch.utils.data import DataLoader
from torch.utils.data import dataloader as torch_dataloader

from pytest_dataloader_faults._engine._arm import ArmWorker, announce_fetches, arm
from pytest_dataloader_faults._engine._client import Link
from pytest_dataloader_faults.exceptions import InjectionError, InvalidArgumentError


class Watch:
    """What the iterators of one scope share."""

    def __init__(
        self, link: Link, on_error: Callable[[BaseException], None], *, here: bool
    ) -> None:
        self.link = link
        self.on_error = on_error
        self.here = here
        """Whether this very process may be armed, which is for good: only a trial's may."""
        self.iterators = 0
        self.sent: Counter[int] = Counter()
        self.failed: list[Any] = []
        self._armed_process: int | None = None

    def iterator(self, loader: DataLoader[Any]) -> Any:
        """What ``iter(loader)`` gives in this scope."""
        self.iterators += 1
        self.sent.clear()
        self.link.tell({"restart": True})
        get_temp_dir()  # This process's, which it removes; a worker that is killed leaves its own.
        if loader.num_workers > 0:
            return _iterator_class()(loader, self)
        if not self.here:
            message = (
                "inject() reaches worker processes, but this DataLoader has num_workers=0 and would"
                " read in this process, which is never filtered. Use num_workers=1 or more, or"
                " run_trial(), which runs the loader in a process of its own"
            )
            raise InjectionError(message)
        self._arm_this_process()
        return _single_process_class()(loader, self)

    def drain(self) -> None:
        """Wait until the workers have done all that the latest iterator asked of them."""
        self.link.drain(dict(self.sent))

    def end_failed(self) -> None:
        """End the workers of iterators that raised, so that they do not outlive the scope.

        torch's exception is in a cycle with the iterator and its queues (torch/_utils.py,
        ``reraise``). Left to the garbage collector, the queues are finalized first, the workers are
        not told to end, and each costs 5 s.
        """
        while self.failed:
            self.failed.pop()._shutdown_workers()

    def _arm_this_process(self) -> None:
        if self._armed_process != os.getpid():
            self._armed_process = os.getpid()
            announce_fetches(arm(self.link.posting, 0))


class _Watched:
    """Mixed into torch's iterators."""

    _watch: Watch

    def __next__(self) -> Any:
        try:
            return super().__next__()  # type: ignore[misc]  # of torch's iterator
        except StopIteration:
            raise
        except Exception as error:
            self._watch.on_error(error)
            if hasattr(self, "_shutdown_workers"):
                self._watch.failed.append(self)  # Kept, or the garbage collector may have it.
            raise


def _single_process_class() -> Any:
    class WatchedSingle(_Watched, torch_dataloader._SingleProcessDataLoaderIter):
        def __init__(self, loader: DataLoader[Any], watch: Watch) -> None:
            self._watch = watch
            super().__init__(loader)

    return WatchedSingle


def _iterator_class() -> Any:
    class WatchedMulti(_Watched, torch_dataloader._MultiProcessingDataLoaderIter):
        def __init__(self, loader: DataLoader[Any], watch: Watch) -> None:
            self._watch = watch
            self._ordinals: dict[int, tuple[int, int]] = {}
            with _arming(loader, watch.link):
                super().__init__(loader)

        def _try_put_index(self) -> None:
            before = self._send_idx
            super()._try_put_index()
            if self._send_idx > before:
                worker = self._task_info[before][0]
                self._watch.sent[worker] += 1
                self._ordinals[before] = (worker, self._watch.sent[worker])

        def _get_data(self) -> Any:
            if self._rcvd_idx in self._ordinals:
                worker, nth = self._ordinals[self._rcvd_idx]
                self._watch.link.tell({"waiting": worker, "nth": nth})
            return super()._get_data()  # type: ignore[no-untyped-call]

        def _shutdown_workers(self) -> None:
            self._watch.link.tell({"release": True})
            super()._shutdown_workers()

    return WatchedMulti


@contextlib.contextmanager
def _arming(loader: DataLoader[Any], link: Link) -> Iterator[None]:
    """While workers start, have them arm themselves before the user's own ``worker_init_fn``."""
    own = loader.worker_init_fn
    loader.worker_init_fn = ArmWorker(link.posting, own)
    try:
        yield
    finally:
        loader.worker_init_fn = own


@contextlib.contextmanager
def watched(watch: Watch) -> Iterator[None]:
    """Every iterator that a DataLoader makes in this scope is *watch*'s."""
    original = DataLoader._get_iterator
    if original.__module__ == __name__:
        message = (
            "faults are armed already in this process: give all of them to one inject(), or to one"
            " FaultInjector, since a worker can be armed once only"
        )
        raise InvalidArgumentError(message)

    def get_iterator(loader: DataLoader[Any]) -> Any:
        return watch.iterator(loader)

    DataLoader._get_iterator = get_iterator  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        DataLoader._get_iterator = original  # type: ignore[method-assign]
