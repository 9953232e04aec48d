"""Readers that need only Python, NumPy and Pillow.

The pure ones use every kind of file object between them, and the functions of ``os`` that read.
Those that decode notice a missing end.
"""

import bz2
import gzip
import linecache
import lzma
import mmap
import os
import shutil
import struct
import xml.etree.ElementTree as ET  # the file is our own
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from support.readers.register import reads
from support.tries import WAYS
from support.tries import with_descriptor as descriptor

NOISE = bytes(range(256)) * 1200
LINES = b"".join(b"%d,%d\n" % (number, number**2) for number in range(9000))
ARRAY = np.arange(4096, dtype=np.int32).tobytes()


def opened(*arguments: Any, use: Callable[[Any], Any], **options: Any) -> Callable[[Any], Any]:
    def read(path: Any) -> Any:
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


def _copied(path: str) -> bytes:
    return Path(shutil.copyfile(path, f"{path}.copy")).read_bytes()


def _read_mapping(path: str) -> Any:
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as data:
        return struct.unpack_from("<4096i", data)


def _numbers_of(decompress: Callable[[bytes], bytes]) -> Callable[[str], Any]:
    return lambda path: struct.unpack("<4096i", decompress(Path(path).read_bytes()))


_DECODING: dict[str, tuple[bytes, Callable[[str], Any]]] = {
    "np.fromfile": (ARRAY, lambda path: np.fromfile(path, np.int32).reshape(64, 64)),
    "struct": (ARRAY, _numbers_of(bytes)),
    "mmap": (ARRAY, _read_mapping),
    **{
        module.__name__: (module.compress(ARRAY), _numbers_of(module.decompress))
        for module in (gzip, zlib, bz2, lzma)
    },
}
_PURE: dict[str, tuple[bytes, Callable[[str], Any]]] = {
    "read_bytes": (NOISE, lambda path: Path(path).read_bytes()),
    "read_bytes of nothing": (b"", lambda path: Path(path).read_bytes()),
    "read_text": (LINES, lambda path: Path(path).read_text(encoding="ascii")),
    "read(n)": (NOISE, opened("rb", use=lambda file: [*iter(lambda: file.read(1000), b"")])),
    "read1": (NOISE, opened("rb", use=lambda file: file.read1())),
    "readinto, thrice": (NOISE, opened("rb", use=_into)),
    "seek": (NOISE, opened("rb", use=_there_and_back)),
    "r+b": (NOISE, opened("r+b", use=lambda file: file.read(5000))),
    "unbuffered readline": (LINES, opened("rb", 0, use=lambda file: file.readline())),
    "lines": (LINES, opened(encoding="ascii", use=list)),
    "linecache": (LINES, lambda path: linecache.updatecache(str(path))),
    "os.read": (NOISE, descriptor(lambda fd: [os.read(fd, 1000) for _ in range(3)])),
    **{f"os.{name}": (NOISE, WAYS[name]) for name in "readv preadv sendfile".split()},
    "os.dup": (NOISE, descriptor(_duplicated)),
    "shutil": (NOISE, _copied),
}
for _options, _readers in (({"decodes": True}, _DECODING), ({"pure": True}, _PURE)):
    for _key, (_content, _read) in _readers.items():
        reads(key=_key, content=_content, **_options)(_read)


@reads(key="XML", content=b"<a><b>text</b></a>", decodes=True, pure=True)
def _xml(path: str) -> Any:
    return ET.parse(path).getroot().tag  # noqa: S314  # our own
