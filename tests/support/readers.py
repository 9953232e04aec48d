"""More ways to read files, beside the documented ones: a good file of each, and its reader."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import mmap
import os
import pickle
import struct
import xml.etree.ElementTree as ET  # the file is our own
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from support import library_readers

ARRAY = np.arange(4096, dtype=np.int32).reshape(64, 64)
NOISE = np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8)


def _written(write: Callable[[io.BytesIO], Any]) -> bytes:
    file = io.BytesIO()
    write(file)
    return file.getvalue()


def _image(kind: str) -> bytes:
    return _written(lambda file: Image.fromarray(NOISE).save(file, kind))


def _read_image(path: Path) -> Any:
    with Image.open(path) as image:
        return np.asarray(image)


def _read_mapping(path: Path) -> Any:
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as data:
        return struct.unpack_from("<4096i", data)


def _read_struct(path: Path) -> Any:
    return struct.unpack("<4096i", path.read_bytes())


def _read_pickle(path: Path) -> Any:
    return pickle.loads(path.read_bytes())  # noqa: S301  # it is our own


def _read_npz(path: Path) -> Any:
    with open(path, "rb") as file:  # Of a path, NumPy leaves the file open when it raises.
        return np.load(file)["x"]


def _read_raw(path: Path) -> Any:
    return np.fromfile(path, dtype=np.int32).reshape(64, 64)


def _read_compressed(module: Any) -> Callable[[Path], Any]:
    def read(path: Path) -> Any:
        return struct.unpack("<4096i", module.decompress(path.read_bytes()))

    return read


READERS: dict[str, tuple[Callable[[], bytes], Callable[[Path], Any]]] = {
    "Pillow BMP": (lambda: _image("BMP"), _read_image),
    "np.fromfile": (ARRAY.tobytes, _read_raw),
    "struct": (ARRAY.tobytes, _read_struct),
    "mmap": (ARRAY.tobytes, _read_mapping),
    "pickle": (lambda: pickle.dumps(ARRAY.tolist()), _read_pickle),
    "npz": (lambda: _written(lambda file: np.savez(file, x=ARRAY)), _read_npz),
    "gzip": (lambda: gzip.compress(ARRAY.tobytes()), _read_compressed(gzip)),
    "zlib": (lambda: zlib.compress(ARRAY.tobytes()), _read_compressed(zlib)),
    "bz2": (lambda: bz2.compress(ARRAY.tobytes()), _read_compressed(bz2)),
    "lzma": (lambda: lzma.compress(ARRAY.tobytes()), _read_compressed(lzma)),
    "json": (
        lambda: json.dumps(ARRAY.tolist()).encode(),
        lambda path: json.loads(path.read_bytes()),
    ),
    "XML": (lambda: b"<a><b>text</b></a>", ET.parse),
}


SHARED = (
    "pillow_jpeg pillow_png numpy_load numpy_load_mapped hdf5 python_zipfile"
    " python_tarfile torch_load safetensors_file"
).split()
"""Those of the documented readers that raise for every file that is too short."""


def truncated(name: str, folder: Path, keep: str) -> tuple[Path, Callable[[Path], Any]]:
    """A file of that format which lacks its second half, or all of it, and its reader."""
    path, read = _shared(name, folder) if name in SHARED else _own(name, folder)
    read(path)
    os.truncate(path, path.stat().st_size // 2 if keep == "half" else 0)
    return path, read


def _own(name: str, folder: Path) -> tuple[Path, Callable[[Path], Any]]:
    content, read = READERS[name]
    path = folder / "sample"
    path.write_bytes(content())
    return path, read


def _shared(name: str, folder: Path) -> tuple[Path, Callable[[Path], Any]]:
    reader = library_readers.READERS[name]
    path = folder / reader.file
    reader.write(str(path))
    return path, lambda path: reader.read(str(path))
