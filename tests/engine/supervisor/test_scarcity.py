"""No room in shared memory, and no descriptor left for the loader itself."""

import os

import pytest
import torch
from torch.utils.data import DataLoader

from pytest_dataloader_faults import Verdict, inject, run_trial
from pytest_dataloader_faults._settings import Settings
from pytest_dataloader_faults._trial import take_reference
from pytest_dataloader_faults.faults import SharedMemoryExhaustion
from support.datasets import Records
from support.epochs import epoch, reserves_shared_memory
from support.judging import judge_trial
from support.rows import slow

NO_ROOM = "unable to allocate shared memory"


def _remaining_segments(facts):
    """What is still there of the segments that there was no room for."""
    return [firing.path for firing in facts.firings if os.path.exists(firing.path)]


def _loader(records, **options):
    return DataLoader(Records(records), **{"batch_size": 4, "num_workers": 1, **options})


def _collate_data(samples):
    """A collate function that does not share by itself, as torch's own does in a worker."""
    return torch.stack([data for data, _ in samples])


@reserves_shared_memory
def test_torchs_collate_function_reports_it(records):
    """It asks for shared memory itself, so that the error is the fetch's."""
    with inject(SharedMemoryExhaustion()) as injection:
        read = epoch(_loader(records, num_workers=2))
    assert [] == read.batches
    assert NO_ROOM in read.text
    assert "No space left on device" in read.text
    firing = injection.faults[0].firings[0]
    assert ("fallocate", True) == (firing.call, firing.path.startswith("/dev/shm/torch_"))
    assert (1, [0, 0]) == (injection.mentioned, read.exit_codes)
    assert [] == _remaining_segments(injection.faults[0])


@reserves_shared_memory
def test_there_may_be_room_again(records):
    with inject(SharedMemoryExhaustion(times=1)) as injection:
        iterator = iter(_loader(records))
        with pytest.raises(RuntimeError, match=NO_ROOM):
            next(iterator)
        assert 3 == len(list(iterator))
    assert injection.fired == 1
    assert injection.matched > 1


@reserves_shared_memory
@pytest.mark.parametrize(
    "options",
    [
        pytest.param({"collate_fn": _collate_data}, id="collate_fn"),
        slow({"batch_size": None}, id="batch_size"),
    ],
)
def test_a_collate_function_of_ones_own_hangs(records, options):
    """It is shared where torch passes it on, which drops the error and waits forever."""

    def make():
        return Records(records)

    loader = {"num_workers": 1, "batch_size": 4, **options}
    outcome = run_trial(make, SharedMemoryExhaustion(), loader=loader, deadline=2.0)
    judgement = judge_trial(outcome, take_reference(make, Settings(loader=loader)))
    assert Verdict.HUNG == judgement.verdict, judgement.sentence
    assert NO_ROOM in outcome.stderr
    assert outcome.fired
    assert [] == _remaining_segments(outcome.faults[0])
