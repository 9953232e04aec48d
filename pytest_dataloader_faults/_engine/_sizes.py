"""A file's size by its path, as it would be if the file were shorter [runs in the supervisor].

Some facts about the structs. stat(2) fills a struct stat of 144 bytes on x86_64 and 128 on aarch64,
with st_size at offset 48 on both; statx(2) fills 256 bytes, with stx_size at offset 40. fstat(2)
and its like on a descriptor need nothing of this: that is a substitute's and tells the truth.
"""

from __future__ import annotations

import ctypes
import os

from pytest_dataloader_faults._engine._linux import (
    AT_FDCWD,
    AT_SYMLINK_NOFOLLOW,
    raw_call,
    write_memory,
)
from pytest_dataloader_faults._engine._target import Call

_STAT_LENGTH = 144 if os.uname().machine == "x86_64" else 128
_STAT_SIZE_AT, _STATX_LENGTH, _STATX_SIZE_AT = 48, 256, 40
_RESULT_ARGUMENT = {"stat": 1, "lstat": 1, "newfstatat": 2, "statx": 4}


def is_about_link(call: Call, path: str) -> bool:
    """Whether *call* asks about a symbolic link and not about the file behind it."""
    places = {"newfstatat": 3, "statx": 2}
    flags = call.arguments[places[call.name]] if call.name in places else 0
    not_behind = call.name == "lstat" or flags & AT_SYMLINK_NOFOLLOW
    return bool(not_behind) and os.path.islink(path)


def tell_size(call: Call, path: str, size: int) -> None:
    """Fill in the struct that *call* asks for, with what is true of *path* but for its *size*."""
    if call.name == "statx":
        flags, mask = call.arguments[2], call.arguments[3]
        data = _filled(_STATX_LENGTH, "statx", path, flags, mask)
        place = _STATX_SIZE_AT
    else:
        data = _filled(_STAT_LENGTH, "newfstatat", path)
        place = _STAT_SIZE_AT
    told = data[:place] + size.to_bytes(8, "little") + data[place + 8 :]
    write_memory(call.pid, call.arguments[_RESULT_ARGUMENT[call.name]], told)


def _filled(length: int, name: str, path: str, *before: int) -> bytes:
    """What the kernel writes into the struct, which stat's flags follow and statx's precede."""
    buffer = ctypes.create_string_buffer(length)
    after = () if before else (0,)
    raw_call(name, AT_FDCWD, os.fsencode(path), *before, buffer, *after)
    return buffer.raw
