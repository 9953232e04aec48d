"""Every errno that a fault may have comes out of the system call that it is about."""

from __future__ import annotations

import errno
import functools

import pytest

from pytest_dataloader_faults.faults import OpenError, ReadError
from pytest_dataloader_faults.faults.kinds import OPEN_ERRNOS, READ_ERRNOS
from support.attempts import CONTENT, Case, attempt, attempt_each
from support.tries import WAYS

RETRIED = errno.EINTR
"""Python tries again by itself (PEP 475), so that it never comes out of a call."""


def _errno_or_data(way):
    """The same way of reading; an errno that it meets is its result."""

    def read(path):
        try:
            return way(path)
        except OSError as error:
            return error.errno

    return read


def _read_unbuffered(path):
    """What the thin layer above read(2) makes of it."""
    with open(path, "rb", buffering=0) as file:
        return file.read(len(CONTENT))


def _read_all(folder, kind, numbers, way):
    """What a worker meets in each file, by errno, and how often each fault fired."""
    cases = {}
    for number in sorted(numbers):
        times = 1 if number == RETRIED else None  # What is retried may not last.
        make_fault = functools.partial(kind, errno=number, times=times)
        cases[number] = Case(_errno_or_data(way), make_fault)
    results, _ = attempt_each(cases, folder)
    met = {number: each.gave for number, each in results.items()}
    return met, {number: each.facts.fired for number, each in results.items()}


def _expected(numbers):
    """Each errno, and the data where the call is made again."""
    return {number: CONTENT if number == RETRIED else number for number in numbers}


@pytest.mark.parametrize("way", ["read", "openat2", "O_CREAT"])
def test_every_errno_comes_out_of_open(tmp_path, way):
    numbers = OPEN_ERRNOS - {RETRIED} if way == "openat2" else OPEN_ERRNOS
    met, fired = _read_all(tmp_path, OpenError, numbers, WAYS[way])
    assert _expected(numbers) == met
    assert dict.fromkeys(numbers, 1) == fired


@pytest.mark.parametrize(
    ("way", "call"),
    [("read", "read"), ("pread", "pread64"), ("readv", "readv"), ("preadv", "preadv")],
)
def test_every_errno_comes_out_of_a_read(tmp_path, way, call):
    met, fired = _read_all(tmp_path, ReadError, READ_ERRNOS, WAYS[way])
    assert _expected(READ_ERRNOS) == met
    assert dict.fromkeys(READ_ERRNOS, 1) == fired


def test_a_raw_file_gives_none_where_the_call_would_block(tmp_path):
    """EAGAIN is no exception there, but the lack of a result. See io.RawIOBase.read."""
    met, fired = _read_all(tmp_path, ReadError, {errno.EAGAIN, errno.EIO}, _read_unbuffered)
    assert {errno.EAGAIN: None, errno.EIO: errno.EIO} == met
    assert {errno.EAGAIN: 1, errno.EIO: 1} == fired


def test_the_retried_call_is_made_again(path):
    faults = [kind("*.rec", RETRIED, times=3) for kind in (OpenError, ReadError)]
    (gave,), injection = attempt([path], WAYS["read"], *faults)
    assert CONTENT == gave
    assert [(4, 3), (4, 3)] == [(each.matched, each.fired) for each in injection.faults]
