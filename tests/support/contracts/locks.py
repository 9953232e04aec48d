"""Faults of locks, in each way in which programs lock."""

import contextlib
import fcntl
import os
import sqlite3
import struct
from collections.abc import Callable
from errno import EAGAIN, ENOLCK
from functools import partial
from typing import Any

from pytest_dataloader_faults.faults import LockError
from support.contracts.row import Row, errno, text

FLOCK = struct.Struct("hhqqi4x")


def _with_file(lock: Callable[[int], Any]) -> Callable[[str], Any]:
    def use(path: str) -> Any:
        with open(path, "ab") as file:
            return lock(file.fileno())

    return use


def _by_command(command: int) -> Callable[[str], Any]:
    def lock(fd: int) -> None:
        fcntl.fcntl(fd, command, FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0))

    return _with_file(lock)


def _of_read_only_file(path: str) -> None:
    with open(path, "rb") as file:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)


def _through_sqlite(path: str) -> None:
    with contextlib.closing(sqlite3.connect(f"{path}.db", timeout=0.01)) as connection:
        connection.execute("create table t (x)")


def _through_h5py(path: str) -> None:
    import h5py

    with h5py.File(f"{path}.h5", "w"):
        pass


def _through_filelock(path: str) -> None:
    import filelock

    with filelock.FileLock(f"{path}.lock", timeout=0.1):
        pass


def _through_lmdb(path: str) -> None:
    import lmdb

    lmdb.open(f"{path}.mdb", subdir=False).close()


AT_ONCE = {
    "flock": _with_file(lambda fd: fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)),
    "shared": _of_read_only_file,
    "lockf": _with_file(lambda fd: fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)),
    "F_SETLK": _by_command(fcntl.F_SETLK),
    "F_OFD_SETLK": _by_command(fcntl.F_OFD_SETLK),
    "sqlite": _through_sqlite,
    "h5py": _through_h5py,
    "filelock": _through_filelock,
}
"""Ways to lock a file that do not wait, or not for long."""
WAITING = {
    "flock, waiting": _with_file(lambda fd: fcntl.flock(fd, fcntl.LOCK_EX)),
    "lockf, waiting": _with_file(lambda fd: fcntl.lockf(fd, fcntl.LOCK_EX)),
    "F_SETLKW": _by_command(fcntl.F_SETLKW),
    "F_OFD_SETLKW": _by_command(fcntl.F_OFD_SETLKW),
}
HELD_BY_OTHERS = {
    "sqlite": text("database is locked"),
    "h5py": text("unable to lock file"),
    "filelock": text("could not be acquired"),
}
"""What says, in its own words, that the file is locked."""
WITHOUT_LOCKS = {"sqlite": text("Error"), "filelock": text("Error")}
LOCKED = {
    name: Row(LockError, way, HELD_BY_OTHERS.get(name, errno(EAGAIN)))
    for name, way in AT_ONCE.items()
}
NO_LOCKS = {
    name: Row(partial(LockError, errno=ENOLCK), way, WITHOUT_LOCKS.get(name, errno(ENOLCK)))
    for name, way in {**AT_ONCE, **WAITING, "lmdb": _through_lmdb}.items()
}
