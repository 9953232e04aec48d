"""Have multiprocessing use its sockets unseen by the filter [runs in filtered processes]."""

from __future__ import annotations

import ctypes
import errno
import os
import socket
from multiprocessing.connection import Connection
from typing import Any

from pytest_dataloader_faults._engine.system.libc import libc

# Some facts about torch's sockets. It passes each tensor on by a connection of its own, which takes
# eight reads and four writes. They matter to no fault, but the filter cannot tell a socket from a
# file. recv(2) and send(2) are about sockets alone, so the filter does not notify of them. They
# fail for anything else, such as a pipe, or a file that has the number of a socket which user code
# has closed. Then the usual call follows.


CALLS_USER_CODE = True
"""An error of a connection is that of the user's code, as if os.read() had raised it here."""
_LARGEST = 1 << 16
"""Bytes of a read or write. Larger ones are few."""
_READ: Any = Connection._read  # type: ignore[attr-defined]
_WRITE: Any = Connection._write  # type: ignore[attr-defined]


def use_sockets_unseen() -> None:
    """Replace the functions by which connections of multiprocessing read and write, if known."""
    kind: Any = Connection
    if (kind._recv.__defaults__, kind._send.__defaults__) == ((kind._read,), (kind._write,)):
        kind._recv.__defaults__, kind._send.__defaults__ = (_receive,), (_send,)


def _receive(handle: int, size: int) -> bytes:
    buffer = ctypes.create_string_buffer(min(size, _LARGEST))
    count = libc.recv(handle, buffer, len(buffer), 0)
    return buffer.raw[:count] if _has_succeeded(count) else _READ(handle, size)


def _send(handle: int, data: Any) -> int:
    is_small = type(data) is bytes and len(data) <= _LARGEST
    count = libc.send(handle, data, len(data), socket.MSG_NOSIGNAL) if is_small else 0
    return count if is_small and _has_succeeded(count) else _WRITE(handle, data)


def _has_succeeded(count: int) -> bool:
    """Whether a call has, by its result; False if the usual one should follow."""
    number = ctypes.get_errno()
    if count < 0 and number not in (errno.ENOTSOCK, errno.EINTR):
        raise OSError(number, os.strerror(number))
    return count >= 0
