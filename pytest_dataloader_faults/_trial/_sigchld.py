"""Deaths of workers, reported to torch only where the loader waits for a batch [in the trial].

Some facts about torch's handler of SIGCHLD. It raises RuntimeError at whatever bytecode the main
thread has come to when a worker has died (torch/utils/data/_utils/signal_handling.py). Where that
is after ``multiprocessing.Queue.put`` has acquired the lock ``_notempty`` and before the ``with``
block that would release it, the lock stays acquired, and torch's own ``_shutdown_workers`` waits
for it for ever. Where it is a ``try`` block of somebody else, the error is swallowed. Where it is
the code of a trial, the trial fails in place of the loader. A blocked signal would not do: the
threads that feed torch's queues have signal masks of their own.

So a trial never installs that handler. What the handler does, a look at each worker by waitid(2),
is done in one place only: the ``get`` of the queue of batches, which is where the loader waits.
"""

from __future__ import annotations

import os
import queue
import signal
import time
from typing import Any

from torch.utils.data._utils import signal_handling

_BETWEEN_LOOKS = 0.01


def keep_torchs_handler_out() -> None:
    """Remove torch's handler of SIGCHLD, if it is there, and let torch install none."""
    if signal_handling._SIGCHLD_handler_set:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal_handling._SIGCHLD_handler_set = True


def look_while_waiting(iterator: Any) -> None:
    """Have *iterator* raise, as torch's handler would, for a worker that died, while it waits."""
    batches = getattr(iterator, "_data_queue", None)
    if batches is not None and not isinstance(batches, _Batches):
        iterator._data_queue = _Batches(batches)


class _Batches:
    """A loader's queue of batches, as far as its iterator uses it."""

    def __init__(self, batches: Any) -> None:
        self._batches = batches

    def get(self, timeout: float) -> Any:
        """The next batch.

        Raises:
            RuntimeError: A worker died by a signal, or exited with another status than 0.
            queue.Empty: There was none for *timeout* seconds.

        """
        until = time.monotonic() + timeout
        while True:
            signal_handling._error_if_any_worker_fails()  # type: ignore[attr-defined]
            left = until - time.monotonic()
            try:
                return self._batches.get(timeout=max(0.0, min(left, _BETWEEN_LOOKS)))
            except queue.Empty:
                if left <= _BETWEEN_LOOKS:
                    raise


def kill(pid: int) -> None:
    """Kill the worker *pid*, and leave it to torch to find out."""
    os.kill(pid, signal.SIGKILL)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
