"""Deaths of workers, reported to torch only where the loader waits for a batch [in the trial].

Some facts about torch's handler of SIGCHLD. It raises RuntimeError at whatever bytecode the main
thread has come to when a worker has died (torch/utils/data/_utils/signal_handling.py). Where that
is after ``multiprocessing.Queue.put`` has acquired the lock ``_notempty`` and before the ``with``
block that would release it, the lock stays acquired, and torch's own ``_shutdown_workers`` waits
for it forever. Where it is a ``try`` block of other code, the error is swallowed. Where it is the
code of a trial, the trial fails in place of the loader. A blocked signal would not do: the
threads that feed torch's queues have signal masks of their own.

So in a trial a handler of ours takes its place. It does what torch's does, a look at each worker by
waitid(2), while the loader is in the ``get`` of the queue of batches, and nothing elsewhere: a
worker that died before is found as the next ``get`` begins. The handler has to interrupt ``get``: a
worker that dies while it sends leaves half a message in the pipe, and the loader in read(2).
With ``pin_memory`` it is a thread that reads that pipe. The loader then waits for a queue between
threads, whose lock an exception must not hit either, and looks every few milliseconds.

Some facts about calls that a filter holds. Where files are followed from the constructor on, the
loader's process waits for the supervisor in many calls. A signal with a handler, as that of a
stream's worker that is at its end, gives EINTR there, though the kernel has not begun the call.
Python takes connect(2) for begun then, and waits for a socket that nobody connects: a read of it
gives EINVAL. And mmap(2) never gives EINTR, so nobody tries it again. With SA_RESTART the kernel
does. A read of the batch has to be interrupted, and poll(2) is, whatever the flag.

Some facts about torch's 5 s (``MP_STATUS_CHECK_INTERVAL``). A worker that leaves with status 0 is
no failure to that handler. The loader misses it for 5 s: then ``get`` raises queue.Empty, and the
loader looks for workers that are dead but should not be. Here ``get`` waits for the
sentinels of these workers, too, and raises as soon as there is one, once all that has come is
taken: the answer is the same, only sooner. It does not look every few milliseconds, since a busy
machine would keep it waiting each time, and its time to wait for a processor counts (see
``process/deadline.py``). In the same 5 s a worker
that was told to end must do so, or gets SIGTERM: a healthy one may be in the midst of a slow read
then, so that is left as it is.
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

_BETWEEN_LOOKS = 0.01
_END_PATIENCE = 2.0
_now = time.monotonic
_raise_for_deaths = signal_handling._error_if_any_worker_fails  # type: ignore[attr-defined]


class SigchldGuard:
    """Reports the death of a worker to the loader while it waits, for the life of this process.

    Attributes:
        is_stuck: Says whether no batch can come any more, and the wait is over then; None to wait
            for as long as the loader does.

    """

    def __init__(self) -> None:
        self._is_waiting = False
        self.is_stuck: Callable[[], bool] | None = None
        self._previous: Any = None
        if signal_handling._SIGCHLD_handler_set:  # By another loader, in pytest's process.
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal_handling._SIGCHLD_handler_set = False
        # torch calls this function for each new iterator.
        signal_handling._set_SIGCHLD_handler = self._install

    def interruptible(self, batches: Any, expected: Callable[[], list[Any]]) -> Any:
        """A queue like *batches* whose ``get`` raises for a worker that has died.

        *expected* gives the processes of the workers that batches are expected from.
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
        """What *receive* gives, unless a death interrupts it."""
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
            _raise_for_deaths()
            self._is_waiting = True
        if callable(self._previous):
            self._previous(number, frame)


class _InterruptibleQueue:
    """A loader's queue of batches, with the one method that its iterator uses."""

    def __init__(
        self, batches: Any, guard: SigchldGuard, expected: Callable[[], list[Any]]
    ) -> None:
        self._batches, self._guard, self._expected = batches, guard, expected
        self._closed: set[int] = set()
        if hasattr(batches, "_recv_bytes"):  # It comes through a pipe. What is in it is read later.
            batches._recv_bytes = functools.partial(guard.read, batches._recv_bytes)

    def get(self, timeout: float) -> Any:
        """The next batch; RuntimeError if a worker failed.

        Raises queue.Empty after *timeout* seconds, or if a worker left and nothing has come.
        """
        until = _now() + timeout
        if isinstance(self._batches, queue.Queue):
            return self._get_in_slices(until)
        reader = self._batches._reader
        with self._guard.waiting():
            _raise_for_deaths()  # From here on, a death interrupts.
            came = self._ready(reader, until)
            while came and reader not in came and not self._forget_closed(came):
                came = self._ready(reader, until)
            if reader in came:
                return self._batches.get(timeout=max(0.0, until - _now()))
            _raise_for_deaths()  # It says how the worker died.
            return self._batches.get(timeout=0.0)

    def _ready(self, reader: Any, until: float) -> list[Any]:
        """What of *reader* and the sentinels is ready; nothing once the wait is over."""
        is_stuck = self._guard.is_stuck
        while True:
            left = max(0.0, until - _now())
            this = min(left, _BETWEEN_LOOKS) if is_stuck else left
            came = connection.wait([reader, *self._sentinels()], this)
            if came or this == left or (is_stuck and is_stuck()):
                return came

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
