"""The deadline is the loader's, and a budget of samples is what a loader draws."""

import os
import threading
import time
from functools import partial
from itertools import chain
from typing import Any

import psutil
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

from pytest_dataloader_faults import run_trial
from pytest_dataloader_faults._engine.protocol import WorkerArmed
from pytest_dataloader_faults._settings import DEADLINE, Settings
from pytest_dataloader_faults._trial import take_reference
from pytest_dataloader_faults._trial.driver import LoaderDriver
from pytest_dataloader_faults._trial.journal import (
    HARNESS,
    LOADER,
    PhaseStarted,
    ProcessesStarted,
    Turn,
)
from pytest_dataloader_faults._trial.process import clock
from pytest_dataloader_faults._trial.process.clock import (
    HARNESS_SECONDS,
    SLICE,
    START,
    Pauses,
    deadline_after,
)
from pytest_dataloader_faults._trial.samplers import choose_size, limit_samples, spread_indices
from pytest_dataloader_faults._trial.samples import draws_of
from pytest_dataloader_faults.battery.shares import Deadlines
from pytest_dataloader_faults.exceptions import HarnessError
from pytest_dataloader_faults.faults import ReadError
from pytest_dataloader_faults.outcomes.stages import DONE, RECOVERY
from support.datasets import Records
from support.facts import EPOCH_1, EPOCH_2
from support.judging import judge_trial
from support.rows import rows
from support.served import StartsSlowly
from support.supervisors import running_supervisors
from support.waiting import until

_SHORT = 2.5
_LONGER = 4.5


@rows(
    ("events", "whose", "until"),
    [
        ([], LOADER, 110),
        ([PhaseStarted(DONE, 103)], LOADER, 110),
        ([Turn(LOADER, 101), Turn(LOADER, 103)], LOADER, 110),
        ([PhaseStarted(EPOCH_1, 101), PhaseStarted(EPOCH_2, 103)], LOADER, 113),
        ([Turn(HARNESS, 104)], HARNESS, 104 + HARNESS_SECONDS),
        ([Turn(HARNESS, 104), Turn(LOADER, 120)], LOADER, 126),
        (
            [Turn(HARNESS, 104), Turn(LOADER, 120), Turn(HARNESS, 121)],
            HARNESS,
            121 + HARNESS_SECONDS - 16,
        ),
        ([PhaseStarted(RECOVERY, 105)], LOADER, 115),
        ([Turn(HARNESS, 104), PhaseStarted(RECOVERY, 150)], LOADER, 160),
        (
            [Turn(HARNESS, 104), PhaseStarted(RECOVERY, 150), Turn(HARNESS, 152)],
            HARNESS,
            152 + HARNESS_SECONDS - 46,
        ),
    ],
)
def test_each_has_its_own_time(events, whose, until):
    assert deadline_after(events, began=100, deadline=10) == (whose, until)


_STARTING = ProcessesStarted((7, 8), 102.0)


@rows(
    ("events", "whose", "until"),
    [
        ([_STARTING], START, 102 + DEADLINE),
        ([_STARTING, WorkerArmed(7, 105)], START, 102 + DEADLINE),
        ([_STARTING, WorkerArmed(7, 105), WorkerArmed(8, 125)], LOADER, 133),
        ([WorkerArmed(7, 105), _STARTING, WorkerArmed(8, 125)], LOADER, 133),
        ([WorkerArmed(7, 105), WorkerArmed(8, 106), _STARTING], LOADER, 110),
        ([_STARTING, WorkerArmed(7, 105), Turn(HARNESS, 106)], HARNESS, 106 + HARNESS_SECONDS),
        (
            [_STARTING, Turn(HARNESS, 106), WorkerArmed(7, 107), WorkerArmed(8, 108)],
            HARNESS,
            106 + HARNESS_SECONDS,
        ),
        ([ProcessesStarted((7, 8), None)], LOADER, 110),
    ],
)
def test_the_start_of_workers_has_its_own_time(events, whose, until):
    """Until all of them are armed. Those of a recovery never are."""
    assert deadline_after(events, began=100, deadline=10) == (whose, until)


_SPAWNED = {"num_workers": 1, "multiprocessing_context": "spawn"}


@pytest.mark.slow
def test_the_start_of_a_spawned_worker_does_not_count(records):
    slow = partial(time.sleep, 3.5)
    outcome = run_trial(lambda: StartsSlowly(records, slow), loader=_SPAWNED, deadline=3)

    assert (outcome.timed_out, outcome.phase) == (False, DONE)
    assert outcome.duration > 3.5


@rows(
    ("setting", "epochs", "for_trial", "for_look"),
    [
        (None, (), DEADLINE, 2),
        (None, (0.01, 0.02), 10, 2),
        (None, (0.91, 0.5), 19, 3),
        (None, (11.0,), DEADLINE, DEADLINE),
        (5.0, (1.21,), 5, 4),
        (90.0, (1.21,), 90, 4),
        (1.0, (), 1, 1),
    ],
)
def test_a_deadline_follows_from_the_slowest_epoch(setting, epochs, for_trial, for_look):
    deadlines = Deadlines(Settings(deadline=setting))
    for epoch in epochs:
        deadlines.record_epoch(epoch)

    assert (deadlines.for_trial, deadlines.for_look) == (for_trial, for_look)


def test_the_error_is_known_before_the_workers_end(records, monkeypatch):
    def never_end(_self):
        threading.Event().wait()

    monkeypatch.setattr(LoaderDriver, "end_workers", never_end)
    reference = take_reference(lambda: Records(records))
    outcome = run_trial(lambda: Records(records), ReadError("*.rec"), deadline=_SHORT)

    assert (outcome.timed_out, outcome.exception.type) == (True, "OSError")
    judgement = judge_trial(outcome, reference)
    assert judgement.verdict == "leaked"
    assert "OSError was raised, but then the loader's workers did not exit" in judgement.sentence


class _BusyOnce(Records):
    """The other worker takes *_LONGER* seconds over its first sample, once."""

    def __getitem__(self, index: int) -> Any:
        mark = self.paths[0].parent.parent / "mark"
        if index == 1 and not mark.exists():
            mark.touch()
            time.sleep(_LONGER)
        return super().__getitem__(index)


def _raises_while_the_other_works(records):
    loader = {"num_workers": 2, "batch_size": 1}
    fault = ReadError("*/00.rec", times=1)
    return run_trial(lambda: _BusyOnce(records), fault, loader=loader, deadline=_SHORT)


def test_the_clock_stops_when_the_loader_raises(records):
    outcome = _raises_while_the_other_works(records)
    assert (outcome.timed_out, outcome.phase) == (False, DONE)
    assert outcome.exception.type == "OSError"
    assert outcome.duration > _SHORT


def test_our_own_work_has_an_end(records, monkeypatch):
    monkeypatch.setattr(clock, "HARNESS_SECONDS", 1.0)
    with pytest.raises(HarnessError, match="says nothing about the dataset"):
        _raises_while_the_other_works(records)


STOPPED = 5.0
BY_SECOND = 60.0


def _looks(*looks):
    pauses = Pauses(0.0)
    for now, stopped in looks:
        pauses.look(now, stopped=stopped)
    return pauses.found


@pytest.mark.parametrize(
    ("looks", "pauses"),
    [
        ([(1.0, False), (2.1, False)], []),
        ([(1.0, False), (9.0, False), (10.0, False)], [(1.0 + SLICE, 9.0)]),
        ([(1.0, True), (2.0, True), (3.0, False)], [(1.0, 3.0)]),
        ([(1.0, True), (2.0, True)], []),
        ([(1.0, True), (2.0, False), (3.0, True), (4.0, False)], [(1.0, 2.0), (3.0, 4.0)]),
        ([(8.0, True), (8.5, False)], [(SLICE, 8.0), (8.0, 8.5)]),
    ],
)
def test_a_pause_is_what_the_warden_did_not_see(looks, pauses):
    assert _looks(*looks) == pauses


_NEW = PhaseStarted(EPOCH_1, 101)


@pytest.mark.parametrize(
    ("events", "pauses", "expected"),
    [
        ([], [(103, 108)], (LOADER, 115)),
        ([_NEW], [(90, 100.5)], (LOADER, 111)),
        ([_NEW], [(100, 106)], (LOADER, 116)),
        ([_NEW], [(103, 106), (105, 108)], (LOADER, 116)),
        ([_NEW], [(104, 105), (107, 109)], (LOADER, 114)),
        ([_NEW, Turn(HARNESS, 105)], [(103, 104)], (HARNESS, 105 + HARNESS_SECONDS)),
        ([_NEW, Turn(HARNESS, 105), Turn(LOADER, 106)], [(102, 104)], (LOADER, 114)),
        ([_NEW, Turn(HARNESS, 105)], [(104, 107)], (HARNESS, 107 + HARNESS_SECONDS)),
    ],
)
def test_a_pause_is_not_counted(events, pauses, expected):
    assert deadline_after(events, began=100, deadline=10, pauses=pauses) == expected


class WaitsToBeLetOn(Records):
    """The worker announces its first sample, and waits until a byte comes."""

    def __init__(self, folder, mark, descriptor):
        super().__init__(folder)
        self.mark, self.descriptor = mark, descriptor

    def __getitem__(self, index):
        if not self.mark.exists():
            self.mark.touch()
            os.read(self.descriptor, 1)
        return super().__getitem__(index)


ONE_WORKER = {"num_workers": 1, "batch_size": 4}


def _stop_for_a_while(processes):
    for process in processes:
        process.suspend()
    assert until(lambda: all(each.status() == psutil.STATUS_STOPPED for each in processes))
    time.sleep(STOPPED)  # The clock of the trial is what is tested.
    for process in reversed([*processes]):
        process.resume()


@pytest.mark.slow
def test_a_supervisor_that_was_stopped_takes_no_time_of_the_loader(records, tmp_path):
    """The loader has all its time but that; here it uses more than what would be left."""
    mark, (reading, writing) = tmp_path / "mark", os.pipe()
    deadline = STOPPED + 1

    def meddle():
        assert until(mark.exists, BY_SECOND)
        _stop_for_a_while(running_supervisors())
        time.sleep(2)  # Now the whole deadline is over, but not the loader's own time.
        os.write(writing, b".")

    meddler = threading.Thread(target=meddle)
    meddler.start()
    outcome = run_trial(
        lambda: WaitsToBeLetOn(records, mark, reading),
        ReadError("*.none"),
        loader=ONE_WORKER,
        deadline=deadline,
    )
    meddler.join()
    for fd in (reading, writing):
        os.close(fd)
    assert (outcome.timed_out, outcome.phase) == (False, DONE)
    assert outcome.duration > deadline


MANY = range(1000)


def sampled(loader):
    return [list(each.indices) for each in draws_of(loader)]


def drawn(loader, limit=16):
    limit_samples(loader, limit)
    return sampled(loader)


@given(st.integers(1, 500), st.integers(1, 600))
def test_spread_indices(count, limit):
    indices = spread_indices(count, limit)
    assert len(indices) == len(set(indices)) == min(count, limit)
    assert set(indices) <= set(range(count))


@given(st.integers(1, 500), st.integers(1, 100), st.integers(1, 100))
def test_fewer_are_among_more(count, limit, other_limit):
    fewer, larger = sorted([limit, other_limit])
    assert spread_indices(count, fewer) == spread_indices(count, larger)[:fewer]


def test_batches_are_spread_over_the_dataset():
    batches = drawn(DataLoader(MANY, batch_size=4, num_workers=2))
    assert [4] * 4 == list(map(len, batches))
    assert [0, 62, 125, 187] == batches[0]
    assert list(chain(*batches)) == sorted(chain(*batches))


def test_a_shuffled_loader_shuffles_them():
    loader = DataLoader(MANY, batch_size=4, shuffle=True)
    drawn_once = drawn(loader)
    second = sampled(loader)
    assert drawn_once != second
    assert sorted(chain(*drawn_once)) == sorted(chain(*second)) == sorted(spread_indices(1000, 16))


@pytest.mark.parametrize(("size", "sizes"), [(32, [32] * 2), (100, [64] * 2)])
def test_each_worker_makes_a_batch_of_the_loaders_size(size, sizes):
    """Large ones get smaller."""
    assert sizes == list(map(len, drawn(DataLoader(MANY, batch_size=size, num_workers=2))))


@rows(
    ("affordable", "possible", "chosen"),
    [(256, 256, (256, 64)), (255, 255, (128, 64)), (64, 127, (64, 16)), (9, 9, (64, 16))],
)
def test_batches_get_smaller_only_if_there_is_no_time(affordable, possible, chosen):
    loader = DataLoader(MANY, batch_size=100, num_workers=2)
    assert choose_size(loader, 64, affordable, possible) == chosen


def test_a_small_dataset_is_looked_at_whole():
    loader = DataLoader(range(10), batch_size=8, num_workers=2)
    assert [8, 2] == list(map(len, drawn(loader)))
    assert type(loader.batch_sampler) is BatchSampler


OWN = {
    "weighted": lambda: {"sampler": WeightedRandomSampler([1.0] * 1000, 1000), "batch_size": 4},
    "subset": lambda: {"sampler": SubsetRandomSampler(MANY), "batch_size": 4},
    "replacement": lambda: {"sampler": RandomSampler(MANY, replacement=True), "batch_size": 4},
    "list": lambda: {"sampler": list(reversed(MANY)), "batch_size": 4},
    "batches": lambda: {"batch_sampler": [[at, at + 1, at + 2, at + 3] for at in MANY[:-3:4]]},
    "torchs": lambda: {"batch_sampler": BatchSampler(SequentialSampler(MANY), 4, drop_last=True)},
}


@pytest.mark.parametrize("options", OWN.values(), ids=OWN)
def test_a_sampler_of_the_user(options):
    torch.manual_seed(0)
    all_batches = sampled(DataLoader(MANY, **options()))
    torch.manual_seed(0)
    batches = drawn(DataLoader(MANY, num_workers=1, **options()))
    if options is OWN["torchs"]:
        assert [0, 62, 125, 187, 250, 312, 375, 437] == list(chain(*batches[:2]))
    else:
        assert len(batches[0]) * len(batches) in (16, 64)
        assert all_batches[: len(batches)] == batches
