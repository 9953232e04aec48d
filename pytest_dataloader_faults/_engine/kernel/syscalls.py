"""What a read, a write or a stat(2) asks for, and how it is answered [runs in the supervisor].

Some facts about a descriptor that we gave, or that the worker sent: ours and the worker's are one
open file description, and so have one offset (open(2)). Reading from ours moves the worker's, as
its own read would have. Writing by a duplicate does so, too, and appends where O_APPEND says so.

Some facts about the structs. stat(2) fills a struct stat of 144 bytes on x86_64 and 128 on aarch64,
with st_size at offset 48 on both; statx(2) fills 256 bytes, with stx_size at offset 40. fstat(2)
and its like on a descriptor need nothing of this: that is a substitute's and tells the truth.
"""

from __future__ import annotations

import ctypes
import os
import struct
from typing import NamedTuple

from pytest_dataloader_faults._engine.calls import Buffers
from pytest_dataloader_faults._engine.kernel import linux
from pytest_dataloader_faults._engine.kernel.caller import Syscall, TrackedFile

_IOVEC = struct.Struct("=QQ")
_PAGE = 4096
_CURRENT = -1
"""To preadv2(2) and pwritev2(2): the offset of the descriptor."""


class Span(NamedTuple):
    """The bytes of the file that a call will give, or map."""

    start: int
    length: int


def span(call: Syscall, source: int | None) -> Span:
    """What *call* is about; *source* is our descriptor of the file. Unknown: nothing."""
    if call.name == "mmap":
        return Span(call.arguments[5], call.arguments[1])
    if source is None or not call.facts.reads_into_buffers:
        return Span(0, 0)
    start = _offset(call)
    if start is None:
        start = os.lseek(source, 0, os.SEEK_CUR)
    wanted = sum(length for _, length in _buffers(call))
    return Span(start, max(0, min(wanted, os.fstat(source).st_size - start)))


def source_for(call: Syscall, followed: TrackedFile) -> int | None:
    """Our descriptor that reads what *call* would; None if there is none."""
    is_elsewhere = followed.reopened and call.facts.reads_into_buffers and _offset(call) is None
    return None if is_elsewhere else followed.source


def give_short(call: Syscall, source: int, length: int) -> int:
    """Put at most *length* bytes where *call* wants them; how many they are."""
    start = _offset(call)
    data = os.read(source, length) if start is None else os.pread(source, length, start)
    place = 0
    for address, room in _buffers(call):
        linux.write_memory(call.pid, address, data[place : place + room])
        place += min(room, len(data) - place)
    return len(data)


def length_to_write(call: Syscall) -> int:
    """How many bytes *call* is to write from buffers."""
    return sum(length for _, length in _buffers(call))


def moves_offset(call: Syscall) -> bool:
    """Whether *call* writes at the offset of its descriptor, and moves that."""
    return _offset(call) is None


def write_part(call: Syscall, target: int, length: int) -> int:
    """Write *length* bytes of what *call* writes to *target*, a duplicate; how many it took."""
    flags_at = call.facts.flags_at
    data, flags = _beginning(call, length), 0 if flags_at is None else call.arguments[flags_at]
    start = _offset(call)
    if start is None and not flags:
        return os.write(target, data)
    return os.pwritev(target, [data], _CURRENT if start is None else start, flags)


def _beginning(call: Syscall, length: int) -> bytes:
    """The first *length* bytes in the buffers of *call*."""
    data = bytearray()
    for address, size in _buffers(call):
        end = address + min(size, length - len(data))
        for at in range(address, end, _PAGE):
            data += linux.read_memory(call.pid, at, min(_PAGE, end - at))
    return bytes(data)


def _offset(call: Syscall) -> int | None:
    """Where in the file *call* reads or writes; None: at the descriptor's offset."""
    place = call.facts.offset_at
    if place is None or call.arguments[place] == _CURRENT % (1 << 64):
        return None
    return call.arguments[place]


def _buffers(call: Syscall) -> list[tuple[int, int]]:
    """The address and the length of each buffer."""
    if call.facts.buffers is Buffers.ONE:
        return [(call.arguments[1], call.arguments[2])]
    address, length = call.arguments[1], call.arguments[2] * _IOVEC.size
    data = b"".join(
        linux.read_memory(call.pid, address + at, min(_PAGE, length - at))
        for at in range(0, length, _PAGE)
    )
    return list(_IOVEC.iter_unpack(data))


STAT_LENGTHS = {"x86_64": 144, "aarch64": 128}
_STAT_SIZE_AT, _STATX_LENGTH, _STATX_SIZE_AT = 48, 256, 40


def write_stat(call: Syscall, fd: int, size: int) -> None:
    """Fill in the struct that *call* asks for: as for the file *fd*, but with *size*."""
    if call.name == "statx":
        flags, mask = call.arguments[2] | linux.AT_EMPTY_PATH, call.arguments[3]
        size_at, data = _STATX_SIZE_AT, ctypes.create_string_buffer(_STATX_LENGTH)
        linux.raw_call("statx", fd, b"", flags, mask, data)
    else:
        size_at, data = _STAT_SIZE_AT, ctypes.create_string_buffer(STAT_LENGTHS[linux.MACHINE])
        linux.raw_call("newfstatat", fd, b"", data, linux.AT_EMPTY_PATH)
    struct.pack_into("<Q", data, size_at, size)
    linux.write_memory(call.pid, call.argument(call.facts.result_at), data.raw)
