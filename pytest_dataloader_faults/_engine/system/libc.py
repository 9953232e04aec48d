"""The C library of this process, and huge pages for a process that forks often.

Here is the one place where a failed call becomes an exception.
"""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import os
import resource
import signal
from collections.abc import Iterable, Iterator
from enum import IntEnum

from pytest_dataloader_faults._engine.system.proc import PrivateMemory, private_memory

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


# Some facts about the fork of a process that has loaded torch. It holds 150 MB in 37,000 pages,
# most of them objects of Python. fork(2) copies an entry of the page table for each, and the end of
# the child takes them away again: 6 and 10 ms here, and a trial has seven of them, a scope of
# ``inject`` one and more for its workers: that was most of their time. A huge page holds 512 pages
# in one entry. Python does not request any, and most systems provide them only on request
# (/sys/kernel/mm/transparent_hugepage/enabled). MADV_COLLAPSE (madvise(2), since Linux 6.1) moves
# what a range holds into huge pages, once: later allocations stay as they were, which those who
# measure memory rely on. A child that writes copies one small page, as before. Fork and end then
# take 1.5 and 6 ms. Four fifths of the huge pages are whole after dozens of trials: pytest's
# process mostly waits while its children live.


_MADV_COLLAPSE = 25
_HUGE = 1 << 21
_SCOPES_BEFORE = 3
"""Moving memory takes as long as it saves in a dozen trials."""
_MOST = 1 << 28
"""Bytes of one range: a larger one is an array, and would take long to move."""
_scopes = itertools.count(1)


def collapse_after_two_scopes() -> None:
    """Use huge pages from the third trial or scope of this process on, if the kernel has them."""
    if next(_scopes) != _SCOPES_BEFORE:
        return
    with contextlib.suppress(OSError):  # Without /proc forks take longer, and that is all.
        for start, end in list(_full_ranges(private_memory())):
            _collapse(start, end - start)


def _full_ranges(memory: Iterable[PrivateMemory]) -> Iterator[tuple[int, int]]:
    """Ranges of whole huge pages in private *memory* that is mostly in use."""
    for begin, end, resident in memory:
        start, stop = -(-begin // _HUGE) * _HUGE, end // _HUGE * _HUGE
        if start < stop and end - begin <= min(_MOST, 2 * resident):
            yield start, stop


def _collapse(address: int, length: int) -> None:
    """Put this range of memory into huge pages, as far as the kernel can: it is only advice."""
    libc.madvise(ctypes.c_void_p(address), ctypes.c_size_t(length), _MADV_COLLAPSE)
