"""Workers that die inside a read of their data."""

from __future__ import annotations

import mmap
import signal

import pytest

from pytest_dataloader_faults import check_dataset, inject, run_trial
from pytest_dataloader_faults._engine import unavailable
from pytest_dataloader_faults.exceptions import FaultNotFiredError, InvalidArgumentError
from pytest_dataloader_faults.faults import WorkerKilled
from pytest_dataloader_faults.outcomes import FiringKind
from support.datasets import Records, RecordStream
from support.epochs import alone, epoch
from support.tries import WAYS, Tries

pytestmark = pytest.mark.skipif(bool(unavailable()), reason=str(unavailable()))


@pytest.fixture(name="paths")
def _paths(records):
    return sorted(map(str, records.iterdir()))


@pytest.mark.parametrize("at", [1, 4, 8])
@pytest.mark.parametrize("worker", [0, 1])
def test_what_came_before_is_always_the_same(paths, at, worker):
    """All batches up to the one whose reading was never finished."""
    fault = WorkerKilled(reading="*.rec", at=at, worker=worker)
    with inject(fault) as injection:
        read = epoch(alone(Tries(paths, WAYS["read"]), num_workers=2))

    place = 2 * (at - 1) + worker
    assert list(range(place)) == [each.index for each in read.batches]
    assert -signal.SIGKILL == read.exit_codes[worker]
    (firing,) = injection.faults[0].firings
    assert (FiringKind.DEATH, "signal 9", paths[place], worker, at) == (
        firing.kind,
        firing.call,
        firing.path,
        firing.worker,
        firing.fetch,
    )
    assert injection.surfaced == 1


def test_the_first_read_of_such_a_file_from_then_on(paths):
    """Others are read before, also in later fetches."""
    with inject(WorkerKilled(reading="*/09.rec", at=2)) as injection:
        read = epoch(alone(Tries(paths, WAYS["read"])))

    assert list(range(9)) == [each.index for each in read.batches]
    assert [10] == [each.fetch for each in injection.faults[0].firings]


def test_no_other_file_will_do(paths):
    """Nobody dies, and that is told."""
    with (
        pytest.raises(FaultNotFiredError, match="never fired"),
        inject(WorkerKilled(reading="*.jpg")),
    ):
        assert len(epoch(alone(Tries(paths, WAYS["read"]))).batches) == len(paths)


def test_one_that_is_stopped_goes_on(paths):
    """In the midst of its read, when the loader ends its workers."""
    with inject(WorkerKilled(signal.SIGSTOP, reading="*/02.rec")) as injection:
        read = epoch(alone(Tries(paths, WAYS["read"]), timeout=1))

    assert [0, 1] == [each.index for each in read.batches]
    assert ([0], 1) == (read.exit_codes, injection.surfaced)


class Mapped(Records):
    """Maps each file, by code that keeps the interpreter lock."""

    def __getitem__(self, index):
        with open(self.paths[index], "rb") as file:
            return bytes(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))


def test_a_reader_that_keeps_the_interpreter_lock_dies_too(records):
    """It cannot hand over what it has made, so its death does not wait until that has come."""
    with inject(WorkerKilled(reading="*/05.rec")) as injection:
        read = epoch(alone(Mapped(records), prefetch_factor=8))

    assert len(read.batches) <= 5
    assert ([-signal.SIGKILL], 1) == (read.exit_codes, injection.fired)


def test_the_fault_is_gone_for_the_recovery(records):
    """A trial's fresh pass reads the file that was not finished."""
    outcome = run_trial(lambda: Records(records), WorkerKilled(reading="*/00.rec"))

    assert (outcome.fired, outcome.delivered, outcome.recovery.complete) == (1, (), True)


def test_the_python_engine_refuses(records):
    """It has no hold on a read that has begun."""
    with pytest.raises(InvalidArgumentError, match="a read that has begun is the kernel's"):
        run_trial(lambda: Records(records), WorkerKilled(reading="*.rec"), engine="python")


class ReadsFirst(RecordStream):
    """Has read all of its samples by the time that the first is asked for."""

    def __iter__(self):
        return iter(list(super().__iter__()))


def test_a_stream_dies_in_a_read_before_its_first_fetch(records):
    """What ``__iter__`` reads is read before that."""
    outcome = run_trial(lambda: ReadsFirst(records), WorkerKilled(reading="*.rec"))

    (firing,) = outcome.faults[0].firings
    assert (firing.worker, firing.fetch) == (0, 0)
    assert [str(each) for each in outcome.deaths] == ["worker 0 was killed by SIGKILL"]


def test_a_later_fetch_is_waited_for(records):
    """With another ``at`` than 1 it has to begin."""
    outcome = run_trial(lambda: ReadsFirst(records), WorkerKilled(reading="*.rec", at=2))

    assert outcome.fired == 0


def test_a_stream_that_reads_first_passes_the_check(records):
    """The fault happens, and the loader tells of it."""
    (result,) = check_dataset(lambda: ReadsFirst(records), only="worker-killed-reading")

    assert (result.verdict, result.outcome.fired) == ("failed_cleanly", 1)
