"""Deaths of workers, reported to torch only while the loader waits for a batch [in the trial]."""

from __future__ import annotations

import contextlib
import functools
import math
import os
import queue
import time
from collections.abc import Callable
from multiprocessing import connection
from typing import Any

from torch.utils.data._utils import signal_handling

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


CALLS_USER_CODE = True

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
