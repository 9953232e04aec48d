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
from support.datasets import Records
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


@pytest.mark.parametrize("pair", list(_cases()))
def test_pair(records, pair):
    """The scope ends without an error of ours, whichever two are armed."""
    paths = [str(path) for path in sorted(records.iterdir())]
    end = next((each for each in pair if each >= FIRST_END), len(FAULTS))
    with inject(*(FAULTS[each] for each in pair), require_fired=False) as injection:
        _loop(alone(KeepsGoing(paths)), end, injection)
    first, second = (bool(each.fired) for each in injection.faults)
    assert first
    if pair[0] < FIRST_END:
        assert second
    elif not second:
        assert "no operation matched it" in injection.unfired()


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
