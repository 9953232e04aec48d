"""What a call that reads or looks asks for, and how it is answered [runs in the supervisor].

Some facts about a descriptor that we gave, or that the worker sent: ours and the worker's are one
open file description, and so have one offset (open(2)). Reading from ours moves the worker's, as
its own read would have.

Some facts about the structs. stat(2) fills a struct stat of 144 bytes on x86_64 and 128 on aarch64,
with st_size at offset 48 on both; statx(2) fills 256 bytes, with stx_size at offset 40. fstat(2)
and its like on a descriptor need nothing of this: that is a substitute's and tells the truth.
"""

from __future__ import annotations

import ctypes
import os
import struct
from typing import NamedTuple

from pytest_dataloader_faults._engine.kernel.linux import (
    AT_FDCWD,
    AT_SYMLINK_NOFOLLOW,
    raw_call,
    read_memory,
    write_memory,
)
from pytest_dataloader_faults._engine.kernel.remote_process import Syscall, TrackedFile

_IOVEC = struct.Struct("=QQ")
_PAGE = 4096
_AT_OFFSET = {"pread64": 3, "preadv": 3, "preadv2": 3}
_VECTORED = ("readv", "preadv", "preadv2")
_PLAIN = ("read", "pread64", *_VECTORED)


class Span(NamedTuple):
    """The bytes of the file that a call will give, or map."""

    start: int
    length: int

    @property
    def end(self) -> int:
        """The place after the last one."""
        return self.start + self.length


def span(call: Syscall, source: int | None) -> Span:
    """What *call* is about; *source* is our descriptor of the file. Unknown: nothing."""
    if call.name == "mmap":
        return Span(call.arguments[5], call.arguments[1])
    if source is None or call.name not in _PLAIN:
        return Span(0, 0)
    start = _offset(call)
    if start is None:
        start = os.lseek(source, 0, os.SEEK_CUR)
    wanted = sum(length for _, length in _buffers(call))
    return Span(start, max(0, min(wanted, os.fstat(source).st_size - start)))


def source_for(call: Syscall, followed: TrackedFile) -> int | None:
    """Our descriptor that reads what *call* would; None if there is none."""
    is_elsewhere = followed.reopened and call.name in _PLAIN and _offset(call) is None
    return None if is_elsewhere else followed.source


def give_short(call: Syscall, source: int, length: int) -> int:
    """Put at most *length* bytes where *call* wants them; how many they are."""
    start = _offset(call)
    data = os.read(source, length) if start is None else os.pread(source, length, start)
    place = 0
    for address, room in _buffers(call):
        part = data[place : place + room]
        _write(call.pid, address, part)
        place += len(part)
    return len(data)


def can_be_short(call: Syscall) -> bool:
    """Whether *call* puts bytes into buffers of the caller."""
    return call.name in _PLAIN


def _offset(call: Syscall) -> int | None:
    """Where in the file *call* reads; None: at the descriptor's offset."""
    index = _AT_OFFSET.get(call.name)
    if index is None or call.arguments[index] == (1 << 64) - 1:  # preadv2(2): -1 means the same.
        return None
    return call.arguments[index]


def _buffers(call: Syscall) -> list[tuple[int, int]]:
    """The address and the length of each buffer."""
    if call.name not in _VECTORED:
        return [(call.arguments[1], call.arguments[2])]
    data = _read(call.pid, call.arguments[1], call.arguments[2] * _IOVEC.size)
    return [(address, length) for address, length in _IOVEC.iter_unpack(data)]


def _read(pid: int, address: int, length: int) -> bytes:
    parts = range(0, length, _PAGE)
    return b"".join(read_memory(pid, address + at, min(_PAGE, length - at)) for at in parts)


def _write(pid: int, address: int, data: bytes) -> None:
    for at in range(0, len(data), _PAGE):
        write_memory(pid, address + at, data[at : at + _PAGE])


_STAT_LENGTH = 144 if os.uname().machine == "x86_64" else 128
_STAT_SIZE_AT, _STATX_LENGTH, _STATX_SIZE_AT = 48, 256, 40
_RESULT_ARGUMENT = {"stat": 1, "lstat": 1, "newfstatat": 2, "statx": 4}


def is_about_link(call: Syscall, path: str) -> bool:
    """Whether *call* asks about a symbolic link and not about the file behind it."""
    places = {"newfstatat": 3, "statx": 2}
    flags = call.arguments[places[call.name]] if call.name in places else 0
    not_behind = call.name == "lstat" or flags & AT_SYMLINK_NOFOLLOW
    return bool(not_behind) and os.path.islink(path)


def write_stat(call: Syscall, path: str, size: int) -> None:
    """Fill in the struct that *call* asks for: as of *path*, but with *size*."""
    if call.name == "statx":
        flags, mask = call.arguments[2], call.arguments[3]
        data = _filled(_STATX_LENGTH, "statx", path, flags, mask)
        place = _STATX_SIZE_AT
    else:
        data = _filled(_STAT_LENGTH, "newfstatat", path)
        place = _STAT_SIZE_AT
    changed = data[:place] + size.to_bytes(8, "little") + data[place + 8 :]
    write_memory(call.pid, call.arguments[_RESULT_ARGUMENT[call.name]], changed)


def _filled(length: int, name: str, path: str, *before: int) -> bytes:
    """What the kernel writes into the struct, which stat's flags follow and statx's precede."""
    buffer = ctypes.create_string_buffer(length)
    after = () if before else (0,)
    raw_call(name, AT_FDCWD, os.fsencode(path), *before, buffer, *after)
    return buffer.raw
