"""Deaths of workers, reported to torch only while the loader waits for a batch [in the trial].

Some facts about torch's handler of SIGCHLD. It raises RuntimeError at whatever bytecode the main
thread has reached when a worker has died (torch/utils/data/_utils/signal_handling.py). If that is
after ``multiprocessing.Queue.put`` has acquired the lock ``_notempty`` and before the ``with``
block that would release it, the lock stays acquired, and torch's own ``_shutdown_workers`` waits
for it forever. If it is a ``try`` block of other code, the error is swallowed. If it is the code of
a trial, the trial fails instead of the loader. Blocking the signal would not help: the threads that
feed torch's queues have their own signal masks.

So in a trial a handler of ours takes its place. It does what torch's does, which checks each worker
by waitid(2), while the loader is in the ``get`` of the queue of batches, and nothing elsewhere: a
worker that died before is found when the next ``get`` starts. The handler must interrupt ``get``: a
worker that dies while it sends leaves half a message in the pipe, and the loader in read(2). With
``pin_memory`` it is a thread that reads that pipe. The loader then waits for a queue between
threads, whose lock an exception must not hit either, and looks every few milliseconds.

Some facts about calls that a filter holds. If files are followed from the constructor on, the main
process waits for the supervisor in many calls. A signal with a handler, as that of a stream's
worker that is at its end, gives EINTR there, although the kernel has not started the call. Python
then assumes that connect(2) has started, and waits for a socket that is never connected: a read
of it gives EINVAL. And mmap(2) never gives EINTR, so callers do not retry it. With SA_RESTART the
kernel does. A read of the batch must be interrupted, and poll(2) is, whatever the flag.

Some facts about torch's 5 s (``MP_STATUS_CHECK_INTERVAL``). A worker that exits with status 0 is
not a failure to that handler. The loader misses it for 5 s: then ``get`` raises queue.Empty, and
the loader looks for workers that are dead but should not be. Here ``get`` waits for the sentinels
of these workers as well, and raises as soon as one is ready and the queue is empty: the answer is
the same, only sooner. It does not look every few milliseconds, since a busy machine would keep it
waiting each time, and its time to wait for a processor counts (see ``process/deadline.py``). In the
same 5 s a worker that received its end must exit, or gets SIGTERM: a healthy one may be in the
middle of a slow read, so that is not changed.
"""

from __future__ import annotations

import contextlib
import functools
import os
import queue
import signal
import threading
import time
from collections.abc import Callable, Iterator
from multiprocessing import connection
from typing import Any

from torch.utils.data._utils import signal_handling

from pytest_dataloader_faults._engine.system.patience import Patience

CALLS_USER_CODE = True

_BETWEEN_LOOKS = 0.01
_END_PATIENCE = 2.0
_now = time.monotonic
_raise_for_deaths = signal_handling._error_if_any_worker_fails  # type: ignore[attr-defined]


class SigchldGuard:
    """Reports a worker's death to the loader while it waits, during the life of this process."""

    def __init__(self) -> None:
        self._is_waiting = False
        self._previous: Any = None
        if signal_handling._SIGCHLD_handler_set:  # By another loader, in pytest's process.
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal_handling._SIGCHLD_handler_set = False
        # torch calls this function for each new iterator.
        signal_handling._set_SIGCHLD_handler = self._install

    def interruptible(self, batches: Any, expected: Callable[[], list[Any]]) -> Any:
        """A queue like *batches* whose ``get`` raises for a worker that has died.

        *expected* returns the processes of the workers that batches are expected from.
        """
        if isinstance(batches, _InterruptibleQueue):
            return batches
        return _InterruptibleQueue(batches, self, expected)

    @contextlib.contextmanager
    def waiting(self) -> Iterator[None]:
        self._is_waiting = True
        try:
            yield
        finally:
            self._is_waiting = False

    @staticmethod
    def read(receive: Callable[[], Any]) -> Any:
        """What *receive* returns, unless a death interrupts it."""
        signal.siginterrupt(signal.SIGCHLD, True)
        try:
            return receive()
        finally:
            signal.siginterrupt(signal.SIGCHLD, False)

    def _install(self) -> None:
        in_main_thread = threading.current_thread() is threading.main_thread()
        if in_main_thread and not signal_handling._SIGCHLD_handler_set:
            self._previous = signal.signal(signal.SIGCHLD, self._on_sigchld)
            signal.siginterrupt(signal.SIGCHLD, False)
            signal_handling._SIGCHLD_handler_set = True

    def _on_sigchld(self, number: int, frame: Any) -> None:
        if self._is_waiting:
            self._is_waiting = False  # It raises once in each wait.
            _raise_without_context()
            self._is_waiting = True
        if callable(self._previous):
            self._previous(number, frame)


def _raise_without_context() -> None:
    """Raise torch's error for a dead worker, if one is.

    A handler may run while an error of our own code is handled, such as that of a file of a dead
    process in /proc. That error is no part of the failure.
    """
    try:
        _raise_for_deaths()
    except RuntimeError as error:
        raise error from None


class _InterruptibleQueue:
    """A loader's queue of batches, with the one method that its iterator uses."""

    def __init__(
        self, batches: Any, guard: SigchldGuard, expected: Callable[[], list[Any]]
    ) -> None:
        self._batches, self._guard, self._expected = batches, guard, expected
        self._closed: set[int] = set()
        if hasattr(batches, "_recv_bytes"):  # A pipe, whose content is read later.
            batches._recv_bytes = functools.partial(guard.read, batches._recv_bytes)

    def get(self, timeout: float) -> Any:
        """The next batch; RuntimeError if a worker failed.

        Raises queue.Empty after *timeout* seconds, or if a worker left and nothing has arrived.
        """
        until = _now() + timeout
        if isinstance(self._batches, queue.Queue):
            return self._get_in_slices(until)
        reader = self._batches._reader
        with self._guard.waiting():
            _raise_for_deaths()  # From here on, a death interrupts.
            ready = self._ready(reader, until)
            while ready and reader not in ready and not self._forget_closed(ready):
                ready = self._ready(reader, until)
            if reader in ready:
                return self._batches.get(timeout=max(0.0, until - _now()))
            _raise_for_deaths()  # The error says how the worker died.
            return self._batches.get(timeout=0.0)

    def _ready(self, reader: Any, until: float) -> list[Any]:
        """What of *reader* and the sentinels is ready; nothing once the wait is over."""
        return connection.wait([reader, *self._sentinels()], max(0.0, until - _now()))

    def _get_in_slices(self, until: float) -> Any:
        while until - _now() > _BETWEEN_LOOKS:
            if self._forget_closed(connection.wait(self._sentinels(), 0)):
                break
            _raise_for_deaths()
            with contextlib.suppress(queue.Empty):
                return self._batches.get(timeout=_BETWEEN_LOOKS)
        _raise_for_deaths()
        return self._batches.get(timeout=_BETWEEN_LOOKS)

    def _sentinels(self) -> dict[int, Any]:
        """The workers that the loader expects batches from, by what is ready at their end."""
        expected = {worker.sentinel: worker for worker in self._expected()}
        return {each: expected[each] for each in expected if each not in self._closed}

    def _forget_closed(self, sentinels: list[Any]) -> bool:
        """Whether a worker is dead; forget those that have closed their sentinels themselves."""
        workers = self._sentinels()
        lost = [each for each in sentinels if _has_ended(workers[each])]
        self._closed.update(set(sentinels).difference(lost))
        return bool(lost)


def _has_ended(worker: Any) -> bool:
    """Whether its end can be waited for. The kernel closes the sentinel some time before that."""
    patience = Patience(_END_PATIENCE, [worker.pid])
    while not patience.is_over():
        try:
            if os.waitid(os.P_PID, worker.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT):
                return True
        except ChildProcessError:  # It is a fork server's, or was waited for.
            return not worker.is_alive()
        time.sleep(_BETWEEN_LOOKS)
    return False
