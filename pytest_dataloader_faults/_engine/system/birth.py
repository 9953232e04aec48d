"""When a file was made. Python's os.stat() does not say so on Linux; statx(2) does.

Some facts about such times. The kernel stamps a file with the time of its latest clock tick
(CLOCK_REALTIME_COARSE, clock_getres(2)), which is up to 10 ms behind the time that programs ask
for. So of files that were made within one tick, nothing says which came first.
"""

from __future__ import annotations

import ctypes
import os
import struct
import time

from pytest_dataloader_faults._engine.system.libc import libc

_AT_FDCWD, _NO_FOLLOW, _BIRTH = -100, 0x100, 0x800
_MASK, _TIME = struct.Struct("=I"), struct.Struct("=qI")
_BIRTH_AT, _LENGTH = 80, 256
_CLOCK_OF_FILES = 5
"""CLOCK_REALTIME_COARSE of linux/time.h, for which Python has no name."""


def next_tick() -> int:
    """Wait for the next clock tick; its time in ns. What is made from now on has no earlier one."""
    before = time.clock_gettime_ns(_CLOCK_OF_FILES)
    while (now := time.clock_gettime_ns(_CLOCK_OF_FILES)) == before:
        time.sleep(0.0005)
    return now


def birth_time(path: str) -> int | None:
    """When *path*, or the link of that name, was made, in ns; None if that is not known.

    Network file systems often do not know. Nor is a file known that is not there.
    """
    data = ctypes.create_string_buffer(_LENGTH)
    if libc.statx(_AT_FDCWD, os.fsencode(path), _NO_FOLLOW, _BIRTH, data) < 0:
        return None
    if not _MASK.unpack_from(data)[0] & _BIRTH:
        return None
    seconds, rest = _TIME.unpack_from(data, _BIRTH_AT)
    return int(seconds) * 10**9 + int(rest)
