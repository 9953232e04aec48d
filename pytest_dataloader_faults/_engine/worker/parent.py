"""End with the process that started this worker [runs in the DataLoader worker].

Some facts about a worker whose parent dies. torch's worker looks every 5 s whether its parent is
still the one that it had at first (torch/utils/data/_utils/worker.py, ``ManagerWatchdog``). It asks
for that first one after worker_init_fn has run. A parent that died before is never missed, and the
worker waits forever for an index: so did 68 of 120 workers of plain torch whose parent was killed
while they started. PR_SET_PDEATHSIG of prctl(2) ends a worker at once. But it is about the thread
that forked, and a user may iterate a loader in a thread that ends first; a trial does not.

A worker of a fork server has that server as its parent. The process that wants the worker holds the
other end of a pipe, which multiprocessing calls a sentinel. Forked workers have such a pipe, too,
but those that are forked later hold its other end as well.
"""

from __future__ import annotations

import functools
import multiprocessing
import os
import signal
from collections.abc import Callable

from torch.utils.data._utils import worker as torch_worker

from pytest_dataloader_faults._engine.system.prctl import Prctl, prctl

_ORPHANED = 86
"""The exit status of a worker whose parent is dead, which is not used."""
_OUTSIDE = 0
"""What getppid(2) answers where the parent is in another PID namespace."""


class EndsWithParent:
    """A ``worker_init_fn`` of a trial, which then runs the user's own."""

    def __init__(self, then: Callable[[int], object] | None) -> None:
        self._then = then

    def __call__(self, worker: int) -> None:
        """Run in the worker, before it makes its first sample."""
        end_with_parent(at_once=True)
        if self._then is not None:
            self._then(worker)


def end_with_parent(*, at_once: bool) -> None:
    """Exit if the process that started this one is dead, and end with it.

    *at_once*: by a signal; otherwise torch's loop ends within 5 s.
    """
    parent = os.getppid()
    if at_once:
        prctl(Prctl.SET_PDEATHSIG, signal.SIGKILL)
    if _is_orphaned(parent):
        os._exit(_ORPHANED)
    torch_worker.ManagerWatchdog = functools.partial(_Watchdog, parent)  # type: ignore[misc, assignment]


class _Watchdog(torch_worker.ManagerWatchdog):
    def __init__(self, parent: int) -> None:
        super().__init__()
        self.manager_pid = parent


def _is_orphaned(parent: int) -> bool:
    started_by = multiprocessing.parent_process()
    if started_by is None:
        return False
    method = getattr(multiprocessing.current_process(), "_start_method", None)
    if (method or multiprocessing.get_start_method()) == "forkserver":
        return not started_by.is_alive()
    return parent not in (started_by.pid, _OUTSIDE)
