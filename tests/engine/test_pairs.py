"""Any two faults in one schedule: both happen, or the first one leaves nothing for the second."""

from __future__ import annotations

import itertools
import os

import pytest
import torch

from pytest_dataloader_faults import inject, run_trial
from pytest_dataloader_faults.faults import (
    KINDS,
    ClosedDescriptor,
    CorruptedFile,
    DescriptorExhaustion,
    HungRead,
    OpenError,
    PinMemoryThreadDeath,
    ReadError,
    SharedMemoryExhaustion,
    ShortRead,
    ShortWrite,
    SlowRead,
    TruncatedFile,
    WorkerExited,
    WorkerHung,
    WorkerKilled,
    WriteError,
    has_connections,
)
from support.datasets import Records, write_records
from support.epochs import alone, reserves_shared_memory
from support.tries import WAYS, Tries
from support.waiting import until

FAULTS = (
    OpenError("*/00.rec"),
    ReadError("*/01.rec"),
    ShortRead("*/02.rec"),
    TruncatedFile("*/03.rec"),
    CorruptedFile("*/04.rec"),
    ClosedDescriptor("*/05.rec"),
    SlowRead("*/06.rec", seconds=0.01),
    DescriptorExhaustion(headroom=4),
    SharedMemoryExhaustion(),
    HungRead("*/09.rec"),
    WorkerHung(at=11),
    WorkerExited(3, at=12),
    WorkerKilled(at=13),
)
"""Each is due at the sample of its place here. What ends an epoch comes last."""
SCARCE, SHARED, FIRST_END = 7, 8, 9
PAIRS = list(itertools.combinations(range(len(FAULTS)), 2))


class KeepsGoing(Tries):
    """Reads a file for each sample; at two of them it needs much, or shares a tensor."""

    def __init__(self, paths):
        super().__init__(paths, WAYS["read"])

    def __getitem__(self, index):
        if index == SCARCE:
            return _open_many(self.sources[index])
        if index == SHARED:
            return _share()
        return super().__getitem__(index).gave


def _open_many(path):
    taken = []
    try:
        taken.extend(os.open(path, os.O_RDONLY) for _ in range(8))
    except OSError as error:
        return error.errno
    finally:
        for fd in taken:
            os.close(fd)
    return len(taken)


def _share():
    try:
        torch.zeros(10).share_memory_()
    except RuntimeError as error:
        return str(error)
    return None


def _loop(loader, end, injection):
    """Take what comes before the first fault that ends it, and leave as that one demands."""
    iterator = iter(loader)
    for _ in range(min(end, len(loader))):
        next(iterator)
    if end < len(FAULTS):
        _leave(iterator, end, injection)
    iterator._shutdown_workers()


def _leave(iterator, end, injection):
    assert until(lambda: injection.workers[0].fetches > end)
    if isinstance(FAULTS[end], (HungRead, WorkerHung)):
        iterator._timeout = 0.1  # The worker is at that batch: nothing slow is to be waited for.
    with pytest.raises(RuntimeError, match=r"DataLoader (worker|timed out)"):
        next(iterator)
    assert until(lambda: FAULTS[end] in [each.fault for each in injection.faults if each.fired])


def test_every_kind_is_here():
    """A fault that is added to the vocabulary is added here, if it needs files and workers only."""
    others = {PinMemoryThreadDeath, WriteError, ShortWrite}
    others |= {kind for kind in KINDS.values() if has_connections(kind())}
    assert set(KINDS.values()) - others == {type(each) for each in FAULTS}


def _cases():
    for pair in PAIRS:
        name = "-".join(type(FAULTS[each]).__name__ for each in pair)
        yield pytest.param(pair, marks=[reserves_shared_memory] * (SHARED in pair), id=name)


@pytest.fixture(name="facts_of", scope="module")
def _facts_of(tmp_path_factory):
    """The injection of an epoch that has a pair, shared with the other pairs that may have it.

    A fault that ends no epoch leaves each other its own sample. So all of them are in one schedule,
    alone or before one that ends the epoch. Any two of those that end it have their own epoch.
    """
    folder = write_records(tmp_path_factory.mktemp("pairs") / "records")
    paths = [str(path) for path in sorted(folder.iterdir())]
    without = () if torch.__version__ >= (2, 10) else (SHARED,)
    going_on = [each for each in range(FIRST_END) if each not in without]
    made = {}

    def facts_of(pair):
        ends = tuple(each for each in pair if each >= FIRST_END)
        if ends not in made:
            armed = ends if len(ends) > 1 else (*going_on, *ends)
            with inject(*(FAULTS[each] for each in armed), require_fired=False) as injection:
                _loop(alone(KeepsGoing(paths)), next(iter(ends), len(FAULTS)), injection)
            made[ends] = dict(zip(armed, injection.faults, strict=True)), injection.unfired()
        facts, unfired = made[ends]
        return [facts[each] for each in pair], unfired

    return facts_of


@pytest.mark.parametrize("pair", list(_cases()))
def test_pair(facts_of, pair):
    """The scope ends without an error of ours, whichever two are armed."""
    facts, unfired = facts_of(pair)
    first, second = (bool(each.fired) for each in facts)
    assert first
    if pair[0] < FIRST_END:
        assert second
    elif not second:
        assert "no operation matched it" in unfired


@pytest.mark.parametrize("engine", ["kernel", "python"])
@pytest.mark.parametrize(
    "fault", [CorruptedFile("*"), TruncatedFile("*"), ClosedDescriptor("*", reuse=True)], ids=str
)
def test_an_open_without_a_free_number_counts_whatever_file_it_is_to_open(records, engine, fault):
    """Otherwise "Too many open files" would be an error without a cause."""
    loader = {"num_workers": 1}
    outcome = run_trial(
        lambda: Records(records), DescriptorExhaustion(), fault, loader=loader, engine=engine
    )
    exhaustion, _ = outcome.faults
    assert exhaustion.fired
    assert exhaustion.surfaced
