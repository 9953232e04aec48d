"""How many samples a battery looks at, and datasets of which not all is compared."""

import time
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch.utils.data import Dataset, IterableDataset, get_worker_info

from pytest_dataloader_faults import Contract
from pytest_dataloader_faults._settings import Settings
from pytest_dataloader_faults._trial import take_reference
from pytest_dataloader_faults._trial.job import TakeReference
from pytest_dataloader_faults.battery.shares import count_own_samples, take_worker_epoch
from pytest_dataloader_faults.outcomes import Pass, WorkerFacts
from pytest_dataloader_faults.outcomes.agreement import Comparison, Mask
from support.facts import EPOCH_1, batch_of, map_reference, ordinary, revised, stream_reference
from support.random_samples import OwnGeneratorRepeats, Timed, TimedOther
from support.results import failure_of, result_of
from support.rows import rows

NOTE = "64 of 400 samples were checked"


class Many(Dataset[Any]):
    """Four hundred samples that share a file; reads of the later ones may fail unnoticed."""

    def __init__(self, path: Any, *, forgiving_from: int = 400, seconds: float = 0.0) -> None:
        self.path = path
        self.forgiving_from = forgiving_from
        self.seconds = seconds

    def __len__(self) -> int:
        return 400

    def __getitem__(self, index: int) -> Any:
        time.sleep(self.seconds)
        try:
            return torch.tensor([index, len(self.path.read_bytes())])
        except OSError:
            if index < self.forgiving_from:
                raise
            return torch.tensor([index, 0])


@pytest.fixture(name="path")
def _path(tmp_path):
    path = tmp_path / "one.bin"
    path.write_bytes(bytes(100))
    return path


def test_samples_of_the_whole_dataset(path):
    broken = failure_of(lambda: Many(path, forgiving_from=120), "read-error")
    healthy = result_of(lambda: Many(path), "read-error")
    assert ("corrupted", "failed_cleanly") == (broken.verdict, healthy.verdict)
    assert NOTE in broken.explanation
    assert NOTE in healthy.explanation
    assert "samples=" not in healthy.explanation


def test_as_many_samples_as_requested(path):
    result = result_of(lambda: Many(path), "workers-agree", samples=8, deadline="auto")
    assert len(result.outcome.delivered) == 2
    assert "8 of 400 samples were checked" in result.explanation
    assert "samples=8" in result.explanation.splitlines()[-1]


@rows(
    ("loader", "samples", "limit", "batch_size"),
    [
        ({"batch_size": 4, "num_workers": 2}, 64, 8, 4),
        ({"batch_size": 4, "num_workers": 2}, 8, 8, 4),
        ({"batch_size": 200, "num_workers": 100}, 64, 1, 1),
    ],
)
def test_slow_samples_come_in_few_batches_of_the_loaders_size(
    path, loader, samples, limit, batch_size
):
    settings = Settings(loader=loader, samples=samples)
    reference = take_reference(
        lambda: Many(path, seconds=0.002), settings, TakeReference(seconds=0.001)
    )

    assert (reference.limit, reference.batch_size) == (limit, batch_size)


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


def _write_lines(folder, lines):
    for part in range(FILES):
        text = "".join(f"{part * lines + number}\n" for number in range(lines))
        (folder / f"{part}.txt").write_text(text)
    return lambda: Lines(folder)


def test_a_long_stream_is_not_said_to_survive(tmp_path):
    result = result_of(_write_lines(tmp_path, 3000), "truncated-file")
    assert (result.verdict, result.applies) == ("not_exercised", False)
    assert "a finite stream of fewer than 10,000 samples" in result.explanation


def _stream_of_workers(samples):
    deliveries = tuple(batch_of(None, rows, worker) for worker, rows in enumerate(samples))
    return revised(
        ordinary(Pass(EPOCH_1, delivered=deliveries, complete=True)),
        kind="iterable",
        processes=tuple(WorkerFacts(worker, 7, 1, {}) for worker in range(len(samples))),
    )


@rows(
    ("samples", "count"),
    [
        (("abcd", "efgh"), 4),
        (("abcd", "bcde"), 4),
        (("abcd", "abcd"), None),
        (("abcd", "dcba"), None),
        (("wxyz", "efgh"), 4),
        (("wxyz", "yxyz"), None),
        (("wwxx", "yyzz"), None),
        (("wxxx", "efgh"), None),
        (("abcw", "efgx"), 4),
        (("abc", "efgh"), None),
        (("abcd",), None),
    ],
)
def test_workers_of_a_stream_that_draws_have_samples_of_their_own(samples, count):
    """They share three of four at most; if all are the same, it forgot to divide its data.

    A worker whose samples are all in the reference repeats it, unless one does as the main process.
    """
    outcome = _stream_of_workers(samples)

    assert count_own_samples(outcome, stream_reference("w x y z")) == count


def test_few_random_samples_may_be_equal_by_accident():
    """No epoch of workers is what later ones must repeat then."""
    comparison = Comparison(mask=Mask(("",)))
    facts = {"comparison": comparison, "draws": ("x",), "varying": (("", 1),)}
    reference = replace(map_reference(), **facts)

    assert take_worker_epoch(reference, Contract(), 0, pytest.fail) is None


def test_a_time_in_a_sample_hides_no_other_part(records):
    timed = result_of(lambda: Timed(records), "empty-file")
    other = failure_of(lambda: TimedOther(records), "empty-file")

    assert (timed.verdict, other.verdict) == ("failed_cleanly", "corrupted"), timed.explanation
    assert "it has the content of sample 9" in other.explanation
    for (note,) in (timed.notes, other.notes):
        assert note.endswith("zeros returned for them would pass: ['info']['load_time']")
        assert "generator" not in note


SHUFFLED = {"shuffle": True}


def test_a_dataset_that_seeds_itself_and_repeats_a_sample_is_corrupted(records):
    make = lambda: OwnGeneratorRepeats(records)  # noqa: E731
    result = failure_of(make, "truncated-file", loader=SHUFFLED)
    assert result.verdict == "corrupted", result.explanation
    _require_comparison_in_workers(result)


def _require_comparison_in_workers(result):
    assert result.outcome.comparison.in_workers
    assert "so they were compared with the samples that workers returned" in result.notes[0]
