"""Faults of writing, in each way in which datasets write."""

import importlib.util
import os
import sqlite3
import subprocess
from collections.abc import Callable
from errno import ENOSPC
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from pytest_dataloader_faults.faults import ShortWrite, WriteError
from support.contracts.row import RIGHT, Row, errno, text

CONTENT = bytes(range(256)) * 64


def by_descriptor(write: Callable[[int], Any], flags: int = 0) -> Callable[[str], Any]:
    """What *write* returns of the descriptor of a file that is created."""

    def use(path: str) -> Any:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | flags, 0o600)
        try:
            return write(fd)
        finally:
            os.close(fd)

    return use


def _from_file(copy: Callable[[int, int], Any]) -> Callable[[str], Any]:
    def use(path: str) -> Any:
        source = f"{path}.source"
        Path(source).write_bytes(CONTENT)
        with open(source, "rb") as source_file, open(path, "wb") as copy_file:
            return copy(source_file.fileno(), copy_file.fileno())

    return use


def _spliced(source_fd: int, copy_fd: int) -> int:
    read, write = os.pipe()
    try:
        return os.splice(read, copy_fd, os.splice(source_fd, write, len(CONTENT)))
    finally:
        os.close(read)
        os.close(write)


def _through_h5py(path: str) -> None:
    import h5py

    with h5py.File(path, "w") as file:
        file["x"] = np.frombuffer(CONTENT, np.uint8)


def _through_sqlite(path: str) -> None:
    with sqlite3.connect(path) as connection:
        connection.execute("create table t (x)")
        connection.execute("insert into t values (?)", (CONTENT,))
    connection.close()


def _in_a_program(path: str) -> None:
    process = subprocess.run(
        ["/usr/bin/tee", path], input=CONTENT, capture_output=True, check=False
    )
    if process.returncode:
        raise ChildProcessError(process.stderr.decode())


def _renamed(path: str) -> None:
    with open(f"{path}.part", "wb", buffering=0) as file:
        os.replace(f"{path}.part", path)
        file.write(CONTENT)


WRITING_ON: dict[str, Callable[[str], Any]] = {
    "write_bytes": lambda path: Path(path).write_bytes(CONTENT),
    "tee": _in_a_program,
    "tofile": lambda path: np.zeros(9999).tofile(path),
    "torch.save": lambda path: torch.save(torch.zeros(9999), path),
    "sqlite": _through_sqlite,
    **({"h5py": _through_h5py} if importlib.util.find_spec("h5py") else {}),
}
"""Ways that write the rest when a write was short."""
BY_CALLS: dict[str, Callable[[str], Any]] = {
    "write": by_descriptor(lambda fd: os.write(fd, CONTENT)),
    "pwrite": by_descriptor(lambda fd: os.pwrite(fd, CONTENT, 3)),
    "writev": by_descriptor(lambda fd: os.writev(fd, [CONTENT[:9], CONTENT[9:]])),
    "pwritev": by_descriptor(lambda fd: os.pwritev(fd, [CONTENT], 3)),
    "pwritev2": by_descriptor(lambda fd: os.pwritev(fd, [CONTENT], 3, os.RWF_DSYNC)),
    "O_APPEND": by_descriptor(lambda fd: os.write(fd, CONTENT), os.O_APPEND),
    "fallocate": by_descriptor(lambda fd: os.posix_fallocate(fd, 0, 999)),
    "fsync": by_descriptor(lambda fd: os.fsync(fd)),  # noqa: PLW0108  # by its name in os
    "fdatasync": by_descriptor(lambda fd: os.fdatasync(fd)),  # noqa: PLW0108
    "sendfile": _from_file(lambda source, copy: os.sendfile(copy, source, 0, len(CONTENT))),
    "copy_file_range": _from_file(lambda source, copy: os.copy_file_range(source, copy, 999)),
    "splice": _from_file(_spliced),
    "rename": _renamed,
}
WRITING = {**WRITING_ON, **BY_CALLS}
OF_LIBRARIES = {
    "torch.save": text("RuntimeError"),
    "sqlite": text("database or disk is full"),
    "tofile": text("OSError: 9999 requested and 0 written"),
}
"""What says, in its own words, that the disk is full."""


def _write_twice(fd: int) -> Any:
    return os.write(fd, CONTENT), os.write(fd, b"next"), os.lseek(fd, 0, os.SEEK_CUR)


def _append(path: str) -> Any:
    Path(path).write_bytes(b"before")
    return WRITING["O_APPEND"](path)


def _in_the_second_buffer(fd: int) -> int:
    return os.writev(fd, [b"it", b"is the second", CONTENT])


def _part(way: Callable[[str], Any], most: float, effect: Any, left: bytes) -> Row:
    return Row(partial(ShortWrite, max_bytes=most), way, effect, None, left=left)


HALF = len(CONTENT) // 2
FULL_DISKS = {
    name: Row(WriteError, way, OF_LIBRARIES.get(name, errno(ENOSPC)), None, left=b"")
    for name, way in WRITING.items()
}
SHORT_WRITES = {
    **{
        name: Row(partial(ShortWrite, max_bytes=50, times=9), way, RIGHT, None, {9})
        for name, way in WRITING_ON.items()
    },
    # A part is written at its place.
    **{each: _part(WRITING[each], 20, 20, CONTENT[:20]) for each in ("write", "writev")},
    **{
        each: _part(WRITING[each], 20, 20, bytes(3) + CONTENT[:20])
        for each in ("pwrite", "pwritev", "pwritev2")
    },
    "half": _part(WRITING["write"], 0.5, HALF, CONTENT[:HALF]),
    "twice": _part(by_descriptor(_write_twice), 20, (20, 4, 24), CONTENT[:20] + b"next"),
    "appended": _part(_append, 20, 20, b"before" + CONTENT[:20]),
    "vector": _part(by_descriptor(_in_the_second_buffer), 8, 8, b"itis the"),
}
