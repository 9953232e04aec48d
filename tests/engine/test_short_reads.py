"""Reads that give less than was asked for: the right bytes, and the offset moves with them."""

from __future__ import annotations

import fcntl
import itertools
import mmap
import os
from pathlib import Path

import pytest

from pytest_dataloader_faults import inject
from pytest_dataloader_faults.faults import ShortRead
from support.epochs import alone, epoch
from support.tries import ENOUGH, WAYS, Tries

CONTENT = bytes(range(200)) * 10
MOST = 7


@pytest.fixture(name="path")
def _path(tmp_path):
    """A file of 2000 bytes."""
    path = tmp_path / "data.bin"
    path.write_bytes(CONTENT)
    return str(path)


def _gave(source, way, fault):
    """What that way gives in a worker under the fault, and how often the fault happened."""
    with inject(fault) as injection:
        (read,) = epoch(alone(Tries([source], way))).batches
    return read.gave, injection.fired


def _and_offset(call, flags=os.O_RDONLY):
    """What a call gives from byte 5 on, and where the descriptor's offset is then."""

    def use(path):
        fd = os.open(path, flags)
        try:
            os.lseek(fd, 5, os.SEEK_SET)
            return call(fd), os.lseek(fd, 0, os.SEEK_CUR)
        finally:
            os.close(fd)

    return use


def _into(call, *arguments):
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


AT_OFFSET = {
    "read": _read,
    "readinto": _readinto,
    "readv": _into(os.readv),
}
AT_A_PLACE = {
    "pread": lambda fd: os.pread(fd, ENOUGH, 11),
    "preadv": _into(os.preadv, 11),
    "preadv2": _into(os.preadv, 11, os.RWF_HIPRI),
}


def _each(sources, ways, make_fault):
    """What each way gives of a file of its own, in one worker, and how often its fault happened."""
    names = list(ways)
    with inject(*map(make_fault, names)) as injection:
        read = epoch(alone(Tries(names, lambda name: ways[name](sources[name])))).batches
    fired = [each.fired for each in injection.faults]
    return dict(zip(names, zip((each.gave for each in read), fired, strict=True), strict=True))


FLAGS = (os.O_RDONLY, os.O_RDWR, os.O_RDWR | os.O_APPEND)
QUARTER = (len(CONTENT) - 5) // 4
LENGTHS = (1, 3, 4, 4095, 4096, 4097, 9000)
LONG = CONTENT * 10
CUT = {
    # The way, what the file holds, what a read gives at most, what it gives, and the offset then.
    **{
        f"{way}, flags {flags}": (
            _and_offset(call, flags),
            CONTENT,
            MOST,
            (CONTENT[5 : 5 + MOST], 5 + MOST),
        )
        for (way, call), flags in itertools.product(AT_OFFSET.items(), FLAGS)
    },
    **{
        way: (_and_offset(call), CONTENT, MOST, (CONTENT[11 : 11 + MOST], 5))
        for way, call in AT_A_PLACE.items()
    },
    **{
        f"{way}, a quarter": (
            _and_offset(call),
            CONTENT,
            0.25,
            (CONTENT[5 : 5 + QUARTER], 5 + QUARTER),
        )
        for way, call in AT_OFFSET.items()
    },
    **{
        f"{most} bytes": (_and_offset(_into(os.readv)), LONG, most, (LONG[5 : 5 + most], 5 + most))
        for most in LENGTHS
    },
}


def test_a_read_gives_the_right_bytes_and_moves_the_offset_by_them(tmp_path):
    """Whatever the file was opened for; a read at a place moves nothing.

    A fraction is of the bytes to the end of the file, not of the buffer. A length is within a
    buffer, at its end, or across pages.
    """
    numbers = {name: number for number, name in enumerate(CUT)}
    paths = {name: str(tmp_path / f"{number}.bin") for name, number in numbers.items()}
    for name, (_, content, *_) in CUT.items():
        Path(paths[name]).write_bytes(content)

    found = _each(
        paths,
        {name: way for name, (way, *_) in CUT.items()},
        lambda name: ShortRead(f"*/{numbers[name]}.bin", CUT[name][2]),
    )

    assert found == {name: (expected, 1) for name, (*_, expected) in CUT.items()}


def test_by_halves_a_reader_gets_everything_in_few_reads(path):
    """Python's own layer reads on until there is no more."""
    gave, fired = _gave(path, WAYS["relative path"], ShortRead("*.bin", 0.5))
    assert gave == CONTENT
    assert fired == (len(CONTENT) - 1).bit_length()


def test_what_would_not_give_more_is_not_counted(path):
    """Neither short reads nor the one that finds the end."""

    def few(fd):
        return os.read(fd, MOST), os.pread(fd, ENOUGH, len(CONTENT) - MOST), os.read(fd, MOST + 1)

    with inject(ShortRead("*.bin", MOST)) as injection:
        (read,) = epoch(alone(Tries([path], _and_offset(few)))).batches
    expected = CONTENT[5 : 5 + MOST], CONTENT[-MOST:], CONTENT[5 + MOST : 5 + 2 * MOST]
    assert (expected, 5 + 2 * MOST) == read.gave
    assert (1, 1) == (injection.reached, injection.fired)


ALL_OF_IT = ("relative path", "thread", "fread", "cat")


def test_whoever_reads_on_gets_everything(tmp_path):
    """C's and Python's own layers do; a bare read(2) does not."""
    ways = {name: WAYS[name] for name in (*ALL_OF_IT, "O_CREAT", "dir_fd")}
    paths = {name: str(tmp_path / f"{name}.bin") for name in ways}
    for path in paths.values():
        Path(path).write_bytes(CONTENT)

    found = _each(paths, ways, lambda name: ShortRead(f"*/{name}.bin", 1000))

    gave = {name: CONTENT if name in ALL_OF_IT else CONTENT[:1000] for name in ways}
    assert gave == {name: given for name, (given, _) in found.items()}
    assert all(fired for _, fired in found.values())


def test_a_buffered_file_that_is_read_by_pieces(path):
    """Its read1 gives what came, its read goes on until there is enough."""

    def pieces(path):
        with open(path, "rb") as file:
            return file.read1(100), file.read(100), file.tell(), file.read()

    gave, fired = _gave(path, pieces, ShortRead("*.bin", MOST))
    assert (CONTENT[:7], CONTENT[7:107], 107, CONTENT[107:]) == gave
    assert fired > 100


def test_one_short_read_and_then_whole_ones(path):
    """A transient fault: the second read gives the rest."""

    def twice(fd):
        return os.read(fd, ENOUGH), os.read(fd, ENOUGH)

    gave, fired = _gave(path, _and_offset(twice), ShortRead("*.bin", MOST, times=1))
    assert ((CONTENT[5 : 5 + MOST], CONTENT[5 + MOST :]), len(CONTENT)) == gave
    assert fired == 1


def test_a_duplicate_shares_the_offset(path):
    """dup(2): what one reads, the other has read."""

    def both(fd):
        other = os.dup(fd)
        try:
            return os.read(other, ENOUGH), os.read(fd, ENOUGH)
        finally:
            os.close(other)

    gave, fired = _gave(path, _and_offset(both), ShortRead("*.bin", MOST))
    expected = CONTENT[5 : 5 + MOST], CONTENT[5 + MOST : 5 + 2 * MOST]
    assert (expected, 5 + 2 * MOST) == gave
    assert fired == 2


def test_what_the_worker_inherited_is_short_too(path):
    """And its offset, which it shares with this process, moves by as much."""
    with open(path, "rb", buffering=0) as file:
        gave, fired = _gave(file.fileno(), _read, ShortRead("*.bin", MOST))
        assert file.tell() == MOST
    assert (CONTENT[:MOST], 1) == (gave, fired)


def test_a_mapping_cannot_be_short(path):
    """It is whole, and no occurrence of the fault; the read beside it is one."""

    def mapped(fd):
        with mmap.mmap(fd, 0, prot=mmap.PROT_READ) as mapping:
            return mapping[:], os.read(fd, ENOUGH)

    with inject(ShortRead("*.bin", MOST)) as injection:
        (read,) = epoch(alone(Tries([path], _and_offset(mapped)))).batches
    assert ((CONTENT, CONTENT[5 : 5 + MOST]), 5 + MOST) == read.gave
    assert [("read", 1)] == [(each.call, each.fetch) for each in injection.faults[0].firings]


def test_text_is_decoded_right(tmp_path):
    """A character that two reads divide is put together again."""
    path = tmp_path / "text.bin"
    path.write_text("ä€😀" * 50, encoding="utf-8")

    def text(path):
        with open(path, encoding="utf-8") as file:
            return file.read()

    gave, fired = _gave(str(path), text, ShortRead("*.bin", 1))
    assert "ä€😀" * 50 == gave
    assert fired > 400


def test_a_locked_file_is_short_where_the_read_says_its_place(path):
    """As h5py reads; what the lock is on is the worker's alone, and so is its offset."""

    def locked(fd):
        fcntl.flock(fd, fcntl.LOCK_EX)
        at_a_place = os.pread(fd, ENOUGH, 0)
        at_its_offset = os.read(fd, ENOUGH)
        os.close(fd)
        other = os.open(path, os.O_RDONLY)
        fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)  # It was given up by the close.
        return at_a_place, at_its_offset

    def read(source):
        return locked(os.open(source, os.O_RDONLY))

    gave, fired = _gave(path, read, ShortRead("*.bin", MOST))
    assert ((CONTENT[:MOST], CONTENT), 1) == (gave, fired)
