"""Facts about a process that waits in the kernel for an answer [runs in the supervisor]."""

from __future__ import annotations

import errno
import os
from typing import NamedTuple

from pytest_dataloader_faults._engine._linux import AT_FDCWD, read_memory

_PAGE = 4096
_WITHOUT_FOLDER = ("open", "stat", "lstat")


class Call(NamedTuple):
    """One system call that was handed over."""

    id: int
    pid: int
    name: str
    arguments: tuple[int, ...]


class SenselessCallError(Exception):
    """A pointer to nothing, or a folder that is not open: the kernel's to refuse."""


class Opening(NamedTuple):
    """What an open(2), openat(2) or openat2(2) asks for: the absolute path, and O_* flags."""

    path: str
    flags: int

    @property
    def reads(self) -> bool:
        """Whether it opens a file in a way that allows reading what is in it.

        O_CREAT alone changes nothing for a file that is there: SQLite opens every database so.
        """
        without = os.O_EXCL | os.O_TRUNC | os.O_PATH | os.O_DIRECTORY
        return not self.flags & without and self.flags & os.O_ACCMODE != os.O_WRONLY


def opening(call: Call) -> Opening:
    """Read what *call* asks for out of the caller's memory."""
    first = 0 if call.name in _WITHOUT_FOLDER else 1
    path = os.fsdecode(_string(call.pid, call.arguments[first]))
    flags = call.arguments[first + 1]
    if call.name == "openat2":
        flags = int.from_bytes(read_memory(call.pid, flags, 8), "little")
    return Opening(_absolute(call, path), flags & 0xFFFFFFFF)


def looked_at(call: Call) -> str:
    """The absolute path that a stat(2), lstat(2), newfstatat(2) or statx(2) is about."""
    first = 0 if call.name in _WITHOUT_FOLDER else 1
    return _absolute(call, os.fsdecode(_string(call.pid, call.arguments[first])))


def _absolute(call: Call, path: str) -> str:
    return os.path.normpath(path if path.startswith("/") else os.path.join(_folder(call), path))


def _folder(call: Call) -> str:
    """What a relative path of *call* is relative to."""
    fd = signed(call.arguments[0])
    here = call.name in _WITHOUT_FOLDER or fd == AT_FDCWD
    try:
        return os.readlink(f"/proc/{call.pid}/cwd" if here else f"/proc/{call.pid}/fd/{fd}")
    except FileNotFoundError as error:
        raise SenselessCallError from error


def signed(argument: int) -> int:
    """A C int out of a 64-bit argument."""
    low = argument & 0xFFFFFFFF
    return low - (1 << 32) if low & 0x80000000 else low


def _string(pid: int, address: int) -> bytes:
    """A C string. Read up to the end of its page first: the next one may not be there."""
    text = b""
    while len(text) < _PAGE:
        try:
            text += read_memory(pid, address, _PAGE - address % _PAGE)
        except OSError as error:
            if error.errno != errno.EFAULT:
                raise
            raise SenselessCallError from error
        head, zero, _ = text.partition(b"\0")
        if zero:
            return head
        address += _PAGE - address % _PAGE
    return text


def descriptors(pid: int) -> set[int]:
    """The descriptor numbers in use; none if the process is gone."""
    try:
        return {int(name) for name in os.listdir(f"/proc/{pid}/fd")}
    except FileNotFoundError:
        return set()


def room_below(used: set[int], headroom: int) -> int:
    """The RLIMIT_NOFILE that leaves *headroom* free numbers, given those in *used*."""
    number = 0
    while headroom or number in used:
        headroom -= number not in used
        number += 1
    return number
