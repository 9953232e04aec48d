"""Batches whose rows depend on each other, as where a collate_fn pads them."""

from typing import Any

import pytest
import torch
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, Dataset

from pytest_dataloader_faults import Contract, check_dataset
from pytest_dataloader_faults.exceptions import InvalidArgumentError, UnusableDatasetError

CHECK = "read-error"


def _samples(batch):
    """The sequences in a padded batch: none of them holds a zero."""
    return [row[row != 0] for row in batch]


class Sequences(Dataset[Any]):
    """Sequences of several lengths, one for each byte of a file."""

    def __init__(self, path: Any, *, forgiving: bool = False) -> None:
        self.path = path
        self.forgiving = forgiving
        self.count = len(path.read_bytes())

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Any:
        try:
            length = self.path.read_bytes()[index]
        except OSError:
            if not self.forgiving:
                raise
            length = 2
        return torch.arange(1, length + 1)


def _pad(samples):
    return pad_sequence(samples, batch_first=True)


class InOrders(list[list[int]]):
    """A sampler that draws the next of these orders in each epoch, and the last one again."""

    epoch = -1

    def __len__(self) -> int:
        return len(self[0])

    def __iter__(self) -> Any:
        self.epoch += 1
        return iter([*super().__iter__()][min(self.epoch, 1)])


def test_one_short_sample(tmp_path):
    """Batches are padded only if they have that sample, which not every epoch draws."""
    first, second, short = list(range(8)), list(range(8, 16)), 9
    path = tmp_path / "lengths"
    path.write_bytes(bytes(7 if index == short else 8 for index in range(16)))

    def make(**options):
        sampler = InOrders([first, second])
        dataset = Sequences(path, **options)
        return DataLoader(dataset, 4, sampler=sampler, num_workers=2, collate_fn=_pad)

    options = {"only": ["workers-agree", "two-epochs", CHECK], "samples": len(first)}
    healthy = check_dataset(make, **options)
    forgiving = check_dataset(lambda: make(forgiving=True), on_fail=None, **options)
    assert [each.verdict for each in healthy] == ["survived", "survived", "failed_cleanly"]
    assert [each.verdict for each in forgiving] == ["survived", "survived", "corrupted"]


def _pad_what_is_there(samples):
    tensors = [each for each in samples if each is not None]
    return _pad(tensors) if tensors else None


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


def test_without_the_promise_the_sample_is_missed(path):
    result = _run_checks(path, contract=Contract(split=_samples))
    assert (result.verdict, result.failed) == ("corrupted", True)
    assert "[1] is missing" in result.explanation.splitlines()[0]


BAD = {
    "raises": (lambda batch: batch.nothing, "the contract's split failed without a fault"),
    "too few": (lambda batch: batch[1:], "divides a batch of 4 samples into 3"),
}


@pytest.mark.parametrize(("split", "message"), BAD.values(), ids=BAD)
def test_a_function_that_does_not_take_them_apart(path, split, message):
    with pytest.raises(UnusableDatasetError, match=message):
        _run_checks(path, contract=Contract(split=split))


def test_what_is_no_function():
    with pytest.raises(InvalidArgumentError, match="split=4 must be a function or None"):
        Contract(split=4)
