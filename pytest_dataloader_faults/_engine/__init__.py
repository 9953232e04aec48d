"""The engine that injects faults: whether it can run here, and if not, why."""

from __future__ import annotations

import contextlib
import errno
import functools
import os
import sys
from collections.abc import Callable
from typing import Any

from pytest_dataloader_faults._engine.system import proc
from pytest_dataloader_faults._engine.system.processes import fork, reap, run_in_child
from pytest_dataloader_faults.exceptions import EngineUnavailableError, InvalidArgumentError

_ELSEWHERE = (
    "it requires Linux, and this is {}. Run these tests on Linux (in CI, in a container or in a"
    " virtual machine); on this machine, deselect them: pytest -m 'not dataloader_faults'"
)
_NEEDED: dict[str, Callable[[], int]] = {
    "pidfd_open(2) (Linux 5.3 or newer)": lambda: os.pidfd_open(os.getpid()),
    "memfd_create(2)": lambda: os.memfd_create("probe"),
}
"""System calls that it needs apart from seccomp(2); each returns a descriptor."""
_FORBIDDEN = "{} is missing or forbidden here (the container's seccomp profile?)"
_PROBE_SECONDS = 20.0
"""A probe takes 10 ms of a processor."""
_WORKS = "works"
_NO_ANSWER = "two processes that tried it exited, or were stopped, before they had an answer"


def _named(number: int | None) -> str:
    return f"[{errno.errorcode.get(number or 0, 'error')}, Linux {os.uname().release}]"


def patcher() -> Any:
    """The patcher of pyfakefs, if it is at work in this process; else None."""
    unittest = sys.modules.get("pyfakefs.fake_filesystem_unittest")
    current = getattr(getattr(unittest, "Patcher", None), "PATCHER", None)
    return current if current is not None and current.is_patching else None


scopes_with_workers: list[contextlib.ExitStack] = []
"""The open scopes in which pyfakefs leaves our own functions, and those of loaders, as they are."""


def require_real_functions() -> None:
    """Raise an error if pyfakefs has replaced the functions that start and watch processes."""
    if not scopes_with_workers and patcher() is not None:
        message = (
            "pyfakefs is already active, and has replaced the functions that start and watch"
            " processes. Enter FakeDatasetFs before the Patcher, or use it instead of the Patcher"
        )
        raise InvalidArgumentError(message)


def _probe_in_child() -> str:
    """The result of a child that tries to install a filter; "" if it had none in time."""

    def probe() -> bytes:
        return (_filter_reason() or _WORKS).encode()

    return run_in_child(probe, _PROBE_SECONDS).decode()


def _explain_unusable_system() -> str | None:
    """Why processes cannot be watched here, by pidfds and by /proc; None if they can."""
    if sys.platform != "linux":
        return _ELSEWHERE.format(sys.platform)
    if not hasattr(os, "pidfd_open"):
        return "this Python has no os.pidfd_open (Linux 5.3 or newer)"
    for name, call in _NEEDED.items():
        try:
            os.close(call())
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE):  # That proves nothing about the kernel.
                raise
            return f"{_FORBIDDEN.format(name)} {_named(error.errno)}"
    return proc.explain_unusable_procfs()


@functools.cache
def explain_missing_engine() -> str | None:
    """Why the engine cannot run here, or None if it can.

    Raises:
        OSError: All descriptors are in use, so that cannot be tested.
        InvalidArgumentError: pyfakefs has replaced the functions that find it out.
    """
    require_real_functions()
    if (reason := _explain_unusable_system()) is not None:
        return reason
    # A child that was killed or stopped proves nothing about the kernel: try another one.
    text = _probe_in_child() or _probe_in_child() or _NO_ANSWER
    return None if text == _WORKS else text


def require_engine() -> None:
    """Raise the error of ``unavailable`` if no fault can be injected here."""
    require_real_functions()
    if explain_missing_engine() is not None:
        raise unavailable()


def unavailable() -> EngineUnavailableError:
    """The error of a system without an engine. pytest and unittest skip a test that raises it."""
    from unittest import SkipTest

    class NoEngineError(EngineUnavailableError, SkipTest):
        """The tests prove nothing here, and nothing is wrong with them."""

    return NoEngineError(f"no engine can run here: {explain_missing_engine()}")


# Some facts about the ways it can be refused. Reading what the kernel says it supports is not
# enough: containers and sandboxes refuse the installation itself. gVisor answers NEW_LISTENER with
# EINVAL, a seccomp profile may answer EPERM or ENOSYS, and a process that has a listener already
# (some sandboxes give it one) gets EBUSY, since there is one listener per tree of tasks.
#
# A process may always read its own memory. That of another, which the supervisor reads, takes the
# right to trace it: yama refuses that from ptrace_scope 2 on, and so may a seccomp profile,
# AppArmor or SELinux.


_HINTS = {
    errno.EBUSY: "this process already has a seccomp listener (is it in a sandbox?)",
    errno.EINVAL: (
        "the kernel does not support seccomp user notification (Linux 5.9 or newer does; gVisor"
        " does not)"
    ),
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


def _filter_reason() -> str | None:
    """Install a filter on this process, permanently; None if it works, else why not."""
    from pytest_dataloader_faults._engine.kernel import linux
    from pytest_dataloader_faults._engine.kernel.calls import program

    if linux.MACHINE not in linux.SYSCALLS:
        supported = " and ".join(linux.SYSCALLS)
        return f"it supports {supported}, but this machine is {linux.MACHINE}"
    try:
        if (sizes := linux.notification_sizes()) != (linux.NOTIF.size, linux.RESPONSE.size, 64):
            return f"the kernel's notification structs have unknown sizes {sizes}"
        code = linux.ARCHITECTURES[linux.MACHINE]
        os.close(linux.filter_this_process(program({}, code), _ANY_PROCESS))
    except OSError as error:
        return f"{_HINTS.get(error.errno or 0, error.strerror)} {_named(error.errno)}"
    return _memory_reason()


def _memory_reason() -> str | None:
    """Why another process cannot read the memory of this one; None if it can."""
    if not (child := fork()):
        os._exit(_reading_error(os.getppid()))
    number = reap(child)
    return f"{_NO_MEMORY} {_named(number)}" if number else None


def _reading_error(pid: int) -> int:
    """The errno with which the memory of *pid*, a parent, or its descriptors cannot be read."""
    from pytest_dataloader_faults._engine.kernel import linux

    word = 8
    try:
        linux.read_memory(pid, id(word), word)
        proc.descriptors(pid)
    except OSError as error:
        return error.errno or -1
    return 0
