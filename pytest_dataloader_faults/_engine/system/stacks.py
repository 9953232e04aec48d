"""Stacks of other processes: each writes its stacks to its own file when it gets a signal."""

from __future__ import annotations

import faulthandler
import os
import signal
import time
from collections.abc import Callable

from pytest_dataloader_faults._engine.system import proc
from pytest_dataloader_faults._engine.system.processes import SIGN_OF_LIFE, Patience
from pytest_dataloader_faults._engine.system.temporary import OwnedDescriptor

# Some facts about faulthandler. Its handler writes to a number, whatever file that is by then, and
# a fork inherits both. It crashes the process if it walks the frames of a thread that runs
# meanwhile: so unless a process is stuck, only the thread that handles the signal is written. If
# several processes write to one file, their lines get mixed on a busy machine. The kernel blocks
# the signal for the thread that handles it, until that has written all.


_ALL_THREADS = getattr(signal, "SIGRTMAX", 64) - 3
_ONE_THREAD = _ALL_THREADS - 1
"""Numbers that programs do not use."""
_NAME = "pytest-dataloader-faults-stacks-of-process"
_PATIENCE, _IDLE_PATIENCE = 1.0, 0.1
"""Seconds for the stacks of a process, and for those of an idle one, as in a held call."""
_own: list[OwnedDescriptor] = []
"""The file of this process, if it has one."""


def write_on_signal() -> None:
    """Have this process and its forks write their stacks on request, even if they hang."""
    if not _own:
        _register()
        os.register_at_fork(after_in_child=_register_anew)


def _register() -> None:
    descriptor = os.memfd_create(_NAME, os.MFD_CLOEXEC)
    _own.append(OwnedDescriptor(descriptor))
    for number in (_ALL_THREADS, _ONE_THREAD):
        faulthandler.register(number, file=descriptor, all_threads=number == _ALL_THREADS)


def _register_anew() -> None:
    inherited = _own.pop()
    try:
        _register()
    except OSError:  # No descriptor is free.
        faulthandler.unregister(_ALL_THREADS)
        faulthandler.unregister(_ONE_THREAD)
    finally:
        inherited.close()


class StackRequest:
    """Request the stacks of the process *pid*, or of the one thread to which *send* sends a signal.

    Raises:
        OSError: The process has ended, or may not be inspected.
        LookupError: It does not write its stacks. The user's code may have closed the file, and
            opened another one with its number.
    """

    def __init__(self, pid: int, send: Callable[[int], object] | None = None) -> None:
        self._pid = pid
        self._signal = _ONE_THREAD if send else _ALL_THREADS
        if not proc.status(pid).caught >> (self._signal - 1) & 1:
            raise LookupError(pid)
        links = proc.descriptor_links(pid).items()
        number = next((number for number, link in links if _NAME in link), None)
        if number is None:
            raise LookupError(pid)
        self._descriptor = os.open(f"/proc/{pid}/fd/{number}", os.O_RDONLY | os.O_CLOEXEC)
        self._before = os.fstat(self._descriptor).st_size
        self._blocking = proc.threads_that_block(pid, self._signal)
        self._most = Patience(_PATIENCE, [pid])
        self._least = Patience(_IDLE_PATIENCE, [pid], SIGN_OF_LIFE)
        if send is None:
            os.kill(pid, self._signal)
        else:
            send(self._signal)

    def text(self) -> str:
        """What it has written, once that is all, unless it cannot write."""
        while not self.is_over():
            time.sleep(0.002)
        return self.take()

    def is_over(self) -> bool:
        """Whether it has written all, or cannot."""
        if not self._is_writing() or self._most.is_over():
            return True
        return self._least.is_over() and proc.state_of(self._pid) != "R"

    def take(self) -> str:
        """What it has written by now."""
        try:
            size = os.fstat(self._descriptor).st_size - self._before
            return os.pread(self._descriptor, size, self._before).decode(errors="replace")
        finally:
            os.close(self._descriptor)

    def _is_writing(self) -> bool:
        has_begun = os.fstat(self._descriptor).st_size > self._before
        blocking = proc.threads_that_block(self._pid, self._signal)
        return not has_begun or bool(blocking - self._blocking)
