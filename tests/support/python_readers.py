"""Readers of the content of a file, which need only NumPy and Pillow.

PYTHON has readers that are Python down to the file: between them they use every kind of file
object, and the functions of ``os`` that read. DECODED has formats that notice a missing end.
"""

from __future__ import annotations

import bz2
import csv
import gzip
import json
import linecache
import lzma
import mmap
import os
import pickle
import shutil
import struct
import tempfile
import xml.etree.ElementTree as ET  # the file is our own
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from support.readers import READERS
from support.tries import WAYS
from support.tries import with_descriptor as descriptor

NOISE = bytes(range(256)) * 1200
LINES = b"".join(b"%d,%d\n" % (number, number**2) for number in range(9000))
NUMBERS = list(range(20000))


def opened(*arguments: Any, use: Callable[[Any], Any], **options: Any) -> Callable[[Path], Any]:
    def read(path: Path) -> Any:
        with open(path, *arguments, **options) as file:
            return use(file)

    return read


def _into(file: Any) -> list[bytes]:
    buffer = bytearray(1000)
    return [bytes(buffer[: file.readinto(buffer)]) for _ in range(3)]


def _there_and_back(file: Any) -> tuple[bytes, int, bytes]:
    file.seek(-100, os.SEEK_END)
    end, place = file.read(), file.tell()
    file.seek(0)
    return end, place, file.read(10)


def _duplicated(fd: int) -> bytes:
    with os.fdopen(os.dup(fd), "rb") as file:
        return file.read()


def _copied(path: Path) -> bytes:
    return Path(shutil.copyfile(path, f"{path}.copy")).read_bytes()


def _of_library(name: str) -> tuple[bytes, Callable[[Path], Any]]:
    reader = READERS[name]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, reader.file)
        reader.write(str(path))
        return path.read_bytes(), lambda path_read: reader.read(str(path_read))


ARRAY = np.arange(4096, dtype=np.int32).reshape(64, 64)


def _read_mapping(path: Path) -> Any:
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as data:
        return struct.unpack_from("<4096i", data)


def _read_npz(path: Path) -> Any:
    with open(path, "rb") as file:  # Of a path, NumPy leaves the file open when it raises.
        return np.load(file)["x"]


def _numbers_of(decompress: Callable[[bytes], bytes]) -> Callable[[Path], Any]:
    return lambda path: struct.unpack("<4096i", decompress(path.read_bytes()))


_XML = b"<a><b>text</b></a>"
_BYTES = ARRAY.tobytes()
DECODED: dict[str, tuple[bytes, Callable[[Path], Any]]] = {
    "np.fromfile": (_BYTES, lambda path: np.fromfile(path, np.int32).reshape(64, 64)),
    "struct": (_BYTES, _numbers_of(bytes)),
    "mmap": (_BYTES, _read_mapping),
    **{
        module.__name__: (module.compress(_BYTES), _numbers_of(module.decompress))
        for module in (gzip, zlib, bz2, lzma)
    },
    "npz": (_of_library("numpy_load_npz")[0], _read_npz),
    "XML": (_XML, ET.parse),
    **{
        name: _of_library(name)
        for name in (
            "pillow_bmp pillow_jpeg pillow_png numpy_load numpy_load_mapped hdf5"
            " python_pickle python_json python_zipfile python_tarfile torch_load safetensors_file"
        ).split()
    },
}
"""The content of a good file, and a reader that raises for every file that is too short."""


def truncated(name: str, path: Path, keep: str) -> Callable[[Path], Any]:
    """Write a file of that format which lacks its second half, or all of it; its reader."""
    content, read = DECODED[name]
    path.write_bytes(content)
    read(path)
    os.truncate(path, path.stat().st_size // 2 if keep == "half" else 0)
    return read


PYTHON: dict[str, tuple[bytes, Callable[[Path], Any]]] = {
    "read_bytes": (NOISE, Path.read_bytes),
    "read_bytes of nothing": (b"", Path.read_bytes),
    "read_text": (LINES, Path.read_text),
    "read": (NOISE, opened("rb", use=lambda file: file.read())),
    "read(n)": (NOISE, opened("rb", use=lambda file: [*iter(lambda: file.read(1000), b"")])),
    "read(many)": (NOISE, opened("rb", use=lambda file: file.read(200_000))),
    "read1": (NOISE, opened("rb", use=lambda file: file.read1())),
    "readinto": (NOISE, opened("rb", use=_into)),
    "seek": (NOISE, opened("rb", use=_there_and_back)),
    "small buffer": (NOISE, opened("rb", 100, use=lambda file: file.read(5000))),
    "r+b": (NOISE, opened("r+b", use=lambda file: file.read(5000))),
    "unbuffered read": (NOISE, opened("rb", 0, use=lambda file: file.read())),
    "unbuffered read(n)": (NOISE, opened("rb", 0, use=lambda file: file.read(1000))),
    "unbuffered readinto": (NOISE, opened("rb", 0, use=_into)),
    "unbuffered readline": (LINES, opened("rb", 0, use=lambda file: file.readline())),
    "lines": (LINES, opened(encoding="ascii", use=list)),
    "csv": (LINES, opened(newline="", use=lambda file: list(csv.reader(file)))),
    "linecache": (LINES, lambda path: linecache.updatecache(str(path))),
    "os.read": (NOISE, descriptor(lambda fd: [os.read(fd, 1000) for _ in range(3)])),
    **{f"os.{name}": (NOISE, WAYS[name]) for name in "pread readv preadv sendfile".split()},
    "os.dup": (NOISE, descriptor(_duplicated)),
    "os.fdopen": (NOISE, descriptor(lambda fd: os.fdopen(fd, "rb", closefd=False).read())),
    "pickle.load": (pickle.dumps(NUMBERS), opened("rb", use=pickle.load)),
    "json.load": (json.dumps(NUMBERS).encode(), opened("rb", use=json.load)),
    **{
        f"{module.__name__}.open": (
            module.compress(NOISE),
            lambda path, module=module: module.open(path).read(),
        )
        for module in (gzip, bz2, lzma)
    },
    "shutil": (NOISE, _copied),
    "XML": (_XML, lambda path: ET.parse(path).getroot().tag),  # noqa: S314  # our own
    **{
        name: DECODED[name]
        for name in DECODED
        if name.startswith(("python_", "pillow_jpeg", "pillow_png", "npz"))
    },
}
