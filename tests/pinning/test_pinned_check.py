"""The check ``pinned``: what becomes of batches in the thread that pins them."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest
import torch
from torch.utils.data import DataLoader

from pytest_dataloader_faults import check_dataset
from pytest_dataloader_faults._accelerator import missing_accelerator
from support.accelerators import ACCELERATORS, pretend
from support.datasets import Records


class Batch:
    """A batch of a class of its own, which torch pins by asking it to."""

    def __init__(self, samples: list[Any]) -> None:
        self.images = torch.stack([image for image, _ in samples])
        self.labels = torch.tensor([label for _, label in samples])

    def pin_memory(self) -> Any:
        """Itself, pinned."""
        self.images = self.images.pin_memory()
        return self


class Unpinned(Batch):
    """One that torch does not know how to pin, and passes on as it is."""

    pin_memory = None


class ForgetsItself(Batch):
    """Pins in place, and forgets to return itself."""

    def pin_memory(self) -> Any:
        """None."""
        self.images = self.images.pin_memory()


class CannotBePinned(Batch):
    """Fails while it is pinned."""

    def pin_memory(self) -> Any:
        """Nothing."""
        raise RuntimeError("no page can be locked")


class Pair(NamedTuple):
    """A batch that torch takes apart and puts together again."""

    images: Any
    labels: Any


class Shuffled(Batch):
    """Comes out of the thread in another order."""

    def pin_memory(self) -> Any:
        """Itself, but not as it was."""
        self.images = self.images.flip(0)
        return self


def _as_pair(samples: list[Any]) -> Pair:
    return Pair(*torch.utils.data.default_collate(samples))


@pytest.fixture(name="accelerator", params=ACCELERATORS)
def _accelerator(request, monkeypatch):
    """One is there, or is taken for there."""
    if request.param is pretend:
        pretend(monkeypatch.setattr)
    missing_accelerator.cache_clear()
    yield
    missing_accelerator.cache_clear()


def _check(records, collate):
    def make():
        return DataLoader(Records(records), batch_size=4, num_workers=2, collate_fn=collate)

    return check_dataset(make, only="pinned", on_fail=None)[0]


@pytest.mark.parametrize("collate", [None, Batch, _as_pair])
def test_sound_batches_pass(accelerator, records, collate):
    """Tensors, a class with a pin_memory() that returns itself, named tuples."""
    result = _check(records, collate)
    assert (result.verdict, result.passed) == ("survived", True), result.explanation


@pytest.mark.parametrize(
    ("collate", "verdict", "says"),
    [
        (ForgetsItself, "corrupted", "batch 0"),
        (Shuffled, "corrupted", "batch 0"),
        (CannotBePinned, "failed_cleanly", "RuntimeError"),
    ],
)
def test_batches_that_pinning_spoils_are_convicted(accelerator, records, collate, verdict, says):
    """Without an accelerator nobody would see it."""
    result = _check(records, collate)
    assert (result.verdict, result.failed) == (verdict, True), result.explanation
    assert says in result.explanation.splitlines()[0]
    assert "needs a pin_memory() that returns the batch" in result.explanation


def test_without_an_accelerator_it_does_not_apply(records, monkeypatch):
    """And says why."""
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: False)
    missing_accelerator.cache_clear()
    result = _check(records, None)
    assert (result.verdict, result.applies) == ("not_exercised", False)
    assert "finds no accelerator" in result.explanation
