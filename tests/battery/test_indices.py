"""Indices, ``__getitems__`` and attributes of any kind: the loader looks at what torch looks at."""

from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from pytest_dataloader_faults import check_dataset
from pytest_dataloader_faults._trial.samples.draws import name_of
from support.datasets import Records
from support.odd_datasets import (
    Stream,
    plain_loop,
)
from support.odd_indices import KINDS, AnyIndex, Cut, Silent, Sized, Window, mixed
from support.results import failure_of, result_of
from support.rows import rows, slow


def identity(batch: Any) -> Any:
    return batch


class ReadyBatches(Records):
    """Gives a stacked batch of several, as a ``TensorDict`` of many rows does."""

    def __getitem__(self, index: Any) -> Any:
        return {"data": super().__getitem__(index)[0], "index": torch.tensor(index)}

    def __getitems__(self, indices: list[int]) -> Any:
        samples = [self._load(index) for index in indices]
        return {name: torch.stack([each[name] for each in samples]) for name in samples[0]}

    def _load(self, index: int) -> Any:
        return self[index]


class ZerosInReadyBatches(ReadyBatches):
    """Has zeros instead of what it cannot read."""

    def _load(self, index: int) -> Any:
        try:
            return self[index]
        except OSError:
            return {"data": torch.zeros(64), "index": torch.tensor(index)}


class OnlyTogether(ReadyBatches):
    """Has batches without samples, because a loader never requests one."""

    def __getitem__(self, index: Any) -> Any:
        raise NotImplementedError

    def _load(self, index: int) -> Any:
        return ReadyBatches.__getitem__(self, index)


class FewerInReadyBatches(ReadyBatches):
    """Leaves the last sample out of each batch of several."""

    def __getitems__(self, indices: list[int]) -> Any:
        return super().__getitems__(indices[:-1] or indices)


class Together(Records):
    """Gives a list of samples, as torch's documentation says."""

    def __getitems__(self, indices: list[int]) -> Any:
        return [self[index] for index in indices]


class BatchesOfLists(Together):
    """Gives a ready batch that is a list: the data and the indices."""

    def __getitems__(self, indices: list[int]) -> Any:
        data, numbers = zip(*super().__getitems__(indices), strict=True)
        return [torch.stack(data), torch.tensor(numbers)]


pytestmark = pytest.mark.usefixtures("engine")


def _run_checks(make: Any, check: str = "workers-agree", **options: Any) -> Any:
    return result_of(make, check, **options)


def _loader(dataset: Any, **options: Any) -> Any:
    return lambda: DataLoader(dataset, num_workers=2, **options)


class BySlice(AnyIndex):
    """Takes tuples of slices, as samplers of maps yield them, and integers."""

    def __len__(self) -> int:
        return 16

    def __getitem__(self, index: Any) -> Any:
        is_slice = isinstance(index, tuple)
        return torch.arange(index[0].start, index[0].stop) if is_slice else torch.tensor(index)


@pytest.mark.parametrize(
    "options",
    [{"batch_sampler": [[0, 1], [2, 3], [4, 5]]}, {"sampler": [5, 2, 3], "batch_size": 2}],
    ids=lambda options: next(iter(options)),
)
def test_a_loader_with_a_sampler_needs_no_length(options):
    assert _run_checks(_loader(AnyIndex(), **options)).verdict == "survived"


@pytest.mark.parametrize(
    ("sampler", "drawn"),
    [
        ([(slice(0, 4),), (slice(4, 8),)], ["(slice(0, 4, None),)", "(slice(4, 8, None),)"]),
        ([[0, 1], [2, 3]], ["[0, 1]", "[2, 3]"]),
    ],
    ids=["slices", "lists"],
)
def test_indices_that_have_no_hash(sampler, drawn):
    result = _run_checks(_loader(BySlice(), batch_size=None, sampler=sampler))
    assert result.verdict == "survived"
    assert [names for (names,) in result.outcome.epochs[0].drawn] == drawn


@pytest.mark.parametrize("size", [None, 2])
def test_indices_of_every_kind(size):
    make = _loader(AnyIndex(), sampler=mixed(2), batch_size=size)
    assert _run_checks(make).verdict == "survived"


@rows(
    ("index", "name"),
    [
        (3, 3),
        (np.int64(3), 3),
        (torch.tensor(3), 3),
        (True, 1),
        ("key", "key"),
        (torch.tensor([3]), "Tensor([3])"),
        (np.array([[1, 2]]), "ndarray([[1, 2]])"),
        (slice(0, np.int64(4)), "slice(0, 4, None)"),
        ((3,), "(3,)"),
        ({"b": 1, "a": (2, 3)}, "{('b', 1), ('a', (2, 3))}"),
    ],
    ids=repr,
)
def test_names_of_plain_indices(index, name):
    """An integer is its number, whatever its class; all else is named as Python prints it."""
    assert name_of(index) == name


def test_names_of_objects():
    samples = [Cut(1), Cut(2), Silent(1), Sized(1), Window(1), Window(1, 5), torch.arange(2000)]
    names = [name_of(each) for each in samples]
    assert len({*names}) == len(samples)
    assert not [name for name in names if "0x" in str(name) or len(str(name)) > 100]
    assert [name_of(KINDS[kind](1)) for kind in ("cut", "silent")] == [names[0], names[2]]
    assert names[4].startswith("Window(start=1, length=4) #")


READY = {"collate_fn": identity, "batch_size": 4, "num_workers": 2}


def _verdicts(dataset: Any, folder: Any, loader: Any, *checks: str) -> list[str]:
    results = check_dataset(lambda: dataset(folder), only=checks, loader=loader, on_fail=None)
    return [each.verdict for each in results]


@pytest.mark.parametrize(
    ("dataset", "loader"),
    [
        (OnlyTogether, READY),
        (BatchesOfLists, READY),
    ],
)
def test_what_gives_several_samples_at_once(dataset, loader, records):
    verdicts = _verdicts(dataset, records, loader, "workers-agree", "read-error")

    assert verdicts == ["survived", "failed_cleanly"]


@pytest.mark.parametrize(
    ("dataset", "check"),
    [(ZerosInReadyBatches, "read-error"), slow(FewerInReadyBatches, "workers-agree")],
)
def test_ready_batches_that_are_wrong(dataset, check, records):
    assert failure_of(lambda: dataset(records), check, loader=READY).verdict == "corrupted"


def _verdict(dataset, **options):
    return _run_checks(dataset, **options).verdict


def test_a_stream_whose_last_samples_are_dropped():
    options = {"batch_size": 3, "drop_last": True, "num_workers": 2}
    assert len(plain_loop(Stream(), **options)) == 2
    assert _verdict(Stream, loader=options) == "survived"
