"""Readers that are Python down to the file: for each, the content of a good file, and a function.

Between them they use every kind of file object, and the functions of ``os`` that read.
"""

from __future__ import annotations

import bz2
import csv
import gzip
import json
import linecache
import lzma
import os
import pickle
import shutil
import tempfile
import xml.etree.ElementTree as ET  # the file is our own
from collections.abc import Callable
from pathlib import Path
from typing import Any

from support import library_readers, readers

NOISE = bytes(range(256)) * 1200
LINES = b"".join(b"%d,%d\n" % (number, number**2) for number in range(9000))
NUMBERS = list(range(20000))
PURE_LIBRARIES = ("python_zipfile", "python_tarfile", "pillow_jpeg", "pillow_png")


def opened(*arguments: Any, use: Callable[[Any], Any], **options: Any) -> Callable[[Path], Any]:
    """What *use* gives of the file object."""

    def read(path: Path) -> Any:
        with open(path, *arguments, **options) as file:
            return use(file)

    return read


def descriptor(use: Callable[[int], Any]) -> Callable[[Path], Any]:
    """What *use* gives of the descriptor."""

    def read(path: Path) -> Any:
        fd = os.open(path, os.O_RDONLY)
        try:
            return use(fd)
        finally:
            os.close(fd)

    return read


def into(file: Any) -> list[bytes]:
    """Three reads into one buffer."""
    buffer = bytearray(1000)
    return [bytes(buffer[: file.readinto(buffer)]) for _ in range(3)]


def there_and_back(file: Any) -> tuple[bytes, int, bytes]:
    """The end, and then the beginning."""
    file.seek(-100, os.SEEK_END)
    end, place = file.read(), file.tell()
    file.seek(0)
    return end, place, file.read(10)


def scattered(fd: int, *offset: int) -> tuple[bytes, bytes]:
    """One read into two buffers."""
    buffers = bytearray(700), bytearray(900)
    (os.preadv if offset else os.readv)(fd, list(buffers), *offset)
    return bytes(buffers[0]), bytes(buffers[1])


def sent(fd: int) -> bytes:
    """Sent through a pipe by the kernel."""
    read, write = os.pipe()
    try:
        return os.read(read, os.sendfile(write, fd, 0, 1000))
    finally:
        os.close(read)
        os.close(write)


def duplicated(fd: int) -> bytes:
    """Read by another number."""
    with os.fdopen(os.dup(fd), "rb") as file:
        return file.read()


def copied(path: Path) -> bytes:
    """Copied by the library first."""
    return Path(shutil.copyfile(path, f"{path}.copy")).read_bytes()


def from_library(name: str) -> tuple[bytes, Callable[[Path], Any]]:
    """One of the documented readers."""
    reader = library_readers.READERS[name]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, reader.file)
        reader.write(str(path))
        return path.read_bytes(), lambda found: reader.read(str(found))


READERS: dict[str, tuple[bytes, Callable[[Path], Any]]] = {
    "read_bytes": (NOISE, Path.read_bytes),
    "read_bytes of nothing": (b"", Path.read_bytes),
    "read_text": (LINES, Path.read_text),
    "read": (NOISE, opened("rb", use=lambda file: file.read())),
    "read(n)": (NOISE, opened("rb", use=lambda file: [*iter(lambda: file.read(1000), b"")])),
    "read(many)": (NOISE, opened("rb", use=lambda file: file.read(200_000))),
    "read1": (NOISE, opened("rb", use=lambda file: file.read1())),
    "readinto": (NOISE, opened("rb", use=into)),
    "seek": (NOISE, opened("rb", use=there_and_back)),
    "small buffer": (NOISE, opened("rb", 100, use=lambda file: file.read(5000))),
    "r+b": (NOISE, opened("r+b", use=lambda file: file.read(5000))),
    "unbuffered read": (NOISE, opened("rb", 0, use=lambda file: file.read())),
    "unbuffered read(n)": (NOISE, opened("rb", 0, use=lambda file: file.read(1000))),
    "unbuffered readinto": (NOISE, opened("rb", 0, use=into)),
    "unbuffered readline": (LINES, opened("rb", 0, use=lambda file: file.readline())),
    "lines": (LINES, opened(encoding="ascii", use=list)),
    "csv": (LINES, opened(newline="", use=lambda file: list(csv.reader(file)))),
    "linecache": (LINES, lambda path: linecache.updatecache(str(path))),
    "os.read": (NOISE, descriptor(lambda fd: [os.read(fd, 1000) for _ in range(3)])),
    "os.pread": (NOISE, descriptor(lambda fd: [os.pread(fd, 1000, at) for at in (0, 9, 99)])),
    "os.readv": (NOISE, descriptor(scattered)),
    "os.preadv": (NOISE, descriptor(lambda fd: scattered(fd, 50))),
    "os.sendfile": (NOISE, descriptor(sent)),
    "os.dup": (NOISE, descriptor(duplicated)),
    "os.fdopen": (NOISE, descriptor(lambda fd: os.fdopen(fd, "rb", closefd=False).read())),
    "pickle.load": (pickle.dumps(NUMBERS), opened("rb", use=pickle.load)),
    "json.load": (json.dumps(NUMBERS).encode(), opened("rb", use=json.load)),
    "gzip.open": (gzip.compress(NOISE, 1), lambda path: gzip.open(path).read()),
    "bz2.open": (bz2.compress(NOISE), lambda path: bz2.open(path).read()),
    "lzma.open": (lzma.compress(NOISE), lambda path: lzma.open(path).read()),
    "shutil": (NOISE, copied),
    "XML": (b"<a><b>text</b></a>", lambda path: ET.parse(path).getroot().tag),  # noqa: S314  # our own
    "npz": (readers.READERS["npz"][0](), readers.READERS["npz"][1]),
    **{name: from_library(name) for name in PURE_LIBRARIES},
}
