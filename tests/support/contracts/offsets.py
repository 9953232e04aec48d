"""Disk errors from a place in the file on: reads before it succeed, by each call."""

import mmap
import os
from collections.abc import Callable
from functools import partial
from typing import Any

from pytest_dataloader_faults.faults import ReadError
from support.contracts.row import RIGHT, Row

PAGE = mmap.PAGESIZE
PAGES = 4
CONTENT = b"".join(bytes([number]) * PAGE for number in range(PAGES))
"""Page *n* holds *n* only."""


def _read_pages(call: Callable[[int, int], Any], path: str) -> list[Any]:
    """The first byte of each page, or the errno, by a call for one page at a time."""
    fd = os.open(path, os.O_RDONLY)
    try:
        return [_first_byte(call, fd, number * PAGE) for number in range(PAGES)]
    finally:
        os.close(fd)


def _first_byte(call: Callable[[int, int], Any], fd: int, place: int) -> Any:
    try:
        return call(fd, place)[0]
    except OSError as error:
        return f"errno {error.errno}"


def _read(fd: int, place: int) -> bytes:
    os.lseek(fd, place, os.SEEK_SET)
    return os.read(fd, PAGE)


def _readv(fd: int, place: int) -> bytearray:
    os.lseek(fd, place, os.SEEK_SET)
    buffer = bytearray(PAGE)
    os.readv(fd, [buffer])
    return buffer


def _preadv(fd: int, place: int) -> bytearray:
    buffer = bytearray(PAGE)
    os.preadv(fd, [buffer], place)
    return buffer


def touch_pages(pages: range, path: str) -> list[int]:
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as mapping:
        return [mapping[page * PAGE] for page in pages]


def _row(call: Callable[[int, int], Any], offset: int) -> Row:
    right = offset // PAGE
    effect = [*range(right), *["errno 5"] * (PAGES - right)]
    fault = partial(ReadError, offset=offset)
    return Row(fault, partial(_read_pages, call), effect, CONTENT, {PAGES - right})


def _mapped(offset: int) -> Row:
    """Up to the page that holds the place: the kernel knows nothing smaller of a mapping."""
    way = partial(touch_pages, range(-(-offset // PAGE)))
    return Row(partial(ReadError, offset=offset), way, RIGHT, CONTENT)


CALLS = {"read": _read, "pread": lambda fd, at: os.pread(fd, PAGE, at), "readv": _readv}
OFFSETS = {
    **{
        f"{name} from {offset}": _row(call, offset)
        for name, call in {**CALLS, "preadv": _preadv}.items()
        for offset in (0, 1, PAGE - 1, PAGE, 2 * PAGE + 1)
    },
    **{
        f"mapped up to {offset}": _mapped(offset)
        for offset in (PAGE, PAGE + 1, 2 * PAGE, 3 * PAGE, 3 * PAGE + 1)
    },
}
