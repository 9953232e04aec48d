"""Every fault under a loader that pins its batches, on a stand-in and on a real accelerator."""

from __future__ import annotations

import itertools

import pytest

from pytest_dataloader_faults import Contract, run_trial
from pytest_dataloader_faults._trial import take_reference
from pytest_dataloader_faults.exceptions import InvalidArgumentError
from pytest_dataloader_faults.faults import (
    KINDS,
    DescriptorExhaustion,
    OpenError,
    PinMemoryThreadDeath,
    SharedMemoryExhaustion,
    WorkerKilled,
    has_connections,
)
from support.datasets import COUNT, Records, write_records
from support.epochs import reserves_shared_memory
from support.fault_rows import FAULTS, PINNED

ROWS = (*FAULTS, *PINNED)
QUICK = {
    OpenError,
    SharedMemoryExhaustion,
    WorkerKilled,
    DescriptorExhaustion,
    PinMemoryThreadDeath,
}


@pytest.fixture(name="folder", scope="module")
def _folder(tmp_path_factory):
    """The files of the dataset."""
    return write_records(tmp_path_factory.mktemp("pinned") / "records")


@pytest.fixture(name="reference", scope="module")
def _reference(folder):
    """What it gives when nothing is wrong."""
    return take_reference(lambda: Records(folder))


def test_every_fault_is_tried():
    """A fault that is added to the vocabulary is tried with pinned loaders, too."""
    kinds = {kind for kind in KINDS.values() if not has_connections(kind())}
    assert kinds == {type(row.fault) for row in ROWS}


def _cases():
    """New workers and persistent ones; of what is alike, one is enough where time counts."""
    for persistent, row in itertools.product([False, True], ROWS):
        takes_time = persistent or type(row.fault) not in QUICK
        name = f"{row.fault!r}{'-persistent' * persistent}"
        marks = [pytest.mark.slow] * takes_time
        marks += [reserves_shared_memory] * isinstance(row.fault, SharedMemoryExhaustion)
        yield pytest.param(row, persistent, id=name, marks=marks)


@pytest.mark.parametrize(("row", "persistent"), list(_cases()))
def test_fault_is_judged(folder, reference, row, accelerator, persistent):
    """As it is without pinning: the thread between worker and loop hides nothing."""
    fault = (persistent and row.later) or row.fault
    options = {**row.loader, "num_workers": 2, "batch_size": 2, "pin_memory": True}

    outcome = run_trial(
        lambda: Records(folder),
        fault,
        loader={**options, "persistent_workers": persistent},
        epochs=1 + persistent,
    )

    judgement = outcome.judge(reference, Contract(detects_corruption=True))
    assert row.verdict == judgement.verdict, (judgement.sentence, outcome.exception, outcome.stderr)
    assert outcome.fired
    assert sum(len(each.indices) for each in outcome.recovery.delivered) == COUNT


@pytest.mark.parametrize(
    "options", [{"num_workers": 0, "pin_memory": True}, {"num_workers": 1}], ids=["alone", "plain"]
)
def test_loader_without_the_thread_is_refused(folder, options):
    """Nothing could happen to it."""
    with pytest.raises(InvalidArgumentError, match="needs a thread that pins batches"):
        run_trial(lambda: Records(folder), PinMemoryThreadDeath(), loader=options)
