"""The register of readers: how each is called, how its file is written, and what it returns.

To add one, enter a function by ``reads`` in one of the modules here. Libraries are imported where
they are used: ``load`` imports all, and once is enough.
"""

import importlib
import importlib.metadata
import platform
import sys
from pathlib import Path
from typing import Any

from support.readers import libraries, python  # noqa: F401  # they enter their readers
from support.readers.register import CONTENT, READERS, STANDARD, Reader  # noqa: F401

DECODING = {key: reader for key, reader in READERS.items() if reader.decodes}
PURE = {key: reader for key, reader in READERS.items() if reader.pure}
MAPPING = ("numpy_memmap", "python_mmap", "safetensors_file")
"""Those of FORMATS that read through mmap(2) and get a disk error as SIGBUS."""
_FORMATS = "builtin_open os_pread numpy_fromfile pillow_png pillow_tiff hdf5".split()
FORMATS = {key: READERS[key] for key in (*_FORMATS, *MAPPING)}
"""One of each way to the file: Python, C, a mapping, and libraries with their own reads."""


def load() -> None:
    """Import what the readers use, so that a forked worker has it."""
    names = "cv2 datasets lmdb pyarrow.parquet pyarrow.feather soundfile webdataset".split()
    for name in [*names, *(["zarr"] if "zarr_chunk" in usable() else [])]:
        importlib.import_module(name)


def documented() -> dict[str, Reader]:
    """The readers of files that the page about readers shows."""
    shown = {key: reader for key, reader in READERS.items() if reader.shown}
    return {key: reader for key, reader in shown.items() if not reader.server}


def usable() -> dict[str, Reader]:
    """Those of them that this Python can have."""
    return {key: each for key, each in documented().items() if sys.version_info >= each.python}


def versions() -> dict[str, str]:
    """The version of each package that has readers."""
    names = dict.fromkeys(reader.package for reader in usable().values())
    package_versions = {
        name: importlib.metadata.version(name) for name in names if name != STANDARD
    }
    return {STANDARD: platform.python_version(), **package_versions}


def write_formats(folder: Path, names: tuple[str, ...] = tuple(FORMATS)) -> list[str]:
    """CONTENT for each of the readers *names*, in a file that is named for it."""
    folder.mkdir(parents=True)
    paths = [folder / f"{name}.data" for name in names]
    for name, path in zip(names, paths, strict=True):
        FORMATS[name].write_as(path)
    return list(map(str, paths))


def read_format(path: str) -> Any:
    """What the reader that the file is named for makes of it."""
    return FORMATS[Path(path).stem].read(path)
