"""Each reader gets the same of a fake file, in a worker, as of a real one."""

import os
from pathlib import Path
from typing import Any

import pytest
from torch.utils.data import DataLoader

from pytest_dataloader_faults.fake_files import FakeDatasetFs
from support import readers as register
from support.readers.register import Reader
from support.tries import Reads

ROOT = "/fake/readers"


def _path(root: str | Path, reader: Reader) -> str:
    return os.path.join(root, reader.key, reader.file)


@pytest.fixture(name="cells", scope="module")
def _cells(tmp_path_factory):
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
