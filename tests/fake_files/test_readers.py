"""Every documented reader on a fake file: it gives what the file holds, or an error that explains.

All are tried by one worker, one sample after the other.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from torch.utils.data import DataLoader, Dataset

from pytest_dataloader_faults.fake_files import FakeDatasetFs
from support import readers as register
from support.readers import Reader

ROOT = "/fake/readers"
SEEING = {
    *("builtin_open", "readinto", "os_pread", "python_gzip", "python_zipfile", "python_tarfile"),
    *("numpy_load", "numpy_load_npz", "pillow_jpeg", "pillow_png", "torch_load"),
    *("zarr_chunk", "zarr_metadata", "webdataset_tar"),
}
"""Those that read by Python's own open() and os functions. The others read in C, or map."""
SILENT = {"opencv_jpeg", "opencv_png"}
"""Those that give None, of which the code that uses it makes an error: see test_unseen."""


class Read(NamedTuple):
    """What a reader gave, or the text of the worker's error."""

    data: bytes | None = None
    error: str = ""


class Each(Dataset[Any]):
    """A sample per reader."""

    def __init__(self, readers: list[Reader], root: str | Path) -> None:
        self.readers = readers
        self.root = root

    def __len__(self) -> int:
        return len(self.readers)

    def __getitem__(self, index: int) -> Any:
        reader = self.readers[index]
        return reader.read(_path(self.root, reader))


def _path(root: str | Path, reader: Reader) -> str:
    return os.path.join(root, reader.key, reader.file)


@pytest.fixture(name="cells", scope="module")
def _cells(tmp_path_factory):
    """What each reader gave of a real file, and in a worker of its fake copy."""
    register.load()
    readers = [*register.usable().values()]
    root = tmp_path_factory.mktemp("readers")
    for reader in readers:
        os.mkdir(root / reader.key)
        reader.write(_path(root, reader))
    right = _read_each(Each(readers, root))
    contents = {path.relative_to(root): path.read_bytes() for path in _files(root)}
    with FakeDatasetFs() as files:
        for path, content in contents.items():
            files.create_file(f"{ROOT}/{path}", contents=content)
        read = _read_each(Each(readers, ROOT))
    return {each.key: pair for each, *pair in zip(readers, right, read, strict=True)}


def _files(root: Path) -> list[Path]:
    return [path for path in root.rglob("*") if path.is_file()]


def _read_each(dataset: Each) -> list[Read]:
    iterator = iter(DataLoader(dataset, batch_size=None, num_workers=1))
    return [_read(iterator) for _ in range(len(dataset))]


def _read(iterator: Any) -> Read:
    try:
        return Read(next(iterator))
    except Exception as error:  # noqa: BLE001  # whatever it is, it is the finding
        return Read(error=error.args[0])  # LibsndfileError makes no text of what torch gives it.


@pytest.mark.parametrize("key", register.usable())
def test_reader(cells, key):
    right, read = cells[key]
    assert right.data
    if key in SEEING:
        assert read == right
    elif key in SILENT:
        assert read == Read(None)
    else:
        reader = register.READERS[key]
        assert f"'{_path(ROOT, reader)}' is in the fake file system" in read.error
        assert re.search(rf"{_name_of_call(reader)}\b.* reads in C", read.error)
        assert "tmp_path" in read.error


def _name_of_call(reader: Reader) -> str:
    """The last part of how users call it: ``File`` of ``h5py.File``."""
    return re.search(r"(\w+)[`(]", reader.shown)[1]
