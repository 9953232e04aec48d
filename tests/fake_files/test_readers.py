"""Readers of fake files return what a file holds, or an error that explains why they cannot."""

import contextlib
import errno
import os
import re
import sqlite3
import traceback
from pathlib import Path
from typing import Any, NamedTuple

import cv2  # noqa: F401  # under pyfakefs it would look for its own files among fake ones
import h5py
import numpy as np
import pytest
from torch.utils.data import DataLoader

from pytest_dataloader_faults import inject
from pytest_dataloader_faults._engine.fake.notes import note_for
from pytest_dataloader_faults.exceptions import UnusableDatasetError
from pytest_dataloader_faults.fake_files import FakeDatasetFs
from pytest_dataloader_faults.faults import OpenError, ReadError
from support import readers as register
from support.fake_datasets import (
    FOLDER,
    FakeRecords,
    by_h5py,
    by_imread,
    write_fake_records,
)
from support.readers.libraries import numpy_load
from support.readers.register import Reader
from support.surveys import survey
from support.tries import Reads

ROOT = "/fake/readers"
SEEING = {
    *register.PURE,
    *("numpy_load", "numpy_load_npz", "torch_load", "zarr_chunk", "zarr_metadata"),
    "webdataset_tar",
}
"""Those that read by Python's own open() and os functions. The others read in C, or map."""
SILENT = {"opencv_jpeg", "opencv_png"}
"""Those that give None, of which the code that uses it makes an error."""


class Read(NamedTuple):
    """What a reader gave, or the text of the worker's error."""

    data: bytes | None = None
    error: str = ""


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


def _read_each(readers: list[Reader], root: str | Path) -> list[Read]:
    dataset = Reads(readers, lambda reader: reader.read(_path(root, reader)))
    iterator = iter(DataLoader(dataset, batch_size=None, num_workers=1))
    return [_read(iterator) for _ in readers]


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


NOTE = "is in the fake file system, which only Python's own open() and os functions see"


def _error(dataset, **options):
    iterator = iter(DataLoader(dataset, num_workers=1, **options))
    with pytest.raises(Exception, match="Caught") as caught:
        next(iterator)
    iterator._shutdown_workers()  # The garbage collector would take 5 s for it.
    return str(caught.value)


def test_the_error_names_the_call_and_the_way_out(files):
    text = _error(FakeRecords(read=by_h5py))
    assert (
        f"'{FOLDER}/00.rec' {NOTE}, but `with h5py.File(path) as file:` (fake_datasets.py" in text
    )
    assert "tmp_path" in text


class KeepsPathsOnly(FakeRecords):
    """Has no path at hand when the reader fails, nor does that one name it."""

    def __getitem__(self, index):
        return np.fromfile(self.paths[index], np.uint8)


def test_a_path_without_a_name_is_found_in_the_attributes_of_the_dataset(files):
    text = _error(KeepsPathsOnly())
    assert f"'{FOLDER}' {NOTE}, but `return np.fromfile(self.paths[index], np.uint8)`" in text


class OpensAtOnce(FakeRecords):
    """Opens its file where it is made."""

    def __init__(self, *_: object) -> None:
        super().__init__()
        self.file = h5py.File(self.paths[0])


@pytest.mark.parametrize("make", [OpensAtOnce, lambda: FakeRecords(read=by_h5py)])
def test_what_fails_before_there_is_a_worker_is_explained(files, make):
    with pytest.raises(UnusableDatasetError) as caught:
        survey(make)
    assert f"'{FOLDER}/00.rec' {NOTE}" in str(caught.value)


def test_so_is_an_error_of_a_script():
    with pytest.raises(FileNotFoundError) as caught:
        _script()
    assert NOTE in "".join(traceback.format_exception(caught.value))


def _script():
    with FakeDatasetFs() as files:
        write_fake_records(files)
        OpensAtOnce()


def test_a_reader_that_gives_nothing_is_named(files):
    assert f"'{FOLDER}/00.rec' {NOTE}, but imread() reads in C" in _error(
        FakeRecords(read=by_imread)
    )


def test_an_empty_database_is_explained(tmp_path, fake_dataset_fs):
    path = str(tmp_path / "data.db")
    fake_dataset_fs.create_file(path)
    connection = sqlite3.connect(path)
    with contextlib.closing(connection), pytest.raises(sqlite3.Error) as caught:
        connection.execute("select * from records where path = ?", [path])
    assert f"'{path}' {NOTE}" in note_for(caught.value)


@pytest.mark.parametrize(
    "fault", [OpenError("*/00.rec", errno.ENOENT), ReadError("*/00.rec", errno.EBADF)], ids=str
)
def test_a_fault_is_not_explained_away(files, fault):
    with inject(fault):
        text = _error(FakeRecords())
    assert re.search(r"Errno (2|9)\]", text)
    assert NOTE not in text


def test_a_file_that_is_nowhere_has_no_note(files):
    dataset = FakeRecords()
    dataset.paths[0] = f"{FOLDER}/none.rec"
    text = _error(dataset)
    assert "No such file" in text
    assert NOTE not in text


def test_a_number_of_a_fake_file_is_never_a_real_one():
    with FakeDatasetFs() as files:
        write_fake_records(files)
        with open(f"{FOLDER}/00.rec", "rb") as file, pytest.raises(OSError, match="fdopen"):
            np.fromfile(file, dtype=np.uint8)


def test_np_load_reads_a_fake_file_under_faults(fake_dataset_fs):
    with open("/array.npy", "wb") as file:
        np.save(file, np.arange(64, dtype=np.uint8))
    fake_dataset_fs.create_dir("/arrays")
    fake_dataset_fs.rename("/array.npy", "/arrays/0.npy")
    with inject(ReadError("*.none"), require_fired=False):
        ((data, _),) = DataLoader(FakeRecords("/arrays", numpy_load), num_workers=1)
    assert data.tolist() == [list(range(64))]
    with inject(ReadError("*.npy")):
        assert "Errno 5" in _error(FakeRecords("/arrays", numpy_load))
