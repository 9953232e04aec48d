"""Faults of the loader's own process, and a lock that it may lose [runs in it].

Some facts about that process. It is not filtered, and must not be, so which call is refused is not
seen. But a batch arrives over a socket, with a descriptor for each shared tensor; one that finds no
number free is dropped by the kernel (MSG_CTRUNC, recvmsg(2)), and torch makes a temporary file to
find out whether that was why. So the limit holds only while a batch is awaited, and an error that
says so, or that is raised while every number below the limit is taken, is the fault's.
"""

from __future__ import annotations

import contextlib
import os
import resource
import sys
import time
from collections.abc import Iterator
from typing import Any

from pytest_dataloader_faults._engine.plan import FaultPlan, fresh_counters
from pytest_dataloader_faults._engine.system.proc import descriptors, limit_for_headroom
from pytest_dataloader_faults.faults import DescriptorExhaustion


class LoaderDescriptorLimit:
    """The limit that the schedule puts on this process, if any."""

    def __init__(self, plan: FaultPlan) -> None:
        counters = fresh_counters(plan, None)
        exhaustions = [each for each in counters if isinstance(each.fault, DescriptorExhaustion)]
        self.counters = [each for each in exhaustions if each.fault.where == "loader"]
        self._limit: int | None = None

    @contextlib.contextmanager
    def lower_limit(self) -> Iterator[None]:
        """Lower the limit for as long as this scope lasts."""
        if not self.counters:
            yield
            return
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        if self._limit is None:
            headroom = min(each.fault.headroom for each in self.counters)
            self._limit = limit_for_headroom(descriptors(os.getpid()), headroom)
        try:  # torch's handler of SIGCHLD may raise at any place from here on.
            resource.setrlimit(resource.RLIMIT_NOFILE, (min(self._limit, soft), hard))
            yield
        except Exception as error:
            self.record_error(error)
            raise
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))

    def record_error(self, error: Exception) -> None:
        """Count *error*, raised while a batch was awaited, if the limit caused it."""
        says_so = "Too many open files" in str(error) or "ancdata" in str(error)
        is_ours = self.counters and (says_so or not _has_free_descriptor())
        for counter in self.counters if is_ours else ():
            counter.matched += 1
            counter.fire_here("recvmsg")


def _has_free_descriptor() -> bool:
    try:
        os.close(os.open(os.devnull, os.O_RDONLY))
    except OSError:
        return False
    return True


# Some facts about a lock that is never released. ``multiprocessing.Queue.put`` acquires the lock
# ``_notempty`` by a ``with`` statement. When a worker dies, torch's handler of SIGCHLD raises in
# the main thread, and where it does so between the acquisition and the first line of that block,
# nothing releases the lock. torch ends an iterator by ``_mark_worker_as_unavailable``, which puts
# into the same queue, and waits forever. The queue's own thread holds that lock for microseconds at
# once.
#
# Under ``inject`` the loop is the user's, so torch behaves as always. The plugin can only say what
# the loop waits for.


_LOCK_PATIENCE = 5.0
_LOST_LOCK = (
    "pytest-dataloader-faults: this loop hangs in torch, not in the dataset. A DataLoader worker"
    " died while torch was putting indices into its queue, torch's SIGCHLD handler raised inside"
    " multiprocessing.Queue.put, and the lock of that queue was never released: the loader now"
    " waits for it forever in _mark_worker_as_unavailable. A small prefetch_factor makes this"
    " rare, and run_trial() prevents it\n"
)


def report_lost_lock(queue: Any) -> None:
    """Write to standard error if the lock of *queue* stays locked for seconds."""
    until = time.monotonic() + _LOCK_PATIENCE
    # Not acquired here: torch's handler could raise before it would be released.
    while queue._notempty._lock.locked():
        if time.monotonic() > until:
            sys.stderr.write(_LOST_LOCK)
            return
        time.sleep(0.01)
