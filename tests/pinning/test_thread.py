"""The thread that pins: how it ends, what torch says then, and what a trial makes of it."""

from __future__ import annotations

import re

import pytest
import torch
from torch.utils.data import DataLoader

from pytest_dataloader_faults import run_trial
from pytest_dataloader_faults._trial import take_reference
from pytest_dataloader_faults.faults import (
    DescriptorExhaustion,
    PinMemoryThreadDeath,
    WorkerHung,
    WorkerKilled,
)
from pytest_dataloader_faults.outcomes import FiringKind
from support.batches import CannotBePinned, Fields, Frozen, HangsPinning, Unpinned
from support.datasets import COUNT, Records

LOADER = {"num_workers": 2, "batch_size": 2, "pin_memory": True}


def _try(records, *faults, deadline=30.0, **options):
    """What comes of *faults*, and the judgement."""

    def make():
        return Records(records)

    outcome = run_trial(make, *faults, loader={**LOADER, **options}, deadline=deadline)
    return outcome, outcome.judge(take_reference(make, loader={"batch_size": 2}))


def test_thread_that_ends_is_told_without_the_cause(accelerator, records):
    """The cause is printed, and a trial keeps that. Nothing is said of ``ulimit``."""
    outcome, judgement = _try(records, DescriptorExhaustion(where="loader"))

    assert judgement.verdict == "failed_cleanly", judgement.sentence
    assert "Pin memory thread exited unexpectedly" in outcome.exception.message
    assert "ulimit" not in outcome.exception.text
    assert re.search("Too many open files|received 0 items of ancdata", outcome.stderr)


def test_thread_that_ends_within_the_timeout_is_told_as_a_timeout(accelerator, records):
    """Only where no timeout is set does torch look for the thread."""
    outcome, judgement = _try(records, PinMemoryThreadDeath(), timeout=1)

    assert "DataLoader timed out after 1 seconds" in outcome.exception.message
    assert "PinMemoryThreadDeath" in outcome.stderr
    assert judgement.verdict == "failed_unclearly"


def test_error_while_pinning_comes_in_the_batch_s_place(accelerator, records):
    """At once, with its text; the batches before it came."""
    death = PinMemoryThreadDeath(at=3, stage="pin")
    outcome, judgement = _try(records, death, num_workers=1)  # Of two, batches race.

    assert judgement.verdict == "failed_cleanly", judgement.sentence
    assert "in pin memory thread for device 0" in outcome.exception.text
    assert len(outcome.delivered) == 2
    assert [each.kind for each in outcome.faults[0].firings] == [FiringKind.THREAD]


def test_batch_that_cannot_be_pinned_is_an_error_of_its_own(accelerator, records):
    """No fault of ours: a class whose pin_memory() raises."""
    outcome = run_trial(lambda: Records(records), loader={**LOADER, "collate_fn": CannotBePinned})

    assert outcome.exception.type == "RuntimeError"
    assert "no page can be locked" in outcome.exception.message


def test_pinning_that_hangs_blocks_the_loader_s_end(accelerator, records):
    """Torch raises the timeout, and then joins the thread without a limit."""
    options = {**LOADER, "collate_fn": HangsPinning, "timeout": 0.5}
    outcome = run_trial(lambda: Records(records), loader=options, deadline=2)

    assert outcome.timed_out
    assert "timed out after 0.5 seconds" in outcome.exception.message


def test_worker_that_dies_while_the_thread_waits_is_told(accelerator, records):
    """The thread has had no batch yet; SIGCHLD comes to the loader, not to it."""
    outcome, judgement = _try(records, WorkerKilled(), num_workers=1)

    assert judgement.verdict == "failed_cleanly", judgement.sentence
    assert "killed by signal: Killed" in outcome.exception.text
    assert outcome.delivered == ()


def test_worker_that_hangs_is_ended_by_the_timeout(accelerator, records):
    """As without pinning; and a fresh pass gives every sample."""
    outcome, judgement = _try(records, WorkerHung(at=2, worker=None), timeout=1)

    assert judgement.verdict == "failed_cleanly", judgement.sentence
    assert "DataLoader timed out after 1 seconds" in outcome.exception.message
    assert sum(len(each.indices) for each in outcome.recovery.delivered) == COUNT


def test_class_that_torch_does_not_know_is_not_pinned(monkeypatch, records):
    """And nobody says so. Its tensors are those that the worker shared."""
    pinned = []
    monkeypatch.setattr(
        torch.Tensor, "pin_memory", lambda tensor, *_: pinned.append(tensor) or tensor
    )

    assert torch.utils.data._utils.pin_memory.pin_memory(Unpinned(_samples(records))) is not None
    assert pinned == []


@pytest.mark.parametrize(("kind", "comes_as"), [(Fields, Fields), (Frozen, dict)])
def test_container_comes_as_what_torch_can_make_of_it(kind, comes_as, monkeypatch, records):
    """A mapping that can be changed is copied; one that cannot be made again becomes a dict."""
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda tensor, *_: tensor)
    batch = kind(images=torch.stack([image for image, _ in _samples(records)]))

    assert type(torch.utils.data._utils.pin_memory.pin_memory(batch)) is comes_as


def _samples(records):
    return [Records(records)[index] for index in range(2)]


def test_loader_without_workers_has_no_thread(accelerator, records):
    """It pins in the loop itself."""
    loader = DataLoader(Records(records), batch_size=4, pin_memory=True)

    assert not hasattr(iter(loader), "_pin_memory_thread")
