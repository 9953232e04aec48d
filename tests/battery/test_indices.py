"""Indices of any kind, and batches whose rows depend on each other, as where they are padded."""

from typing import Any

import numpy as np
import pytest
import torch
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, Dataset

from pytest_dataloader_faults import Contract, check_dataset
from pytest_dataloader_faults._trial.samples import name_of
from pytest_dataloader_faults.exceptions import InvalidArgumentError, UnusableDatasetError
from support.datasets import Records
from support.odd_datasets import Stream
from support.odd_indices import KINDS, AnyIndex, Cut, Silent, Sized, Window, mixed
from support.results import failure_of, result_of
from support.rows import rows

pytestmark = pytest.mark.usefixtures("engine")


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
    def _load(self, index: int) -> Any:
        try:
            return self[index]
        except OSError:
            return {"data": torch.zeros(64), "index": torch.tensor(index)}


class Together(Records):
    """Gives a list of samples, as torch's documentation says."""

    def __getitems__(self, indices: list[int]) -> Any:
        return [self[index] for index in indices]


class BatchesOfLists(Together):
    def __getitems__(self, indices: list[int]) -> Any:
        data, numbers = zip(*super().__getitems__(indices), strict=True)
        return [torch.stack(data), torch.tensor(numbers)]


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
    assert result_of(_loader(AnyIndex(), **options), "workers-agree").verdict == "survived"


@pytest.mark.parametrize(
    ("sampler", "drawn"),
    [
        ([(slice(0, 4),), (slice(4, 8),)], ["(slice(0, 4, None),)", "(slice(4, 8, None),)"]),
        ([[0, 1], [2, 3]], ["[0, 1]", "[2, 3]"]),
    ],
    ids=["slices", "lists"],
)
def test_indices_that_have_no_hash(sampler, drawn):
    result = result_of(_loader(BySlice(), batch_size=None, sampler=sampler), "workers-agree")
    assert result.verdict == "survived"
    assert [names for (names,) in result.outcome.epochs[0].drawn] == drawn


def test_indices_of_every_kind():
    make = _loader(AnyIndex(), sampler=mixed(2), batch_size=2)
    assert result_of(make, "workers-agree").verdict == "survived"


@rows(
    ("index", "name"),
    [
        (3, 3),
        (np.int64(3), 3),
        (torch.tensor(3), 3),
        (True, 1),
        ("key", "key"),
        (slice(0, 4), "slice(0, 4, None)"),
        ((3,), "(3,)"),
        ({"b": 1, "a": (2, 3)}, "{'b': 1, 'a': (2, 3)}"),
    ],
    ids=repr,
)
def test_names_of_plain_indices(index, name):
    """An integer is its number, whatever its class; all else is named as Python prints it."""
    assert name_of(index) == name


def test_names_of_objects():
    arrays = [np.array([[1, 2]]), torch.tensor([3]), torch.arange(2000)]
    samples = [Cut(1), Cut(2), Silent(1), Sized(1), Window(1), Window(1, 5), *arrays]
    names = [name_of(each) for each in samples]
    assert len({*names}) == len(samples)
    assert not [name for name in names if "0x" in str(name) or len(str(name)) > 100]
    assert [name_of(KINDS[kind](1)) for kind in ("cut", "silent")] == [names[0], names[2]]
    assert names[4].startswith("Window(start=1, length=4) #")


READY = {"collate_fn": identity, "batch_size": 4, "num_workers": 2}


def _verdicts(dataset: Any, folder: Any, loader: Any, *checks: str) -> list[str]:
    results = check_dataset(lambda: dataset(folder), only=checks, loader=loader, on_fail=None)
    return [each.verdict for each in results]


def test_what_gives_several_samples_at_once(records):
    verdicts = _verdicts(BatchesOfLists, records, READY, "workers-agree", "read-error")

    assert verdicts == ["survived", "failed_cleanly"]


def test_ready_batches_that_are_wrong(records):
    result = failure_of(lambda: ZerosInReadyBatches(records), "read-error", loader=READY)
    assert result.verdict == "corrupted"


def test_a_stream_whose_last_samples_are_dropped():
    options = {"batch_size": 3, "drop_last": True, "num_workers": 2}
    assert result_of(Stream, "workers-agree", loader=options).verdict == "survived"


def _samples(batch):
    """The sequences in a padded batch: none of them holds a zero."""
    return [row[row != 0] for row in batch]


class Sequences(Dataset[Any]):
    def __init__(self, path: Any) -> None:
        self.path = path
        self.count = len(path.read_bytes())

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Any:
        return torch.arange(1, self.path.read_bytes()[index] + 1)


def _pad_what_is_there(samples):
    tensors = [each for each in samples if each is not None]
    return pad_sequence(tensors, batch_first=True) if tensors else None


class Skipping(Sequences):
    """Gives None for a sample that it cannot read, and another one too few."""

    def __getitem__(self, index: int) -> Any:
        try:
            return super().__getitem__(index)
        except OSError:
            return None


@pytest.fixture(name="path")
def _path(tmp_path):
    path = tmp_path / "lengths"
    path.write_bytes(bytes([3, 5, 7, 9] * 4))
    return path


def _run_checks(path, **options):
    (result,) = check_dataset(
        lambda: Skipping(path),
        loader={"collate_fn": _pad_what_is_there},
        only="read-error-once",
        on_fail=None,
        **options,
    )
    return result


def test_a_function_that_takes_batches_apart(path):
    result = _run_checks(path, contract=Contract(may_skip=True, split=_samples))
    assert result.verdict == "survived", result.explanation
    assert "2 samples hit by a fault are missing" in result.explanation


def test_a_split_is_required(path):
    with pytest.raises(InvalidArgumentError, match=r"Contract\(split=\.\.\.\)"):
        _run_checks(path, contract=Contract(may_skip=True))


BAD = {
    "raises": (lambda batch: batch.nothing, "the contract's split raised AttributeError"),
    "too few": (lambda batch: batch[1:], "divides a batch of 4 samples into 3"),
}


@pytest.mark.parametrize(("split", "message"), BAD.values(), ids=BAD)
def test_a_function_that_does_not_take_them_apart(path, split, message):
    with pytest.raises(UnusableDatasetError, match=message):
        _run_checks(path, contract=Contract(split=split))
