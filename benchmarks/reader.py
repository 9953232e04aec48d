"""A loader that times reads, and meets one fault: ``python reader.py TOOL FOLDER``.

Its worker opens, reads and closes one file many times, and then another one three times. The second
of these reads fails with EIO, by what TOOL arms. It prints the seconds of one call of the former,
and the three errnos of the latter.
"""

from __future__ import annotations

import ctypes
import errno
import json
import os
import sys
import timeit
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

from torch.utils.data import DataLoader, Dataset

CALLS, REPEATS, SIZE, ONE_TIME = 200, 5, 4096, 1
GOOD, BAD = "good.bin", "bad.bin"


class Reads(Dataset[Any]):
    """One sample: the seconds of a call, at the least, and the errnos."""

    def __init__(self, folder: str, before_second: Callable[[], object] | None) -> None:
        self.good, self.bad = os.path.join(folder, GOOD), os.path.join(folder, BAD)
        self.before_second = before_second

    def __len__(self) -> int:
        return 1

    def __getitem__(self, index: int) -> tuple[float, list[int]]:
        seconds = timeit.repeat(lambda: _read(self.good), number=CALLS, repeat=REPEATS)
        return min(seconds) / CALLS, [self._errno(number) for number in range(3)]

    def _errno(self, number: int) -> int:
        if number == 1 and self.before_second:
            self.before_second()
        try:
            _read(self.bad)
        except OSError as error:
            return error.errno or 0
        return 0


def _read(path: str) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.read(descriptor, SIZE)
    finally:
        os.close(descriptor)


@contextmanager
def _injected() -> Iterator[None]:
    from pytest_dataloader_faults import inject
    from pytest_dataloader_faults.faults import ReadError

    with inject(ReadError(f"*/{BAD}", nth=2, times=1)):
        yield


@contextmanager
def _faked(folder: str) -> Iterator[None]:
    """Pyfakefs has files and no faults: ``os.read`` of the fake files is replaced."""
    from pyfakefs.fake_filesystem_unittest import Patcher

    reads = 0

    def read(descriptor: int, length: int) -> bytes:
        nonlocal reads
        is_bad = str(patcher.fs.get_open_file(descriptor).name).endswith(BAD)
        reads += is_bad
        if is_bad and reads == 2:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return original(descriptor, length)

    with Patcher(allow_root_user=True) as patcher:
        for name in (GOOD, BAD):
            patcher.fs.create_file(os.path.join(folder, name), contents=bytes(SIZE))
        original = os.read
        with mock.patch("os.read", read):
            yield


def _enable_in_libfiu(point: bytes, flags: int) -> None:
    failed = ctypes.CDLL("libfiu.so.0").fiu_enable(point, 1, ctypes.c_void_p(errno.EIO), flags)
    assert failed == 0, point


def _first(*arguments: Any) -> Any:
    workers = 0 if sys.argv[1] == "pyfakefs" else 1  # Plain pyfakefs breaks worker processes.
    return next(iter(DataLoader(Reads(*arguments), num_workers=workers, batch_size=None)))


def main(tool: str, folder: str) -> None:
    """Print what the worker found."""
    before_second = None
    if tool == "libfiu":  # It knows no paths. Another point is enabled, so that reads look it up.
        _enable_in_libfiu(b"posix/io/rw/pread", 0)
        before_second = lambda: _enable_in_libfiu(b"posix/io/rw/read", ONE_TIME)  # noqa: E731
    if tool == "plugin":
        with _injected():
            errnos = _first(folder, None)
    elif tool == "pyfakefs":
        with _faked(folder):
            errnos = _first(folder, None)
    else:
        errnos = _first(folder, before_second)
    print(json.dumps(errnos))


if __name__ == "__main__":
    main(sys.argv[1], str(Path(sys.argv[2])))
