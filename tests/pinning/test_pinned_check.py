"""The check ``pinned``: what becomes of batches in the thread that pins them."""

from __future__ import annotations

import functools

import pytest
import torch
from torch.utils.data import DataLoader

from pytest_dataloader_faults import check_dataset
from pytest_dataloader_faults._trial import accelerator
from pytest_dataloader_faults._trial.accelerator import missing_accelerator
from support.accelerators import REAL
from support.batches import (
    Batch,
    CannotBePinned,
    ForgetsItself,
    KeepsOnDevice,
    KeepsPinned,
    Pair,
    Shuffled,
    Unpinned,
    as_pair,
)
from support.datasets import Records

slow = functools.partial(pytest.param, marks=pytest.mark.slow)


def _check(records, collate):
    def make():
        return DataLoader(Records(records), batch_size=4, num_workers=1, collate_fn=collate)

    return check_dataset(make, only="pinned", on_fail=None)[0]


@pytest.mark.parametrize("collate", [None, Batch, slow(Unpinned), slow(as_pair)])
def test_sound_batches_pass(accelerator, records, collate):
    """Tensors, a class with a pin_memory() that returns itself and one with none, named tuples."""
    result = _check(records, collate)
    assert (result.verdict, result.passed) == ("survived", True), result.explanation


@pytest.mark.parametrize(
    ("collate", "verdict", "says"),
    [
        slow(ForgetsItself, "corrupted", "batch 0"),
        (Shuffled, "corrupted", "batch 0"),
        (CannotBePinned, "broken", "RuntimeError"),
    ],
)
def test_batches_that_pinning_spoils_fail(accelerator, records, collate, verdict, says):
    """Without an accelerator nobody would see it."""
    result = _check(records, collate)
    assert (result.verdict, result.failed) == (verdict, True), result.explanation
    assert says in result.explanation.splitlines()[0]
    assert "needs a pin_memory() that returns the batch" in result.explanation


def test_pinned_memory_that_is_kept_is_leaked(accelerator, records):
    """It is counted by torch, and on a machine without an accelerator by the stand-in."""
    result = _check(records, KeepsPinned)
    assert (result.verdict, result.failed) == ("leaked", True), result.explanation
    said = "KiB more pinned memory in the loader's process and never frees it"
    assert said in result.explanation.splitlines()[0]


@pytest.mark.parametrize("accelerator", [pytest.param("real", marks=REAL)], indirect=True)
def test_memory_of_the_device_that_is_kept_is_leaked(accelerator, records):
    """A kind of memory that only a device has."""
    result = _check(records, KeepsOnDevice)
    assert (result.verdict, result.failed) == ("leaked", True), result.explanation
    assert "KiB more memory of the accelerator" in result.explanation.splitlines()[0]


def test_tensors_are_copied_wherever_a_batch_has_them():
    """To the device "meta" here, which every machine has; what is not torch's stays as it is."""
    tensor, other = torch.ones(2), object()
    batch = {"a": [tensor, (tensor, "text")], "b": Pair(tensor, other)}

    copied = accelerator.copied(batch, torch.device("meta"))

    assert type(copied["b"]) is Pair
    assert [copied["a"][1][1], copied["b"].labels] == ["text", other]
    tensors = [copied["a"][0], copied["a"][1][0], copied["b"].images]
    assert {each.device.type for each in tensors} == {"meta"}


def test_nothing_is_in_use_before_an_accelerator_is_used():
    """Asking does not start one: nobody could fork workers that use it any more."""
    assert accelerator.bytes_in_use() == {"pinned": 0, "device": 0}


def test_without_an_accelerator_it_does_not_apply(records, monkeypatch):
    """And says why."""
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: False)
    missing_accelerator.cache_clear()
    result = _check(records, None)
    assert (result.verdict, result.applies) == ("not_exercised", False)
    assert "finds no accelerator" in result.explanation
