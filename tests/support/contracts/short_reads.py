"""Reads that give less than was asked for: the right bytes, and the offset moves with them."""

import fcntl
import mmap
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from pytest_dataloader_faults.faults import ShortRead
from support.contracts.row import RIGHT, SOME, Row
from support.tries import ENOUGH, WAYS

CONTENT = bytes(range(200)) * 10
MOST = 7


def _read_at_5(call: Callable[[int], Any], flags: int = os.O_RDONLY) -> Callable[[str], Any]:
    """What a call gives from byte 5 on, and where the descriptor's offset is then."""

    def use(path: str) -> Any:
        fd = os.open(path, flags)
        try:
            os.lseek(fd, 5, os.SEEK_SET)
            return call(fd), os.lseek(fd, 0, os.SEEK_CUR)
        finally:
            os.close(fd)

    return use


def _fill_buffers(call: Any, *arguments: int) -> Callable[[int], bytes]:
    """Bytes out of a call that fills two buffers, of 3 bytes and of many."""

    def use(fd: int) -> bytes:
        buffers = [bytearray(3), bytearray(ENOUGH)]
        count = call(fd, buffers, *arguments)
        return b"".join(buffers)[:count]

    return use


def _readinto(fd: int) -> bytes:
    buffer = bytearray(ENOUGH)
    with open(fd, "rb", buffering=0, closefd=False) as file:
        count = file.readinto(buffer)
    return bytes(buffer[:count])


def _read_pieces(path: str) -> Any:
    """read1 gives what came, read goes on until there is enough."""
    with open(path, "rb") as file:
        return file.read1(100), file.read(100), file.tell(), file.read()


def _read_by_duplicate(fd: int) -> Any:
    """dup(2): what one reads, the other has read."""
    duplicate = os.dup(fd)
    try:
        return _read(duplicate), _read(fd)
    finally:
        os.close(duplicate)


def _read_mapped(fd: int) -> Any:
    with mmap.mmap(fd, 0, prot=mmap.PROT_READ) as mapping:
        return mapping[:], _read(fd)


def _read_locked(path: str) -> Any:
    """As h5py; what the lock is on is the worker's alone, and so is its offset."""
    fd = os.open(path, os.O_RDONLY)
    fcntl.flock(fd, fcntl.LOCK_EX)
    at_a_place, at_its_offset = os.pread(fd, ENOUGH, 0), _read(fd)
    os.close(fd)
    reopened = os.open(path, os.O_RDONLY)
    fcntl.flock(reopened, fcntl.LOCK_EX | fcntl.LOCK_NB)  # It was given up by the close.
    os.close(reopened)
    return at_a_place, at_its_offset


def _read(fd: int) -> bytes:
    return os.read(fd, ENOUGH)


def _short(
    way: Callable[[str], Any],
    effect: Any,
    fired: Any = SOME,
    most: float = MOST,
    content: bytes = CONTENT,
    **triggers: Any,
) -> Row:
    return Row(partial(ShortRead, max_bytes=most, **triggers), way, effect, content, fired)


READV = _fill_buffers(os.readv)
AT_OFFSET = {"read": _read, "readinto": _readinto, "readv": READV}
AT_A_PLACE = {
    "pread": lambda fd: os.pread(fd, ENOUGH, 11),
    "preadv": _fill_buffers(os.preadv, 11),
    "preadv2": _fill_buffers(os.preadv, 11, os.RWF_HIPRI),
}
FLAGS = (os.O_RDONLY, os.O_RDWR, os.O_RDWR | os.O_APPEND)
QUARTER = (len(CONTENT) - 5) // 4
LONG = CONTENT * 10
TEXT = "ä€😀" * 50
NEXT = CONTENT[5 : 5 + MOST], CONTENT[5 + MOST : 5 + 2 * MOST]
SHORT_READS = {
    # Whatever the file was opened for; a read at a place moves nothing.
    **{
        f"{name}, flags {flags}": _short(_read_at_5(call, flags), (NEXT[0], 5 + MOST), {1})
        for name, call in AT_OFFSET.items()
        for flags in FLAGS
    },
    **{
        name: _short(_read_at_5(call), (CONTENT[11 : 11 + MOST], 5), {1})
        for name, call in AT_A_PLACE.items()
    },
    # A fraction is of the bytes to the end of the file, not of the buffer.
    **{
        f"{name}, a quarter": _short(
            _read_at_5(call), (CONTENT[5 : 5 + QUARTER], 5 + QUARTER), {1}, 0.25
        )
        for name, call in AT_OFFSET.items()
    },
    # Within a buffer, at its end, or across pages.
    **{
        f"{most} bytes": _short(_read_at_5(READV), (LONG[5 : 5 + most], 5 + most), {1}, most, LONG)
        for most in (1, 3, 4, 4095, 4096, 4097, 9000)
    },
    # Python's and C's own layers read on until there is no more; a bare read(2) does not.
    **{
        name: _short(WAYS[name], RIGHT, SOME, 1000)
        for name in ("relative path", "thread", "fread", "cat")
    },
    **{name: _short(WAYS[name], CONTENT[:1000], SOME, 1000) for name in ("O_CREAT", "dir_fd")},
    "by halves": _short(WAYS["thread"], RIGHT, {(len(CONTENT) - 1).bit_length()}, 0.5),
    "pieces": _short(
        _read_pieces, (CONTENT[:7], CONTENT[7:107], 107, CONTENT[107:]), range(101, len(CONTENT))
    ),
    "text": _short(
        lambda path: Path(path).read_text(encoding="utf-8"),
        RIGHT,
        range(401, 1 << 20),
        1,
        TEXT.encode(),
    ),
    "one short read": _short(
        _read_at_5(lambda fd: (_read(fd), _read(fd))),
        ((NEXT[0], CONTENT[5 + MOST :]), len(CONTENT)),
        {1},
        times=1,
    ),
    # Two that would not give more, the second since it is at the end, do not count.
    "few": _short(
        _read_at_5(
            lambda fd: (
                os.read(fd, MOST),
                os.pread(fd, ENOUGH, len(CONTENT) - MOST),
                os.read(fd, MOST + 1),
            )
        ),
        ((NEXT[0], CONTENT[-MOST:], NEXT[1]), 5 + 2 * MOST),
        {1},
    ),
    "duplicate": _short(_read_at_5(_read_by_duplicate), (NEXT, 5 + 2 * MOST), {2}),
    "mapping": _short(_read_at_5(_read_mapped), ((CONTENT, NEXT[0]), 5 + MOST), {1}),
    "locked": _short(_read_locked, (CONTENT[:MOST],) * 2, {2}),
}
