"""Readers in C cannot see a fake file, and the error says so."""

from __future__ import annotations

import errno
import re

import cv2  # noqa: F401  # under pyfakefs it would look for its own files among fake ones
import h5py  # noqa: F401
import numpy as np
import pytest
from torch.utils.data import DataLoader

from pytest_dataloader_faults import inject
from pytest_dataloader_faults.fake_files import FakeDatasetFs
from pytest_dataloader_faults.faults import OpenError, ReadError
from support.fake_datasets import (
    FOLDER,
    FakeRecords,
    by_fromfile,
    by_h5py,
    by_imread,
    by_memmap,
    by_np_load,
    write_fake_records,
)

NOTE = "is in the fake file system, which only Python's own open() and os functions see"
READERS = {
    by_imread: "imread() reads in C",
    by_h5py: "with h5py.File(path) as file:",
    by_fromfile: "np.fromfile(path",
    by_memmap: "np.memmap(path",
}


def _error(dataset, **options):
    iterator = iter(DataLoader(dataset, num_workers=1, **options))
    with pytest.raises(Exception, match="Caught") as caught:
        next(iterator)
    iterator._shutdown_workers()  # The garbage collector would take 5 s for it.
    return str(caught.value)


@pytest.mark.parametrize("read", READERS, ids=lambda read: read.__name__)
def test_the_error_names_the_call_and_the_way_out(fake_dataset_fs, read):
    """Whatever the reader says, or does not say."""
    write_fake_records(fake_dataset_fs)
    text = _error(FakeRecords(read=read))
    assert f"'{FOLDER}/00.rec' {NOTE}" in text
    assert READERS[read] in text
    assert "tmp_path" in text


def test_a_spawned_worker_tells_it_too(fake_dataset_fs):
    """It has arrived there with the files."""
    write_fake_records(fake_dataset_fs)
    assert NOTE in _error(FakeRecords(read=by_h5py), multiprocessing_context="spawn")


@pytest.mark.parametrize(
    "fault", [OpenError("*/00.rec", errno.ENOENT), ReadError("*/00.rec", errno.EBADF)], ids=str
)
def test_a_fault_is_not_explained_away(fake_dataset_fs, fault):
    """An injected error is raised by what does see fake files."""
    write_fake_records(fake_dataset_fs)
    with inject(fault):
        text = _error(FakeRecords())
    assert re.search(r"Errno (2|9)\]", text)
    assert NOTE not in text


def test_a_file_that_is_nowhere_has_no_note(fake_dataset_fs):
    """Its error is true."""
    write_fake_records(fake_dataset_fs)
    dataset = FakeRecords()
    dataset.paths[0] = f"{FOLDER}/none.rec"
    text = _error(dataset)
    assert "No such file" in text
    assert NOTE not in text


def test_a_number_of_a_fake_file_is_never_a_real_one():
    """What is done to it by C code finds nothing open."""
    with FakeDatasetFs() as files:
        write_fake_records(files)
        with open(f"{FOLDER}/00.rec", "rb") as file, pytest.raises(OSError, match="fdopen"):
            np.fromfile(file, dtype=np.uint8)


def test_np_load_reads_a_fake_file_under_faults(fake_dataset_fs):
    """It takes the descriptor of a real file, and must not of a fake one."""
    with open("/array.npy", "wb") as file:
        np.save(file, np.arange(64, dtype=np.uint8))
    fake_dataset_fs.create_dir("/arrays")
    fake_dataset_fs.rename("/array.npy", "/arrays/0.npy")
    with inject(ReadError("*.none"), require_fired=False):
        ((data, _),) = DataLoader(FakeRecords("/arrays", by_np_load), num_workers=1)
    assert data.tolist() == [list(range(64))]
    with inject(ReadError("*.npy")):
        assert "Errno 5" in _error(FakeRecords("/arrays", by_np_load))
