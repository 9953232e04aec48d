"""Any two faults in one schedule: both happen, or the first one leaves nothing for the second."""

import os

import pytest
import torch

from pytest_dataloader_faults import inject
from pytest_dataloader_faults.faults import (
    KINDS,
    ClosedDescriptor,
    CorruptedFile,
    DescriptorExhaustion,
    HungRead,
    OpenError,
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
)
from support.attempts import epoch_of
from support.datasets import Records
from support.epochs import alone
from support.fault_rows import OTHER_KINDS
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
GOING_ON = [each for each in range(FIRST_END) if each != SHARED or torch.__version__ >= (2, 10)]
ENDS = range(FIRST_END, len(FAULTS))


class KeepsGoing(Tries):
    """Reads a file for each sample; at two of them it needs much, or shares a tensor."""

    def __init__(self, paths):
        super().__init__(paths, WAYS["read"])

    def __getitem__(self, index):
        if index == SCARCE:
            return _open_many(self.sources[index])
        if index == SHARED:
            return _share_tensor()
        return super().__getitem__(index).gave


def _open_many(path):
    descriptors = []
    try:
        descriptors.extend(os.open(path, os.O_RDONLY) for _ in range(8))
    except OSError as error:
        return error.errno
    finally:
        for fd in descriptors:
            os.close(fd)
    return len(descriptors)


def _share_tensor():
    try:
        torch.zeros(10).share_memory_()
    except RuntimeError as error:
        return str(error)
    return None


def _iterate_until(loader, end, injection):
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
    excluded = OTHER_KINDS | {WriteError, ShortWrite}
    assert {*KINDS.values()} - excluded == {type(each) for each in FAULTS}


def _names(places):
    return "-".join(type(FAULTS[each]).__name__ for each in places) or "none"


@pytest.mark.parametrize("ends", [(), *((each,) for each in ENDS)], ids=_names)
def test_faults_that_end_no_epoch_leave_others_their_samples(paths, ends):
    """All of them happen in one epoch, and so does what ends it. So any two happen together."""
    faults = [FAULTS[each] for each in (*GOING_ON, *ends)]
    with inject(*faults, require_fired=False) as injection:
        _iterate_until(alone(KeepsGoing(paths)), *(ends or [len(FAULTS)]), injection)
    assert [] == [each.fault for each in injection.faults if not each.fired]


def test_an_open_without_a_free_number_counts_whatever_file_it_is_to_open(records):
    """Otherwise "Too many open files" would be an error without a cause."""
    faults = CorruptedFile("*/00.rec"), TruncatedFile("*/01.rec")
    scope = inject(DescriptorExhaustion(), *faults, require_fired=False)
    with scope as injection:
        for first in range(len(faults)):
            loader = alone(Records(records), sampler=[first, first + 1])
            _, (exhaustion, *_) = epoch_of(injection, loader)
            assert f"{first:02}.rec" in exhaustion.firings[0].path
            assert exhaustion.mentioned
