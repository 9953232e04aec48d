"""Trials that share a process find what they find alone, and others do not share one."""

from __future__ import annotations

import mmap
import os
from dataclasses import replace
from functools import partial

import pytest
import torch
from torch.utils.data import DataLoader, Sampler

from pytest_dataloader_faults import check_dataset
from pytest_dataloader_faults._settings.jobs import TrialJob, TrialOptions
from pytest_dataloader_faults._trial import run_chain, take_reference
from pytest_dataloader_faults.battery._battery import Battery
from pytest_dataloader_faults.battery.chains import TrialChain
from pytest_dataloader_faults.faults import OpenError, ReadError, ShortRead
from pytest_dataloader_faults.steps import Arm, Disarm, run_epochs
from support.datasets import Records, RecordStream
from support.specimens import ZerosOnError

SOME = ("open-error", "permission-denied", "read-error", "truncated-half", "corrupted-file")
"""The first one is alone: it shows that new workers recover."""


FAULTS = (
    (OpenError("*/03.rec"), ReadError("*.none")),
    (ShortRead("*.rec", max_bytes=32),),
    (ReadError("*.none"),),
)


class Noted(Records):
    """Notes each process that makes it."""

    def __init__(self, folder, noted):
        super().__init__(folder)
        with open(noted, "a", encoding="ascii") as file:
            file.write(f"{os.getpid()}\n")


def _alone(monkeypatch):
    """Have each trial run in a process of its own."""
    monkeypatch.setattr(TrialChain, "run", lambda _chain, _request: None)


def _facts(make_dataset, **options):
    """What does not differ from run to run, of each result."""
    results = check_dataset(make_dataset, on_fail=None, only=SOME, **options)
    return [
        (
            each.check,
            each.verdict,
            each.sentence,
            each.cause,
            [(facts.fault, facts.matched, facts.fired) for facts in each.outcome.faults],
            [(epoch.phase, epoch.complete, epoch.batches) for epoch in each.outcome.epochs],
            {entry.kind for entry in each.outcome.timeline},
        )
        for each in results
    ]


def _processes(noted, make_dataset, **options):
    """How many processes make a dataset for the checks."""
    noted.unlink(missing_ok=True)
    check_dataset(make_dataset, on_fail=None, only=SOME, **options)
    return len(noted.read_text().split())


@pytest.fixture
def noted(tmp_path):
    return tmp_path / "noted"


def test_results_are_those_of_trials_alone(records, monkeypatch):
    chained = _facts(lambda: Records(records))
    _alone(monkeypatch)

    assert chained == _facts(lambda: Records(records))


def test_failures_are_those_of_trials_alone(records, monkeypatch):
    chained = _facts(lambda: ZerosOnError(records))
    _alone(monkeypatch)

    assert chained == _facts(lambda: ZerosOnError(records))


def test_trials_share_a_process(records, noted, monkeypatch):
    make_dataset = partial(Noted, records, noted)
    chained = _processes(noted, make_dataset)
    _alone(monkeypatch)

    # corrupted-file has two trials, and open-error is alone.
    assert _processes(noted, make_dataset) - chained == len(SOME) - 1


def test_each_part_of_a_process_has_its_own_facts(records):
    """The faults are armed in turn, by one supervisor."""
    parts = [TrialJob(make_dataset=lambda: Records(records), faults=each) for each in FAULTS]
    (process,) = run_epochs()
    arm, disarm = process.index(Arm()), process.index(Disarm()) + 1
    armed = [step for each in FAULTS for step in (Arm(each), *process[arm + 1 : disarm])]
    options = TrialOptions(processes=((*process[:arm], *armed, *process[disarm:]),))

    outcomes = run_chain(replace(parts[0], faults=sum(FAULTS, ()), options=options), parts)

    assert [outcome.schedule for outcome in outcomes] == list(FAULTS)
    assert [[facts.fired for facts in each.faults] for each in outcomes] == [[1, 0], [16], [0]]
    assert [[epoch.complete for epoch in each.epochs] for each in outcomes] == [
        [False],
        [True],
        [True],
    ]
    assert [len(each.workers) for each in outcomes] == [2, 2, 2]
    assert all(each.recovery and each.recovery.complete for each in outcomes)
    errors = [each.exception and each.exception.message for each in outcomes]
    assert "03.rec" in errors[0]
    assert errors[1:] == [None, None]
    reference = take_reference(parts[0].make_dataset)
    verdicts = [each.judge(reference).verdict for each in outcomes]
    assert verdicts == ["failed_cleanly", "survived", "not_exercised"]


def test_a_trial_counts_if_it_draws_and_uses_as_much_as_alone(records):
    run = Battery(lambda: Records(records)).fault_free_run
    chain = TrialChain(run, lambda _name: (), ())
    outcome = run.run_trial(*FAULTS[1])
    epoch, recovery = outcome.passes
    first, *others = outcome.processes

    assert chain._is_like_alone(outcome)
    # As if it had a cache, or a sampler with a state.
    assert not chain._is_like_alone(replace(outcome, processes=(replace(first, files={}), *others)))
    reordered = replace(epoch, drawn=epoch.drawn[::-1])
    assert not chain._is_like_alone(replace(outcome, passes=(reordered, recovery)))


def test_each_trial_has_its_own_time(records):
    results = check_dataset(lambda: Records(records), only=SOME, on_fail=None)

    for result in results:
        times = [entry.time for entry in result.outcome.timeline if entry.text == "epoch 1 starts"]
        assert len(times) == 1
        assert times[0] <= result.outcome.duration
    assert len({result.outcome.duration for result in results}) > 1


class DiesOfDamage(Noted):
    """Ends its worker if a record is damaged."""

    def __getitem__(self, index):
        record, index = super().__getitem__(index)
        if record.tolist() != list(range(index, index + len(record))):
            os._exit(3)
        return record, index


class SharesMemory(Noted):
    """Keeps in memory of all workers whether a file could not be read."""

    def __init__(self, folder, noted):
        super().__init__(folder, noted)
        self.seen = mmap.mmap(-1, mmap.PAGESIZE)


class SharesTensor(Noted):
    """The same, by torch."""

    def __init__(self, folder, noted):
        super().__init__(folder, noted)
        self.seen = torch.zeros(16).share_memory_()


class SharesOffset(Noted):
    """Has a file open, whose offset its workers share."""

    def __init__(self, folder, noted):
        super().__init__(folder, noted)
        self.file = open(__file__, "rb")


class WritesNext(Noted):
    """Writes a file next to each that it reads."""

    def __getitem__(self, index):
        with open(f"{self.paths[index].parent}-{index}", "wb") as file:
            file.write(b"read")
        return super().__getitem__(index)


class NextOrder(Sampler):
    """Another order in each epoch of a process."""

    def __init__(self, count):
        self.order = list(range(count))

    def __len__(self):
        return len(self.order)

    def __iter__(self):
        yield from self.order
        self.order.append(self.order.pop(0))


def _in_next_order(records, noted):
    dataset = Noted(records, noted)
    return DataLoader(dataset, batch_size=4, num_workers=2, sampler=NextOrder(len(dataset)))


class OwnLoader(DataLoader):
    """A loader with an iteration of its own."""

    def __iter__(self):
        yield from super().__iter__()


def _own_loader(records, noted):
    return OwnLoader(Noted(records, noted), batch_size=4, num_workers=2)


def _kept_workers(records, noted):
    return DataLoader(Noted(records, noted), 4, num_workers=2, persistent_workers=True)


class Draws(Noted):
    """Random samples."""

    def __getitem__(self, index):
        record, index = super().__getitem__(index)
        return record, index, torch.rand(1)


class NotedStream(RecordStream):
    """A stream of the same records."""

    def __init__(self, folder, noted):
        super().__init__(folder)
        with open(noted, "a", encoding="ascii") as file:
            file.write(f"{os.getpid()}\n")


@pytest.mark.parametrize(
    "make_dataset",
    [
        DiesOfDamage,
        SharesMemory,
        SharesTensor,
        SharesOffset,
        WritesNext,
        Draws,
        NotedStream,
        _in_next_order,
        _own_loader,
        _kept_workers,
    ],
)
def test_what_trials_share_is_left_to_trials_alone(records, noted, monkeypatch, make_dataset):
    results = _facts(partial(make_dataset, records, noted))
    chained = len(noted.read_text().split())
    _alone(monkeypatch)
    noted.unlink()

    assert results == _facts(partial(make_dataset, records, noted))
    # One trial may have been in vain.
    assert chained - len(noted.read_text().split()) in (0, 1)
