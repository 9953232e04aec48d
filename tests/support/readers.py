"""How files are read in practice: for each format, a good file and its reader."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import mmap
import pickle
import struct
import tarfile
import xml.etree.ElementTree as ET  # the file is our own
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import safetensors.numpy
import torch
from PIL import Image

ARRAY = np.arange(4096, dtype=np.int32).reshape(64, 64)
NOISE = np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8)


def _written(write: Callable[[io.BytesIO], Any]) -> bytes:
    file = io.BytesIO()
    write(file)
    return file.getvalue()


def _image(kind: str) -> bytes:
    return _written(lambda file: Image.fromarray(NOISE).save(file, kind))


def _tar() -> bytes:
    def write(file: io.BytesIO) -> None:
        with tarfile.open(fileobj=file, mode="w") as archive:
            member = tarfile.TarInfo("x")
            member.size = len(NOISE.tobytes())
            archive.addfile(member, io.BytesIO(NOISE.tobytes()))

    return _written(write)


def _zip() -> bytes:
    def write(file: io.BytesIO) -> None:
        with zipfile.ZipFile(file, "w") as archive:
            archive.writestr("x", NOISE.tobytes())

    return _written(write)


def _hdf5() -> bytes:
    def write(file: io.BytesIO) -> None:
        with h5py.File(file, "w") as archive:
            archive["x"] = ARRAY

    return _written(write)


def _read_image(path: Path) -> Any:
    with Image.open(path) as image:
        return np.asarray(image)


def _read_tar(path: Path) -> Any:
    with tarfile.open(path) as archive:
        return [archive.extractfile(each).read() for each in archive]


def _read_zip(path: Path) -> Any:
    with zipfile.ZipFile(path) as archive:
        return archive.read("x")


def _read_hdf5(path: Path) -> Any:
    with h5py.File(path) as archive:
        return archive["x"][:]


def _read_mapping(path: Path) -> Any:
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as data:
        return struct.unpack_from("<4096i", data)


def _read_struct(path: Path) -> Any:
    return struct.unpack("<4096i", path.read_bytes())


def _read_pickle(path: Path) -> Any:
    return pickle.loads(path.read_bytes())  # noqa: S301  # it is our own


def _read_npy(path: Path) -> Any:
    with open(path, "rb") as file:
        return np.load(file)


def _read_npz(path: Path) -> Any:
    with open(path, "rb") as file:
        return np.load(file)["x"]


def _read_npy_mapped(path: Path) -> Any:
    return np.load(path, mmap_mode="r")


def _read_raw(path: Path) -> Any:
    return np.fromfile(path, dtype=np.int32).reshape(64, 64)


def _read_compressed(module: Any) -> Callable[[Path], Any]:
    def read(path: Path) -> Any:
        return struct.unpack("<4096i", module.decompress(path.read_bytes()))

    return read


READERS: dict[str, tuple[Callable[[], bytes], Callable[[Path], Any]]] = {
    "Pillow JPEG": (lambda: _image("JPEG"), _read_image),
    "Pillow PNG": (lambda: _image("PNG"), _read_image),
    "Pillow BMP": (lambda: _image("BMP"), _read_image),
    "np.load": (lambda: _written(lambda file: np.save(file, ARRAY)), _read_npy),
    "np.load mapped": (lambda: _written(lambda file: np.save(file, ARRAY)), _read_npy_mapped),
    "np.fromfile": (ARRAY.tobytes, _read_raw),
    "npz": (lambda: _written(lambda file: np.savez(file, x=ARRAY)), _read_npz),
    "h5py": (_hdf5, _read_hdf5),
    "zipfile": (_zip, _read_zip),
    "tarfile": (_tar, _read_tar),
    "struct": (ARRAY.tobytes, _read_struct),
    "mmap": (ARRAY.tobytes, _read_mapping),
    "pickle": (lambda: pickle.dumps(ARRAY.tolist()), _read_pickle),
    "torch.load": (
        lambda: _written(lambda file: torch.save(torch.from_numpy(ARRAY), file)),
        torch.load,
    ),
    "safetensors": (
        lambda: safetensors.numpy.save({"x": ARRAY}),
        safetensors.numpy.load_file,
    ),
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


def truncated(name: str, folder: Path, keep: str) -> tuple[Path, Callable[[Path], Any]]:
    """A file of that format which lacks its second half, or all of it, and its reader."""
    content, read = READERS[name][0](), READERS[name][1]
    path = folder / "sample"
    path.write_bytes(content)
    read(path)
    path.write_bytes(content[: len(content) // 2] if keep == "half" else b"")
    return path, read
