"""The engine that makes faults happen: which one works here, and if none does, why."""

from __future__ import annotations

import errno
import functools
import os
import sys
from collections.abc import Callable

from pytest_dataloader_faults._engine.fake import fake_files
from pytest_dataloader_faults._engine.system import proc
from pytest_dataloader_faults._engine.system.children import answer_of_child, reap
from pytest_dataloader_faults._engine.system.processes import fork
from pytest_dataloader_faults.exceptions import EngineUnavailableError

_ELSEWHERE = (
    "it needs Linux, and this is {}. Run such tests on Linux: in CI, in a container or in a virtual"
    " machine. Here, leave them out: pytest -m 'not dataloader_faults'"
)
_NEEDED: dict[str, Callable[[], int]] = {
    "pidfd_open(2), of Linux 5.3 or newer,": lambda: os.pidfd_open(os.getpid()),
    "memfd_create(2)": lambda: os.memfd_create("probe"),
}
"""System calls that every engine needs; each returns a descriptor."""
_FORBIDDEN = "{} is missing or forbidden here (the container's seccomp profile?) [{}, Linux {}]"
_PROBE_SECONDS = 20.0
"""A probe takes 10 ms of a processor."""
_WORKS = "works"
chosen: set[str] = set()
"""The engines that something in this process was to run by; whoever asks may empty it."""
_NO_ANSWER = "two processes that tried it ended, or were stopped, before they had an answer"


def _ask_child() -> str:
    """What a child says that has tried to install a filter; "" if it had no answer in time."""
    return answer_of_child(lambda: kernel_engine_reason() or _WORKS, _PROBE_SECONDS)


@functools.cache
def lacking() -> str | None:
    """Why no engine can run here, or None: both watch processes by pidfds, and by /proc.

    Raises:
        OSError: No descriptor is free to find out.
    """
    if sys.platform != "linux":
        return _ELSEWHERE.format(sys.platform)
    if not hasattr(os, "pidfd_open"):
        return "Python has no os.pidfd_open here, of Linux 5.3 or newer"
    for name, call in _NEEDED.items():
        try:
            os.close(call())
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE):  # That says nothing about the kernel.
                raise
            number = errno.errorcode.get(error.errno or 0)
            return _FORBIDDEN.format(name, number, os.uname().release)
    return proc.why_unusable()


@functools.cache
def unavailable() -> str | None:
    """Why the kernel engine cannot run here, or None if it can."""
    if (reason := lacking()) is not None:
        return reason
    # A child that was killed or stopped says nothing about the kernel: ask another one.
    text = _ask_child() or _ask_child() or _NO_ANSWER
    return None if text == _WORKS else text


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
    from pytest_dataloader_faults._settings import check

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


# Some facts about the ways it can be refused. Reading what the kernel says it supports is not
# enough: containers and sandboxes refuse the installation itself. gVisor answers NEW_LISTENER with
# EINVAL, a seccomp profile may answer EPERM or ENOSYS, and a process that has a listener already
# (some sandboxes give it one) gets EBUSY, since there is one listener per tree of tasks.
#
# A process may always read its own memory. That of another, which the supervisor reads, takes the
# right to trace it: yama refuses that from ptrace_scope 2 on, and so may a seccomp profile,
# AppArmor or SELinux.


_HINTS = {
    errno.EBUSY: "this process is under a seccomp listener already (a sandbox?)",
    errno.EINVAL: "the kernel knows no user notification (Linux 5.9 or newer has it; gVisor not)",
    errno.ENOSYS: "seccomp(2) is missing or forbidden here",
    errno.EPERM: "seccomp(2) is forbidden here (the container's seccomp profile?)",
    errno.EACCES: "seccomp(2) is forbidden here",
}
_NO_MEMORY = (
    "reading another process's memory is forbidden here (kernel.yama.ptrace_scope above 1? a"
    " profile of seccomp, AppArmor or SELinux?)"
)
_ANY_PROCESS = -1
"""For PR_SET_PTRACER: whatever reads is a child of this process, or its supervisor."""


def kernel_engine_reason() -> str | None:
    """Install a filter on this process, permanently; None if it works, else why not."""
    from pytest_dataloader_faults._engine.kernel import linux
    from pytest_dataloader_faults._engine.kernel.bpf import program

    if linux.MACHINE not in linux.SYSCALLS:
        return f"it knows {' and '.join(linux.SYSCALLS)}, this is {linux.MACHINE}"
    try:
        if (sizes := linux.notification_sizes()) != (linux.NOTIF.size, linux.RESPONSE.size, 64):
            return f"the kernel's notification structs have sizes {sizes}"
        code = linux.ARCHITECTURES[linux.MACHINE]
        os.close(linux.filter_this_process(program({}, code, base=1 << 20), _ANY_PROCESS))
    except OSError as error:
        number = error.errno or 0
        name = errno.errorcode.get(number, "error")
        return f"{_HINTS.get(number, error.strerror)} [{name}, Linux {os.uname().release}]"
    return _memory_reason()


def _memory_reason() -> str | None:
    """Why another process cannot read the memory of this one; None if it can."""
    if not (child := fork()):
        os._exit(_error_of_reading(os.getppid()))
    number = reap(child)
    if not number:
        return None
    name = errno.errorcode.get(number, "error")
    return f"{_NO_MEMORY} [{name}, Linux {os.uname().release}]"


def _error_of_reading(pid: int) -> int:
    """The errno with which the memory of *pid*, a parent, or its descriptors cannot be read."""
    from pytest_dataloader_faults._engine.kernel import linux

    word = 8
    try:
        linux.read_memory(pid, id(word), word)
        proc.descriptors(pid)
    except OSError as error:
        return error.errno or -1
    return 0
