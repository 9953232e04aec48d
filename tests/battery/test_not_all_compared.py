"""Datasets of which not all is compared: long streams, and samples that no seed repeats."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import IterableDataset, TensorDataset, get_worker_info

from pytest_dataloader_faults import check_dataset

FILES = 4


class Lines(IterableDataset[Any]):
    """The lines of text files, whose number nobody compares; files are shared among workers."""

    def __init__(self, folder):
        self.paths = sorted(folder.glob("*.txt"))

    def __iter__(self):
        info = get_worker_info()
        for path in self.paths[info.id :: info.num_workers] if info else self.paths:
            with path.open() as file:
                yield from map(int, file)


def _check(folder, lines, check):
    for part in range(FILES):
        text = "".join(f"{part * lines + number}\n" for number in range(lines))
        (folder / f"{part}.txt").write_text(text)
    (result,) = check_dataset(lambda: Lines(folder), only=check, on_fail=None)
    return result


@pytest.mark.parametrize("check", ["truncated-half", "truncated-empty"])
def test_what_a_stream_leaves_out_is_seen_where_all_of_it_is_looked_at(tmp_path, check):
    """Its samples are compared, each with its content."""
    assert _check(tmp_path, 500, check).verdict == "corrupted"


@pytest.mark.parametrize("check", ["truncated-half", "truncated-empty"])
def test_a_long_stream_is_not_said_to_survive(tmp_path, check):
    """Of its first samples only the types are compared, which shows nothing of files."""
    result = _check(tmp_path, 3000, check)
    assert (result.verdict, result.applies) == ("not_exercised", False)
    assert "a stream that ends, with fewer than 10,000 samples" in result.explanation


class OfItsOwnGenerator(TensorDataset):
    """Draws from a generator that nobody seeds."""

    def __getitem__(self, index):
        return super().__getitem__(index)[0] + np.random.default_rng().random()


@pytest.mark.parametrize(("kind", "is_noted"), [(OfItsOwnGenerator, True), (TensorDataset, False)])
def test_a_comparison_of_shapes_alone_is_noted(kind, is_noted):
    """Each result says that the content of random samples was not compared, and what to do."""
    data = kind(torch.arange(16.0))
    (result,) = check_dataset(lambda: data, only="worker-killed-first", on_fail=None)
    assert any("only their types and shapes were compared" in each for each in result.notes) == (
        is_noted
    )
