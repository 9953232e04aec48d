"""How an armed process uses the C library: for large allocations, and sockets [runs in it]."""

from __future__ import annotations

import ctypes
import errno
import os
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any

from pytest_dataloader_faults._engine.protocol import TakesFreeMemory
from pytest_dataloader_faults._engine.system.libc import libc

# Some facts about glibc. malloc(3) takes an allocation from memory that was freed before, if any is
# large enough; then from the end of the heap; and only from 128 KiB on by a separate mmap(2). That
# threshold rises to the size of each such mapping that is freed, up to 32 MiB. So after a while,
# few allocations reach the kernel. mallopt(3) sets the threshold, and how much unused memory the
# heap may have at its end.
#
# A forked process has the arenas of its parent's threads, each with free memory of its own. A
# thread gets an arena that no other thread uses. If an allocation fails there, it is tried once
# more, in the main arena or, from there, in another one, to which the thread then belongs. So while
# the kernel refuses, as many threads as there are arenas, all alive, can take all that is free.
#
# A threshold that was set once does not rise again, and later threads share one arena: that cannot
# be undone.


_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -2, -3, -8
_DEFAULT = 128 << 10
"""Bytes: the limits of a process that has freed no mapping."""
_IS_MAPPED = 2
"""A flag in the size of a chunk, which is the word before it."""
_ARENA, _SMALL_OBJECT, _BUFFERS = 1 << 20, 400, 64 << 10
"""Bytes: CPython's arena, an object that is in one, and what else the reserve is for."""
_SIZES = 512, 64, 8, 1, 1
"""What a thread keeps, relative to the least: that twice, since it may then have another arena."""
_WORD = ctypes.sizeof(ctypes.c_size_t)


def reserve_memory() -> None:
    """Have free memory for small objects and buffers, which needs no system call to be used.

    CPython gets an arena for small objects and, even when all of it is free, keeps the last one.
    """
    objects = [bytes(_SMALL_OBJECT) for _ in range(_ARENA // _SMALL_OBJECT)]
    del objects
    _free(_malloc(_BUFFERS))


class LargeAllocations:
    """Makes the C library get each allocation of *least* bytes or more by a system call.

    With another C library than glibc, nothing is done: then only those fail that need new memory.
    """

    def __init__(self, least: int) -> None:
        self._least = least
        self._last: int | None = None
        """The chunk that was kept last; each contains the address of the one before."""
        self._is_usable = _is_glibc()
        if self._is_usable:
            libc.mallopt(_M_ARENA_MAX, 1)
            self._limit(least, least // 2)

    def prepare(self, send: Callable[[TakesFreeMemory], None]) -> None:
        """Keep what is free from use, so that the batch gets its memory from the kernel."""
        self.free_kept()
        if self._is_usable:
            self._keep_in_arenas(_count_arenas(), send)

    def free_kept(self) -> None:
        """Free what was kept."""
        while self._last is not None:
            address, self._last = self._last, ctypes.c_void_p.from_address(self._last).value
            _free(address)

    def _keep_in_arenas(self, arenas: int, send: Callable[[TakesFreeMemory], None]) -> None:
        """Keep what is free for this thread and, while it lives, for as many others."""
        send(TakesFreeMemory(threading.get_native_id()))
        self.keep_free()
        if arenas > 1:
            thread = threading.Thread(target=self._keep_in_arenas, args=(arenas - 1, send))
            with suppress(RuntimeError):  # No other thread can start, so none can use an arena.
                thread.start()
                thread.join()

    def keep_free(self) -> None:
        """Take all free memory of that size, while the kernel refuses to give this thread any."""
        for size in _SIZES:
            while (address := _malloc(size * self._least)) is not None:
                if _is_mapped(address):  # The kernel does not refuse any longer.
                    _free(address)
                    return
                ctypes.c_void_p.from_address(address).value = self._last
                self._last = address

    def end(self) -> None:
        """Free what was kept, and set the limits that a new process has."""
        self.free_kept()
        if self._is_usable:
            self._limit(_DEFAULT, _DEFAULT)

    def _limit(self, threshold: int, unused: int) -> None:
        libc.mallopt(_M_MMAP_THRESHOLD, threshold)
        libc.mallopt(_M_TRIM_THRESHOLD, threshold)
        libc.mallopt(_M_TOP_PAD, unused)


_malloc = libc.malloc
_malloc.restype, _malloc.argtypes = ctypes.c_void_p, (ctypes.c_size_t,)
_free = libc.free
_free.restype, _free.argtypes = None, (ctypes.c_void_p,)


def _is_mapped(address: int) -> bool:
    return bool(ctypes.c_size_t.from_address(address - _WORD).value & _IS_MAPPED)


def _is_glibc() -> bool:
    """Whether malloc(3) is glibc's own, and not that of a library that was loaded before."""
    try:
        glibc = ctypes.CDLL("libc.so.6")
    except OSError:
        return False
    ours, theirs = (ctypes.cast(each.malloc, ctypes.c_void_p).value for each in (libc, glibc))
    return ours == theirs and hasattr(glibc, "gnu_get_libc_version")


def _count_arenas() -> int:
    """How many arenas there are, by malloc_info(3), which describes each of them."""
    libc.open_memstream.restype = ctypes.c_void_p
    text, size = ctypes.c_void_p(), ctypes.c_size_t()
    stream = ctypes.c_void_p(libc.open_memstream(ctypes.byref(text), ctypes.byref(size)))
    libc.malloc_info(0, stream)
    libc.fclose(stream)
    description = ctypes.string_at(text, size.value)
    _free(text)
    return description.count(b"<heap nr=")


# Some facts about torch's sockets. It passes each tensor on by a connection of its own, which takes
# eight reads and four writes. They matter to no fault, but the filter cannot tell a socket from a
# file. recv(2) and send(2) are about sockets alone, so the filter does not notify of them. They
# fail for anything else, such as a pipe, or a file that has the number of a socket which user code
# has closed. Then the usual call follows.


CALLS_USER_CODE = True
"""An error of a connection is that of the user's code, as if os.read() had raised it here."""
_LARGEST_MESSAGE = 1 << 16
"""Bytes of a read or write. Larger ones are few."""
_READ: Any = Connection._read  # type: ignore[attr-defined]
_WRITE: Any = Connection._write  # type: ignore[attr-defined]


def use_sockets_unseen() -> None:
    """Replace the functions by which connections of multiprocessing read and write, if known."""
    kind: Any = Connection
    if (kind._recv.__defaults__, kind._send.__defaults__) == ((kind._read,), (kind._write,)):
        kind._recv.__defaults__, kind._send.__defaults__ = (_receive,), (_send,)


def _receive(handle: int, size: int) -> bytes:
    buffer = ctypes.create_string_buffer(min(size, _LARGEST_MESSAGE))
    count = libc.recv(handle, buffer, len(buffer), 0)
    return buffer.raw[:count] if _has_succeeded(count) else _READ(handle, size)


def _send(handle: int, data: Any) -> int:
    is_small = type(data) is bytes and len(data) <= _LARGEST_MESSAGE
    count = libc.send(handle, data, len(data), socket.MSG_NOSIGNAL) if is_small else 0
    return count if is_small and _has_succeeded(count) else _WRITE(handle, data)


def _has_succeeded(count: int) -> bool:
    """Whether a call has, by its result; False if the usual one should follow."""
    number = ctypes.get_errno()
    if count < 0 and number not in (errno.ENOTSOCK, errno.EINTR):
        raise OSError(number, os.strerror(number))
    return count >= 0
