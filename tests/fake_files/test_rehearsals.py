"""Many schedules in little time, in this process."""

from __future__ import annotations

import os
import time

import pytest

from pytest_dataloader_faults.exceptions import InvalidArgumentError
from pytest_dataloader_faults.fake_files import FakeDatasetFs
from pytest_dataloader_faults.fake_files._in_process import Rehearsals
from pytest_dataloader_faults.faults import (
    HungRead,
    OpenError,
    ReadError,
    SlowRead,
    TruncatedFile,
    WorkerKilled,
)
from support.fake_datasets import COUNT, FakeRecords, at_offset, by_number, write_fake_records


@pytest.fixture(name="rehearse")
def _rehearse(fake_dataset_fs):
    write_fake_records(fake_dataset_fs)
    with Rehearsals() as rehearsals:
        yield rehearsals.run


@pytest.mark.parametrize("nth", [1, 4, COUNT])
def test_it_fails_at_the_sample(rehearse, nth):
    """Those before it came."""
    done = rehearse(FakeRecords, OpenError("*.rec", nth=nth))
    assert len(done.samples) == nth - 1
    assert isinstance(done.exception, OSError)
    assert done.fired == 1


def test_runs_do_not_see_each_other_s_faults(rehearse):
    """Each counts from the beginning."""
    for _ in range(3):
        failed = rehearse(lambda: FakeRecords(read=by_number), ReadError("*/03.rec"))
        assert (len(failed.samples), failed.fired) == (3, 1)
        clean = rehearse(lambda: FakeRecords(read=at_offset))
        assert (len(clean.samples), clean.exception) == (COUNT, None)


def test_nothing_waits(rehearse):
    """A slow read is counted, and not slow."""
    began = time.monotonic()
    assert rehearse(FakeRecords, SlowRead("*.rec", seconds=3600)).fired >= COUNT
    assert time.monotonic() - began < 60


def test_thousands_a_minute(rehearse):
    """Fifty schedules, in well under the time of a trial each."""
    began = time.process_time()
    for number in range(50):
        done = rehearse(FakeRecords, TruncatedFile(f"*/{number % COUNT:02}.rec"), seed=number)
        assert len(done.samples) == number % COUNT
    assert time.process_time() - began < 3


def test_it_is_gone_afterwards():
    """Files are read by pyfakefs again, and its names are its own."""
    with FakeDatasetFs() as files:
        write_fake_records(files)
        with Rehearsals():
            assert "read" in vars(os)
        assert "read" not in vars(os)
        assert len(FakeRecords()[0][0])


@pytest.mark.parametrize("fault", [HungRead("*"), WorkerKilled()], ids=str)
def test_what_takes_a_worker_is_refused(rehearse, fault):
    """With what to do instead."""
    with pytest.raises(InvalidArgumentError, match="run_trial"):
        rehearse(FakeRecords, fault)


def test_without_fake_files_it_is_refused():
    """Real files would be read."""
    with pytest.raises(InvalidArgumentError, match="within a FakeDatasetFs"), Rehearsals():
        pass
