"""``fake_dataset_fs.run``: many schedules in little time, in this process."""

from __future__ import annotations

import functools
import os
import time

import pytest
from pyfakefs.fake_filesystem import FakeFilesystem
from torch.utils.data import DataLoader, IterableDataset

from pytest_dataloader_faults import inject, run_trial
from pytest_dataloader_faults.exceptions import InvalidArgumentError
from pytest_dataloader_faults.fake_files import FakeDatasetFs
from pytest_dataloader_faults.faults import (
    HungRead,
    OpenError,
    ReadError,
    SlowRead,
    TruncatedFile,
    WorkerKilled,
)
from support.fake_datasets import COUNT, FakeRecords, at_offset, by_number, write_fake_records


@pytest.fixture(name="run")
def _run(fake_dataset_fs):
    write_fake_records(fake_dataset_fs)
    return fake_dataset_fs.run


@pytest.mark.parametrize("nth", [1, 4, COUNT])
def test_it_fails_at_the_sample(run, nth):
    """Those before it came."""
    done = run(FakeRecords, OpenError("*.rec", nth=nth))
    assert len(done.samples) == nth - 1
    assert isinstance(done.exception, OSError)
    assert done.fired == 1


def test_runs_do_not_see_each_other_s_faults(run):
    """Each counts from the beginning."""
    for _ in range(3):
        failed = run(lambda: FakeRecords(read=by_number), ReadError("*/03.rec"))
        assert (len(failed.samples), failed.fired) == (3, 1)
        clean = run(lambda: FakeRecords(read=at_offset))
        assert (len(clean.samples), clean.exception) == (COUNT, None)


def test_nothing_waits(run):
    """A slow read is counted, and not slow."""
    began = time.monotonic()
    assert run(FakeRecords, SlowRead("*.rec", seconds=3600)).fired >= COUNT
    assert time.monotonic() - began < 60


def test_thousands_a_minute(run):
    """Fifty schedules, in well under the time of a trial each."""
    began = time.process_time()
    for number in range(50):
        done = run(FakeRecords, TruncatedFile(f"*/{number % COUNT:02}.rec"), seed=number)
        assert len(done.samples) == number % COUNT
    assert time.process_time() - began < 3


def test_hooks_are_gone_afterwards():
    """Files are read by pyfakefs again, or by Python, and their names are their own."""
    read = os.read
    with FakeDatasetFs() as files:
        write_fake_records(files)
        files.run(FakeRecords)
        assert "read" in vars(os)
        files.pause()
        assert os.read is read
        files.resume()
        assert "read" not in vars(os)
        assert len(FakeRecords()[0][0])
        files.run(FakeRecords)
    assert os.read is read


def test_workers_have_faults_of_their_own(run):
    """A loader and a trial after a run reach their faults, by each way of reading."""
    for read in (by_number, at_offset):
        make = functools.partial(FakeRecords, read=read)
        assert run(make).exception is None
        with inject(ReadError("*/03.rec")) as injection, pytest.raises(OSError, match="Errno 5"):
            list(DataLoader(make(), num_workers=1))
        assert injection.fired == 1
        outcome = run_trial(make, ReadError("*/03.rec"), loader={"num_workers": 0})
        assert outcome.fired == 1
        assert run(make, OpenError("*.rec")).fired == 1


def test_the_file_system_is_still_pyfakefs_own(fake_dataset_fs):
    """One with all its methods, and with ``run`` besides."""
    assert isinstance(fake_dataset_fs, FakeFilesystem)
    assert fake_dataset_fs.create_dir("/fake")


@pytest.mark.parametrize("fault", [HungRead("*"), WorkerKilled()], ids=str)
def test_what_takes_a_worker_is_refused(run, fault):
    """With what to do instead."""
    with pytest.raises(InvalidArgumentError, match="run_trial"):
        run(FakeRecords, fault)


def test_without_fake_files_it_is_refused(fake_dataset_fs):
    """Real files would be read."""
    fake_dataset_fs.pause()
    with pytest.raises(InvalidArgumentError, match="no fake files now"):
        fake_dataset_fs.run(FakeRecords)


class Stream(IterableDataset):
    """The fake records, one after another."""

    def __iter__(self):
        return (dataset[index] for dataset in [FakeRecords()] for index in range(COUNT))


def test_a_stream_is_read_to_its_end(run):
    """It has no length."""
    assert len(run(Stream).samples) == COUNT
    assert isinstance(run(Stream, OpenError("*.rec", nth=2)).exception, OSError)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [((FakeRecords, "x"), "'x' is no fault"), (("records",), "make_dataset='records' must be")],
)
def test_bad_arguments_are_refused(run, arguments, text):
    """As run_trial() refuses them."""
    with pytest.raises(InvalidArgumentError, match=text):
        run(*arguments)


def test_any_iterable_is_read_to_its_end(run):
    """One without ``__getitem__`` needs to be no IterableDataset."""
    assert run(lambda: iter([1, 2])).samples == (1, 2)
