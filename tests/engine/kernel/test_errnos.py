"""Every errno that a fault may have comes out of the system call that it is about."""

from __future__ import annotations

import errno
import os

import pytest

from pytest_dataloader_faults import inject
from pytest_dataloader_faults.faults import OpenError, ReadError
from pytest_dataloader_faults.faults.kinds import OPEN_ERRNOS, READ_ERRNOS
from support.epochs import alone, epoch
from support.tries import WAYS, Tries

CONTENT = b"as it should be"
RETRIED = errno.EINTR
"""Python tries again by itself (PEP 475), so that it never comes out of a call."""


def _outcome(way):
    """The same way of reading; an errno that it meets is its result."""

    def read(path):
        try:
            return way(path)
        except OSError as error:
            return error.errno

    return read


def _raw(path):
    """What the thin layer above read(2) makes of it."""
    with open(path, "rb", buffering=0) as file:
        return file.read(len(CONTENT))


def _files(folder, numbers):
    """One file per errno, named after it."""
    paths = {number: folder / f"{errno.errorcode[number]}.rec" for number in sorted(numbers)}
    for path in paths.values():
        path.write_bytes(CONTENT)
    return paths


def _schedule(kind, paths):
    """A fault for each file; what is retried may not last."""
    return [
        kind(str(path), number, times=1 if number == RETRIED else None)
        for number, path in paths.items()
    ]


def _met(folder, kind, numbers, way):
    """What a worker meets in each file, by errno, and how often each fault fired."""
    paths = _files(folder, numbers)
    with inject(*_schedule(kind, paths)) as injection:
        read = epoch(alone(Tries([*map(str, paths.values())], _outcome(way))))
    assert read.error is None
    met = {number: each.gave for number, each in zip(paths, read.batches, strict=True)}
    return met, {each.fault.errno: each.fired for each in injection.faults}


def _itself(numbers):
    """Each errno, and the data where the call is made again."""
    return {number: CONTENT if number == RETRIED else number for number in numbers}


@pytest.mark.parametrize("way", ["read", "openat2", "O_CREAT"])
def test_every_errno_comes_out_of_open(tmp_path, way):
    """Of openat(2), of openat2(2), and where the file might be created."""
    numbers = OPEN_ERRNOS - {RETRIED} if way == "openat2" else OPEN_ERRNOS
    met, fired = _met(tmp_path, OpenError, numbers, WAYS[way])
    assert _itself(numbers) == met
    assert dict.fromkeys(numbers, 1) == fired


@pytest.mark.parametrize(
    ("way", "call"),
    [("read", "read"), ("pread", "pread64"), ("readv", "readv"), ("preadv", "preadv")],
)
def test_every_errno_comes_out_of_a_read(tmp_path, way, call):
    """Of each call that reads."""
    met, fired = _met(tmp_path, ReadError, READ_ERRNOS, WAYS[way])
    assert _itself(READ_ERRNOS) == met
    assert dict.fromkeys(READ_ERRNOS, 1) == fired


def test_a_raw_file_gives_none_where_the_call_would_block(tmp_path):
    """EAGAIN is no exception there, but the lack of a result. See io.RawIOBase.read."""
    met, fired = _met(tmp_path, ReadError, {errno.EAGAIN, errno.EIO}, _raw)
    assert {errno.EAGAIN: None, errno.EIO: errno.EIO} == met
    assert {errno.EAGAIN: 1, errno.EIO: 1} == fired


def test_the_retried_call_is_made_again(tmp_path):
    """Three interruptions of open(2) and of read(2) in a row: Python hides them all."""
    path = tmp_path / "interrupted.rec"
    path.write_bytes(CONTENT)
    faults = [kind("*.rec", RETRIED, times=3) for kind in (OpenError, ReadError)]
    with inject(*faults) as injection:
        (read,) = epoch(alone(Tries([str(path)], WAYS["read"]))).batches
    assert CONTENT == read.gave
    assert [(4, 3), (4, 3)] == [(each.reached, each.fired) for each in injection.faults]


def test_os_strerror_is_of_the_errno(tmp_path):
    """The message that users see is the kernel's word for it."""
    path = tmp_path / "stale.rec"
    path.write_bytes(CONTENT)
    with inject(ReadError("*.rec", errno.ESTALE)):
        (read,) = epoch(alone(Tries([str(path)], WAYS["read"]))).batches
    assert read.gave == f"OSError: [Errno {errno.ESTALE}] {os.strerror(errno.ESTALE)}"
