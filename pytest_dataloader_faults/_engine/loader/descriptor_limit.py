"""No descriptor left in the loader's own process [runs where the loader does].

Some facts about that process. It is not filtered, and must not be, so which call is refused is not
seen. But a batch comes over a socket, with a descriptor for each shared tensor; one that finds no
number free is dropped by the kernel (MSG_CTRUNC, recvmsg(2)), and torch makes a temporary file
to find out whether that was why. So the limit holds only while a batch is awaited, and an error
that says so, or that comes while every number below the limit is taken, is the fault's.
"""

from __future__ import annotations

import contextlib
import os
import resource
from collections.abc import Iterator

from pytest_dataloader_faults._engine.kernel.remote_process import descriptors, room_below
from pytest_dataloader_faults._engine.plan import Plan, fresh_counters
from pytest_dataloader_faults.faults import DescriptorExhaustion


class LoaderDescriptorLimit:
    """The limit that the schedule puts on this process, if any."""

    def __init__(self, plan: Plan) -> None:
        every = fresh_counters(plan, None)
        found = [each for each in every if isinstance(each.fault, DescriptorExhaustion)]
        self.counters = [each for each in found if each.fault.where == "loader"]
        self._limit: int | None = None

    @contextlib.contextmanager
    def lowered(self) -> Iterator[None]:
        """Lower the limit for as long as this scope lasts."""
        if not self.counters:
            yield
            return
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        if self._limit is None:
            headroom = min(each.fault.headroom for each in self.counters)
            self._limit = room_below(descriptors(os.getpid()), headroom)
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
        is_ours = self.counters and (says_so or not _is_room())
        for counter in self.counters if is_ours else ():
            counter.reached += 1
            counter.fire_here("recvmsg")


def _is_room() -> bool:
    try:
        os.close(os.open(os.devnull, os.O_RDONLY))
    except OSError:
        return False
    return True
