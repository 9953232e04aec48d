"""Reads that give less than was asked for: the right bytes, and the offset moves with them."""

import fcntl
import functools
import itertools
import mmap
import os
from pathlib import Path

import pytest

from pytest_dataloader_faults.faults import ShortRead
from support.attempts import Case, attempt, attempt_each
from support.rows import rows
from support.tries import ENOUGH, WAYS

CONTENT = bytes(range(200)) * 10
MOST = 7


def _read_at_5(call, flags=os.O_RDONLY):
    """What a call gives from byte 5 on, and where the descriptor's offset is then."""

    def use(path):
        fd = os.open(path, flags)
        try:
            os.lseek(fd, 5, os.SEEK_SET)
            return call(fd), os.lseek(fd, 0, os.SEEK_CUR)
        finally:
            os.close(fd)

    return use


def _fill_buffers(call, *arguments):
    """Bytes out of a call that fills two buffers, of 3 bytes and of many."""

    def use(fd):
        buffers = [bytearray(3), bytearray(ENOUGH)]
        count = call(fd, buffers, *arguments)
        return b"".join(buffers)[:count]

    return use


def _readinto(fd):
    buffer = bytearray(ENOUGH)
    with open(fd, "rb", buffering=0, closefd=False) as file:
        count = file.readinto(buffer)
    return bytes(buffer[:count])


def _read(fd):
    return os.read(fd, ENOUGH)


AT_OFFSET = {"read": _read, "readinto": _readinto, "readv": _fill_buffers(os.readv)}
AT_A_PLACE = {
    "pread": lambda fd: os.pread(fd, ENOUGH, 11),
    "preadv": _fill_buffers(os.preadv, 11),
    "preadv2": _fill_buffers(os.preadv, 11, os.RWF_HIPRI),
}


def _read_few(fd):
    """Two reads that would not give more, the second since it is at the end; and one that would."""
    return os.read(fd, MOST), os.pread(fd, ENOUGH, len(CONTENT) - MOST), os.read(fd, MOST + 1)


def _read_pieces(path):
    """read1 gives what came, read goes on until there is enough."""
    with open(path, "rb") as file:
        return file.read1(100), file.read(100), file.tell(), file.read()


def _read_twice(fd):
    return os.read(fd, ENOUGH), os.read(fd, ENOUGH)


def _read_by_duplicate(fd):
    """dup(2): what one reads, the other has read."""
    duplicate = os.dup(fd)
    try:
        return os.read(duplicate, ENOUGH), os.read(fd, ENOUGH)
    finally:
        os.close(duplicate)


def _read_mapped(fd):
    with mmap.mmap(fd, 0, prot=mmap.PROT_READ) as mapping:
        return mapping[:], os.read(fd, ENOUGH)


def _read_locked(path):
    """As h5py; what the lock is on is the worker's alone, and so is its offset."""
    fd = os.open(path, os.O_RDONLY)
    fcntl.flock(fd, fcntl.LOCK_EX)
    at_a_place = os.pread(fd, ENOUGH, 0)
    at_its_offset = os.read(fd, ENOUGH)
    os.close(fd)
    reopened = os.open(path, os.O_RDONLY)
    fcntl.flock(reopened, fcntl.LOCK_EX | fcntl.LOCK_NB)  # It was given up by the close.
    return at_a_place, at_its_offset


def _case(way, limit=MOST, content=CONTENT, times=None):
    return Case(way, functools.partial(ShortRead, max_bytes=limit, times=times), content)


FLAGS = (os.O_RDONLY, os.O_RDWR, os.O_RDWR | os.O_APPEND)
QUARTER = (len(CONTENT) - 5) // 4
LONG = CONTENT * 10
TEXT = "ä€😀" * 50
NEXT = CONTENT[5 : 5 + MOST], CONTENT[5 + MOST : 5 + 2 * MOST]
MANY = 1 << 30
CASES = {
    # What comes of it, and how often the fault happens.
    **{
        f"{name}, flags {flags}": (_case(_read_at_5(call, flags)), (NEXT[0], 5 + MOST), {1})
        for (name, call), flags in itertools.product(AT_OFFSET.items(), FLAGS)
    },
    **{
        name: (_case(_read_at_5(call)), (CONTENT[11 : 11 + MOST], 5), {1})
        for name, call in AT_A_PLACE.items()
    },
    **{
        f"{name}, a quarter": (
            _case(_read_at_5(call), 0.25),
            (CONTENT[5 : 5 + QUARTER], 5 + QUARTER),
            {1},
        )
        for name, call in AT_OFFSET.items()
    },
    **{
        f"{limit} bytes": (
            _case(_read_at_5(_fill_buffers(os.readv)), limit, LONG),
            (LONG[5 : 5 + limit], 5 + limit),
            {1},
        )
        for limit in (1, 3, 4, 4095, 4096, 4097, 9000)
    },
    **{
        name: (_case(WAYS[name], 1000), CONTENT, range(1, MANY))
        for name in ("relative path", "thread", "fread", "cat")
    },
    **{
        name: (_case(WAYS[name], 1000), CONTENT[:1000], range(1, MANY))
        for name in ("O_CREAT", "dir_fd")
    },
    "by halves": (_case(WAYS["thread"], 0.5), CONTENT, {(len(CONTENT) - 1).bit_length()}),
    "few": (_case(_read_at_5(_read_few)), ((NEXT[0], CONTENT[-MOST:], NEXT[1]), 5 + 2 * MOST), {1}),
    "pieces": (
        _case(_read_pieces),
        (CONTENT[:7], CONTENT[7:107], 107, CONTENT[107:]),
        range(101, MANY),
    ),
    "one short read": (
        _case(_read_at_5(_read_twice), times=1),
        ((NEXT[0], CONTENT[5 + MOST :]), len(CONTENT)),
        {1},
    ),
    "duplicate": (_case(_read_at_5(_read_by_duplicate)), (NEXT, 5 + 2 * MOST), {2}),
    "mapping": (_case(_read_at_5(_read_mapped)), ((CONTENT, NEXT[0]), 5 + MOST), {1}),
    "text": (
        _case(lambda path: Path(path).read_text(encoding="utf-8"), 1, TEXT.encode()),
        TEXT,
        range(401, MANY),
    ),
    "locked": (_case(_read_locked), (CONTENT[:MOST], CONTENT), {1}),
}


@pytest.fixture(name="results", scope="module")
def _results(tmp_path_factory):
    cases = {name: case for name, (case, *_) in CASES.items()}
    return attempt_each(cases, tmp_path_factory.mktemp("short"))[0]


@rows("name", CASES)
def test_a_read_gives_the_right_bytes_and_moves_the_offset_by_them(results, name):
    """Whatever the file was opened for; a read at a place moves nothing.

    A fraction is of the bytes to the end of the file, not of the buffer. A length is within a
    buffer, at its end, or across pages. Python's and C's own layers read on until there is no more,
    and put together what two reads divide; a bare read(2) does not. A mapping cannot be short.
    """
    _, expected, counts = CASES[name]
    assert results[name].gave == expected
    assert results[name].facts.fired in counts


def test_what_would_not_give_more_is_not_counted(results):
    assert 1 == results["few"].facts.matched
    assert ["read"] == [each.call for each in results["mapping"].facts.firings]


def test_what_the_worker_inherited_is_short_too(tmp_path):
    path = tmp_path / "data.bin"
    path.write_bytes(CONTENT)
    with open(path, "rb", buffering=0) as file:
        (gave,), injection = attempt([file.fileno()], _read, ShortRead("*.bin", MOST))
        assert file.tell() == MOST
    assert (CONTENT[:MOST], 1) == (gave, injection.fired)
