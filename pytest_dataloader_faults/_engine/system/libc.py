"""The C library of this process, and the one place where a failed call becomes an exception."""

from __future__ import annotations

import ctypes
import os
import resource
import signal
from enum import IntEnum

libc = ctypes.CDLL(None, use_errno=True)


def check(result: int, label: str) -> int:
    """*result* of a call, or the OSError that errno stands for, naming *label* failed."""
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{label}: {os.strerror(number)}")
    return result


class Prctl(IntEnum):
    """First argument of prctl(2)."""

    SET_PDEATHSIG = 1
    SET_DUMPABLE = 4
    CAPBSET_DROP = 24
    SET_SECUREBITS = 28
    SET_CHILD_SUBREAPER = 36
    SET_NO_NEW_PRIVS = 38
    SET_THP_DISABLE = 41
    SET_PTRACER = 0x59616D61


def prctl(option: Prctl, argument: int) -> None:
    """prctl(2) with one argument."""
    zero = ctypes.c_ulong(0)
    check(libc.prctl(int(option), ctypes.c_ulong(argument), zero, zero, zero), option.name)


def leave_no_core() -> None:
    """Have the kernel write no core file if this process crashes: it would replace an older one."""
    _, hard = resource.getrlimit(resource.RLIMIT_CORE)
    resource.setrlimit(resource.RLIMIT_CORE, (0, hard))


def end_with_parent(parent: int, number: signal.Signals = signal.SIGKILL) -> None:
    """Have this process get a signal when the thread that forked it ends; *parent* is its process.

    That parent may be dead already, and then no signal comes (PR_SET_PDEATHSIG, prctl(2)).
    """
    prctl(Prctl.SET_PDEATHSIG, number)
    if os.getppid() != parent:
        os._exit(1)
