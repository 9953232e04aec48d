"""Workers read a fake file by each reader, as they would a real one."""

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch.utils.data import DataLoader

from pytest_dataloader_faults import inject
from pytest_dataloader_faults.fake_files import FakeDatasetFs
from pytest_dataloader_faults.faults import ReadError, TruncatedFile
from support import readers as register
from support.fake_datasets import FakeRecords
from support.readers.libraries import numpy_load
from support.readers.register import Reader
from support.tries import Reads

ROOT = "/fake/readers"


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
    right = _read_each(readers, root)
    contents = {path.relative_to(root): path.read_bytes() for path in _files(root)}
    with FakeDatasetFs() as files:
        for path, content in contents.items():
            files.create_file(f"{ROOT}/{path}", contents=content)
        read = _read_each(readers, ROOT)
    return {each.key: pair for each, *pair in zip(readers, right, read, strict=True)}


def _files(root: Path) -> list[Path]:
    return [path for path in root.rglob("*") if path.is_file()]


def _read_each(readers: list[Reader], root: str | Path) -> list[Any]:
    dataset = Reads(readers, lambda reader: reader.read(_path(root, reader)))
    iterator = iter(DataLoader(dataset, batch_size=None, num_workers=1))
    return [_read(iterator) for _ in readers]


def _read(iterator: Any) -> Any:
    try:
        return next(iterator)
    except Exception as error:  # noqa: BLE001  # whatever it is, it is the finding
        return error.args[0]  # LibsndfileError makes no text of what torch gives it.


@pytest.mark.parametrize("key", register.usable())
def test_reader(cells, key):
    right, read = cells[key]
    assert isinstance(right, bytes), right
    assert read == right


def _error(dataset):
    iterator = iter(DataLoader(dataset, num_workers=1))
    with pytest.raises(Exception, match="Caught") as caught:
        next(iterator)
    iterator._shutdown_workers()  # The garbage collector would take 5 s for it.
    return str(caught.value)


def _map(path: str) -> bytes:
    return bytes(np.load(path, mmap_mode="r"))


@pytest.mark.parametrize("read", [numpy_load, _map])
def test_np_load_reads_a_fake_file_under_faults(fake_dataset_fs, read):
    with open("/array.npy", "wb") as file:
        np.save(file, np.arange(64, dtype=np.uint8))
    fake_dataset_fs.create_dir("/arrays")
    fake_dataset_fs.rename("/array.npy", "/arrays/0.npy")
    with inject(ReadError("*.none"), require_fired=False):
        ((data, _),) = DataLoader(FakeRecords("/arrays", read), num_workers=1)
    assert data.tolist() == [list(range(64))]
    with (
        inject(ReadError("/arrays/*.npy"))
        if read is numpy_load
        else inject(TruncatedFile("/arrays/*.npy"))
    ):
        assert "Caught" in _error(FakeRecords("/arrays", read))
