"""What faults, searches and batteries do with fake files."""

import functools
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis.database import DirectoryBasedExampleDatabase
from torch.utils.data import DataLoader

from pytest_dataloader_faults import Verdict, explore, inject, run_trial
from pytest_dataloader_faults.exceptions import InvalidArgumentError
from pytest_dataloader_faults.fake_files import FakeDatasetFs
from pytest_dataloader_faults.faults import ReadError, ShortRead, StrayEntry, TruncatedFile
from support.fake_datasets import (
    COUNT,
    SIZE,
    FakeRecords,
    by_modules_of_its_own,
    write_fake_records,
    write_modules,
)
from support.judging import survey
from support.readers.libraries import builtin_open, numpy_load
from support.rows import slow


@pytest.fixture(name="modules")
def _modules(tmp_path, monkeypatch):
    """Modules on the real disk, which a reader is the first to import."""
    monkeypatch.setattr(sys, "path", [*write_modules(tmp_path), *sys.path])


@pytest.mark.usefixtures("modules")
@pytest.mark.parametrize("method", ["fork", slow("forkserver")])
def test_a_worker_imports_from_the_real_disk(files, method):
    loader = {"num_workers": 1, "multiprocessing_context": method}
    reader = FakeRecords(read=by_modules_of_its_own)
    outcome = run_trial(lambda: reader, ShortRead("*", max_bytes=3), loader=loader)
    assert outcome.exception is None
    assert outcome.fired >= COUNT * (SIZE // 3)


def test_a_stray_entry_is_refused(fake_dataset_fs):
    message = "cannot happen while pyfakefs replaces the files"
    with pytest.raises(InvalidArgumentError, match=message), inject(StrayEntry("*")):
        pass


def test_fake_files_are_never_damaged_before_the_dataset(files):
    with pytest.raises(InvalidArgumentError, match="before_init=True needs real files"):
        run_trial(FakeRecords, TruncatedFile("*"), before_init=True)


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


TESTS = Path(__file__).resolve().parents[1]


def padded(path: str) -> bytes:
    """What is missing is made up: a file that is too short is not noticed."""
    return builtin_open(path).ljust(SIZE, b"\0")


def test_the_survey_is_that_of_real_files(tmp_path):
    with FakeDatasetFs() as files:
        write_fake_records(files)
        contents = {path: builtin_open(path) for path in FakeRecords().paths}
        fake = survey(FakeRecords)
    for path, content in contents.items():
        (tmp_path / Path(path).name).write_bytes(content)
    real = survey(functools.partial(FakeRecords, str(tmp_path)))
    assert fake.files == real.files
    assert next(iter(fake.files.count("opens"))) == "*/00.rec"


def test_a_search_finds_what_is_wrong(files):
    exploration = explore(
        lambda: FakeRecords(read=padded),
        kinds=[TruncatedFile],
        loader={"num_workers": 1},
        max_epochs=1,
        max_examples=6,
        seed=1,
        database=None,
        on_fail=None,
    )
    assert exploration.verdict is Verdict.CORRUPTED
    (fault,) = exploration.outcome.schedule
    assert isinstance(fault, TruncatedFile)
    assert fault.path == "*/00.rec"


def test_examples_are_kept_on_the_disk(tmp_path, files):
    database = DirectoryBasedExampleDatabase(tmp_path / "examples")
    database.save(b"key", b"value")
    files.pause()
    assert list((tmp_path / "examples").rglob("*"))


SUITE = """
import pytest
from support.fake_datasets import FakeRecords, write_fake_records

@pytest.mark.dataloader_faults(only=["workers-agree", "read-error"])
def test_it(fault_check, fake_dataset_fs):
    write_fake_records(fake_dataset_fs)
    fault_check(FakeRecords)
"""


def test_as_items_of_pytest(pytester, monkeypatch):
    monkeypatch.setattr(sys, "path", [str(TESTS), *sys.path])
    pytester.makepyfile(SUITE)
    result = pytester.runpytest("-p", "dataloader_faults")
    result.assert_outcomes(passed=2)
