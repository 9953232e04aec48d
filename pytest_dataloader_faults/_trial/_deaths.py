"""Children's deaths, told to torch only while it is asked for something [in the trial].

Some facts about torch's handler of SIGCHLD. It raises in whatever the main thread does when a
worker has died, and that may as well be our own code, in the midst of a message to the supervisor.
A blocked signal would not do: threads that feed torch's queues have masks of their own. So its
handler is called where torch is at work, and later where it is not: a worker that dies between two
batches is told of as the next one is asked for. It asks waitid(2) how each worker ended, and takes
one that was waited for already for one that lives.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import Any, TypeVar

from torch.utils.data._utils import signal_handling

_T = TypeVar("_T")


class Deaths:
    """torch's handler of SIGCHLD, from now on and for as long as this process lives."""

    def __init__(self) -> None:
        signal_handling._set_SIGCHLD_handler()
        self._handler: Any = signal.getsignal(signal.SIGCHLD)
        self._at_work = self._came = False
        signal.signal(signal.SIGCHLD, self._on_death)

    def during(self, call: Callable[..., _T], *args: Any) -> _T:
        """What *call* returns; it raises if a worker has died since it was last asked."""
        self._at_work = True
        try:
            if self._came:
                self._came = False
                self._handler(signal.SIGCHLD, None)
            return call(*args)
        finally:
            self._at_work = False

    def kill(self, pid: int) -> None:
        """Kill the worker *pid*, and leave it to torch to find out."""
        os.kill(pid, signal.SIGKILL)
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        self._came = True

    def _on_death(self, number: int, frame: Any) -> None:
        if self._at_work:
            self._handler(number, frame)
        else:
            self._came = True
