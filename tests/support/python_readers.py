"""Readers of the content of a file, which need only NumPy and Pillow.

PYTHON has readers that are Python down to the file: between them they use every kind of file
object, and the functions of ``os`` that read. DECODED has formats that notice a missing end.
"""

from __future__ import annotations

import bz2
import csv
import gzip
import io
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
from PIL import Image

from support.readers import READERS
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


def _scattered(fd: int, *offset: int) -> tuple[bytes, bytes]:
    buffers = bytearray(700), bytearray(900)
    (os.preadv if offset else os.readv)(fd, list(buffers), *offset)
    return bytes(buffers[0]), bytes(buffers[1])


def _sent(fd: int) -> bytes:
    """Sent through a pipe by the kernel."""
    read, write = os.pipe()
    try:
        return os.read(read, os.sendfile(write, fd, 0, 1000))
    finally:
        os.close(read)
        os.close(write)


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


def _saved(write: Callable[[io.BytesIO], Any]) -> bytes:
    file = io.BytesIO()
    write(file)
    return file.getvalue()


def _bitmap(file: io.BytesIO) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(file, "BMP")


def _read_image(path: Path) -> Any:
    with Image.open(path) as image:
        return np.asarray(image)


def _read_mapping(path: Path) -> Any:
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as data:
        return struct.unpack_from("<4096i", data)


def _read_npz(path: Path) -> Any:
    with open(path, "rb") as file:  # Of a path, NumPy leaves the file open when it raises.
        return np.load(file)["x"]


def _numbers_of(decompress: Callable[[bytes], bytes]) -> Callable[[Path], Any]:
    return lambda path: struct.unpack("<4096i", decompress(path.read_bytes()))


_NPZ = (_saved(lambda file: np.savez(file, x=ARRAY)), _read_npz)
_XML = b"<a><b>text</b></a>"
DECODED: dict[str, tuple[bytes, Callable[[Path], Any]]] = {
    "Pillow BMP": (_saved(_bitmap), _read_image),
    "np.fromfile": (ARRAY.tobytes(), lambda path: np.fromfile(path, np.int32).reshape(64, 64)),
    "struct": (ARRAY.tobytes(), _numbers_of(bytes)),
    "mmap": (ARRAY.tobytes(), _read_mapping),
    "pickle": (pickle.dumps(ARRAY.tolist()), lambda path: pickle.loads(path.read_bytes())),  # noqa: S301  # our own
    "npz": _NPZ,
    "gzip": (gzip.compress(ARRAY.tobytes()), _numbers_of(gzip.decompress)),
    "zlib": (zlib.compress(ARRAY.tobytes()), _numbers_of(zlib.decompress)),
    "bz2": (bz2.compress(ARRAY.tobytes()), _numbers_of(bz2.decompress)),
    "lzma": (lzma.compress(ARRAY.tobytes()), _numbers_of(lzma.decompress)),
    "json": (json.dumps(ARRAY.tolist()).encode(), lambda path: json.loads(path.read_bytes())),
    "XML": (_XML, ET.parse),
    **{
        name: _of_library(name)
        for name in (
            "pillow_jpeg pillow_png numpy_load numpy_load_mapped hdf5 python_zipfile"
            " python_tarfile torch_load safetensors_file"
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
    "os.pread": (NOISE, descriptor(lambda fd: [os.pread(fd, 1000, at) for at in (0, 9, 99)])),
    "os.readv": (NOISE, descriptor(_scattered)),
    "os.preadv": (NOISE, descriptor(lambda fd: _scattered(fd, 50))),
    "os.sendfile": (NOISE, descriptor(_sent)),
    "os.dup": (NOISE, descriptor(_duplicated)),
    "os.fdopen": (NOISE, descriptor(lambda fd: os.fdopen(fd, "rb", closefd=False).read())),
    "pickle.load": (pickle.dumps(NUMBERS), opened("rb", use=pickle.load)),
    "json.load": (json.dumps(NUMBERS).encode(), opened("rb", use=json.load)),
    "gzip.open": (gzip.compress(NOISE, 1), lambda path: gzip.open(path).read()),
    "bz2.open": (bz2.compress(NOISE), lambda path: bz2.open(path).read()),
    "lzma.open": (lzma.compress(NOISE), lambda path: lzma.open(path).read()),
    "shutil": (NOISE, _copied),
    "XML": (_XML, lambda path: ET.parse(path).getroot().tag),  # noqa: S314  # our own
    "npz": _NPZ,
    **{name: DECODED[name] for name in DECODED if name.startswith(("python_", "pillow_"))},
}
