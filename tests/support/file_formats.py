"""One small file per way of reading files, and a dataset that reads them in its workers.

Each file holds CONTENT, in the format that its reader understands.
"""

from __future__ import annotations

import mmap
import os
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import safetensors.numpy
from PIL import Image
from torch.utils.data import Dataset

SIDE = 256
CONTENT: bytes = np.random.default_rng(0).integers(0, 256, SIDE * SIDE, dtype=np.uint8).tobytes()
"""64 KiB, 16 pages; noise, so that half of a compressed file is half of its content."""


def builtin_open(path: str) -> bytes:
    """Python's own buffered reader: open, fstat, lseek, read."""
    with open(path, "rb") as file:
        return file.read()


def os_pread(path: str) -> bytes:
    """Bare system calls."""
    fd = os.open(path, os.O_RDONLY)
    try:
        return os.pread(fd, os.fstat(fd).st_size, 0)
    finally:
        os.close(fd)


def numpy_fromfile(path: str) -> bytes:
    """fread(3) in C, on a duplicate of the descriptor."""
    return np.fromfile(path, dtype=np.uint8).tobytes()


def numpy_memmap(path: str) -> bytes:
    """mmap(2), and then no system call any more."""
    return np.memmap(path, dtype=np.uint8, mode="r").tobytes()


def python_mmap(path: str) -> bytes:
    """The same through the mmap module, which keeps a duplicate of the descriptor."""
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        return data[:]


def pillow_png(path: str) -> bytes:
    """Pillow's own decoder, which is fed from Python."""
    with Image.open(path) as image:
        return image.tobytes()


def pillow_tiff(path: str) -> bytes:
    """libtiff, which reads in C from a duplicate of the descriptor."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Pillow warns of what it cannot read before it raises.
        with Image.open(path) as image:
            return image.tobytes()


def hdf5(path: str) -> bytes:
    """The HDF5 library: pread(2) in C."""
    with h5py.File(path) as file:
        return file["x"][:].tobytes()


def safetensors_file(path: str) -> bytes:
    """mmap(2) in Rust."""
    return safetensors.numpy.load_file(path)["x"].tobytes()


READERS: dict[str, Callable[[str], bytes]] = {
    reader.__name__: reader
    for reader in (
        builtin_open,
        os_pread,
        numpy_fromfile,
        numpy_memmap,
        python_mmap,
        pillow_png,
        pillow_tiff,
        hdf5,
        safetensors_file,
    )
}
MAPPING = ("numpy_memmap", "python_mmap", "safetensors_file")
"""Those that read through mmap(2) and meet a disk error as SIGBUS."""


def write_formats(folder: Path, names: tuple[str, ...] = tuple(READERS)) -> list[str]:
    """CONTENT for each of the readers *names*, in a file that is named for it."""
    folder.mkdir(parents=True)
    return [_write_format(folder / f"{name}.data") for name in names]


def _write_format(path: Path) -> str:
    pixels = np.frombuffer(CONTENT, dtype=np.uint8)
    name = path.stem
    if name.startswith("pillow"):
        image = Image.fromarray(pixels.reshape(SIDE, SIDE))
        image.save(path, name.removeprefix("pillow_"), compression="tiff_lzw")
    elif name == "hdf5":
        with h5py.File(path, "w") as file:
            file["x"] = pixels
    elif name == "safetensors_file":
        safetensors.numpy.save_file({"x": pixels}, path)
    else:
        path.write_bytes(CONTENT)
    return str(path)


class Formats(Dataset[Any]):
    """A sample per file: its path and what its reader makes of it."""

    def __init__(self, paths: list[str]) -> None:
        self.paths = paths

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> tuple[str, bytes | str]:
        path = self.paths[index]
        return path, READERS[Path(path).stem](path)


class TolerantFormats(Formats):
    """The same; where the reader raises, its error is the sample."""

    def __getitem__(self, index: int) -> tuple[str, bytes | str]:
        try:
            return super().__getitem__(index)
        except Exception as error:  # noqa: BLE001  # whatever it is, it is the finding
            return self.paths[index], f"{type(error).__name__}: {error}"
