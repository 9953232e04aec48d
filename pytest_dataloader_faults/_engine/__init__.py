"""The engine that makes faults happen: which one works here, and if none does, why."""

from __future__ import annotations

import errno
import functools
import os
import signal
import sys

from pytest_dataloader_faults._engine.fake import fake_files
from pytest_dataloader_faults._engine.system import proc
from pytest_dataloader_faults._engine.system.processes import fork, ready
from pytest_dataloader_faults.exceptions import EngineUnavailableError

_ELSEWHERE = (
    "it needs Linux, and this is {}. Run such tests on Linux: in CI, in a container or in a virtual"
    " machine. Here, leave them out: pytest -m 'not dataloader_faults'"
)
_NO_PIDFD = (
    "pidfd_open(2), of Linux 5.3 or newer, is missing or forbidden here (the container's seccomp"
    " profile?) [{}, Linux {}]"
)
_PROBE_SECONDS = 20.0
"""A probe takes 10 ms where the machine is not busy."""
_LONGEST = 4096
chosen: set[str] = set()
"""The engines that something in this process was to run by; whoever asks may empty it."""
_NO_ANSWER = "two probes of it were killed or stopped before they had an answer"


class Probe:
    """Installs a filter in a child process, to find out whether that works.

    It is started before its answer is needed, so that the child works while the caller does.
    """

    def __init__(self) -> None:
        self._read, write = os.pipe()
        parent = os.getpid()
        self._child = fork()
        if not self._child:
            try:
                from pytest_dataloader_faults._engine.kernel.probe import kernel_engine_reason
                from pytest_dataloader_faults._engine.system.libc import end_with_parent

                end_with_parent(parent)
                os.write(write, (kernel_engine_reason() or "works").encode())
            finally:
                os._exit(0)
        os.close(write)

    def reason(self) -> str | None:
        """None if the kernel engine works here; otherwise the reason why not.

        A child that was killed or stopped says nothing of the kernel: another one is asked.
        """
        text = self._answer() or Probe()._answer() or _NO_ANSWER
        return None if text == "works" else text

    def _answer(self) -> str:
        """What the child has found out; "" if it was killed or stopped before."""
        try:
            if not ready([self._read], _PROBE_SECONDS):
                return ""
            return os.read(self._read, _LONGEST).decode()
        finally:
            os.close(self._read)
            os.kill(self._child, signal.SIGKILL)
            os.waitpid(self._child, 0)


@functools.cache
def start_probe() -> Probe | None:
    """Begin to find out, so that ``unavailable`` need not wait."""
    return Probe() if sys.platform == "linux" else None


@functools.cache
def lacking() -> str | None:
    """Why no engine can run here, or None: both watch processes by pidfds, and by /proc."""
    if sys.platform != "linux":
        return _ELSEWHERE.format(sys.platform)
    try:
        os.close(os.pidfd_open(os.getpid()))
    except AttributeError:
        return "Python has no os.pidfd_open here, of Linux 5.3 or newer"
    except OSError as error:
        return _NO_PIDFD.format(errno.errorcode.get(error.errno or 0), os.uname().release)
    return proc.why_unusable()


@functools.cache
def unavailable() -> str | None:
    """Why the kernel engine cannot run here, or None if it can."""
    if (reason := lacking()) is not None:
        return reason
    probe = start_probe()
    assert probe
    return probe.reason()


def not_linux() -> EngineUnavailableError:
    """The error on another system. pytest and unittest skip a test, or a module, that raises it."""
    from unittest import SkipTest

    class NotLinuxError(EngineUnavailableError, SkipTest):
        """Nothing is shown, and nothing is wrong with the tests."""

    return NotLinuxError(f"no engine can run here: {unavailable()}")


def choose(engine: str) -> str:
    """The engine to take for *engine*; raises EngineUnavailableError where there is none."""
    found = _found(engine)
    chosen.add(found)
    return found


def _found(engine: str) -> str:
    from pytest_dataloader_faults._arguments import check

    check(engine=engine)
    if sys.platform != "linux":
        raise not_linux()
    if engine == "auto" and fake_files() is not None:
        engine = "python"  # The kernel does not see fake files.
    if (reason := lacking()) is not None:
        raise EngineUnavailableError(f"engine={engine!r}: no engine can run here: {reason}")
    if engine == "python":
        return engine
    if (reason := unavailable()) is None:
        return "kernel"
    if engine == "kernel":
        message = f"engine='kernel': the kernel engine cannot run here: {reason}"
        raise EngineUnavailableError(message)
    return "python"
