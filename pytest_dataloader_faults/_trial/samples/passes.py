"""Passes over a dataset without a fault [in the disposable process].

torch's own fetcher reads the samples, so torch decides what a batch is, and whether a dataset has
``__getitems__``, or else the library that has put a fetcher of its own in the place of torch's.

Some facts about what would hide a defect. A dataset may change the samples that it keeps. So each
pass is made by a child process, which has the dataset as it was before the first read, as a worker
has. A dataset may return the same buffer for each sample, so a batch is made of copies.

Some facts about datasets that only workers can read. A ``worker_init_fn`` may open the handle that
samples are read from, as many recipes for HDF5 do, and a dataset may refuse to be read outside of a
worker. A stream may also refuse any number of workers but the one that it was made for, as streams
of energon do.
"""

from __future__ import annotations

import contextlib
import copy
import pickle
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, NoReturn, TypeVar

from torch.utils.data import DataLoader
from torch.utils.data.dataloader import _DatasetKind

from pytest_dataloader_faults._engine.system.children import run_in_child
from pytest_dataloader_faults._engine.worker.arm import end_with_parent
from pytest_dataloader_faults._engine.worker.fetch_hooks import (
    ObservedDataset,
    generator_states,
    seed_sample,
)
from pytest_dataloader_faults._trial import loaders
from pytest_dataloader_faults._trial.samples.comparer import Fingerprint, SampleComparer
from pytest_dataloader_faults._trial.samples.draws import Draw, Name, name_of, reads_whole_batches
from pytest_dataloader_faults.exceptions import UnusableDatasetError
from pytest_dataloader_faults.outcomes.text import pluralize

CALLS_USER_CODE = True

_Result = TypeVar("_Result")


class Reading(NamedTuple):
    """A sample, or a batch that is compared as a whole, as it was read once.

    The samples of a stream have no names.
    """

    name: Name | tuple[Name, ...] | None
    row: Fingerprint
    parts: tuple[str, ...] = ()
    """The digests of its rows, if a stream makes its own batches."""


class BatchReading(NamedTuple):
    """A batch, as it was read once; *rows* are None if it cannot be split into samples."""

    names: tuple[Name, ...]
    rows: Sequence[Fingerprint] | None


@dataclass
class Reader:
    """Reads samples of *loader*'s dataset, and makes their fingerprints.

    Attributes:
        displaced: By how much the index whose random numbers a sample gets is less than its own.
        draws_random_numbers: Whether samples that are seeded draw numbers from the global
            generators of torch, NumPy or Python.

    """

    loader: DataLoader[Any]
    comparer: SampleComparer
    displaced: int = 0
    draws_random_numbers: bool = False

    def __post_init__(self) -> None:
        self._states: dict[str, Any] | None = None
        self._indices: Sequence[Any] = ()
        self._seed = 0
        """What is added to the seed of samples."""
        self._may_fork = loaders.start_method_of(self.loader) in ("", "fork")

    @property
    def dataset(self) -> Any:
        """The dataset that is read."""
        return loaders.dataset_of(self.loader)

    def run_in_child(self, read: Callable[[], _Result], seconds: float) -> _Result:
        """What *read* returns in a child.

        If the child fails, or takes longer than *seconds*, *read* is called here, where an error is
        reported, and no other child is asked: the dataset may not survive a fork.
        """
        packed = b""
        if self._may_fork:
            packed = run_in_child(
                lambda: pickle.dumps((read(), self.draws_random_numbers)), seconds
            )
            self._may_fork = bool(packed)
        if not packed:
            return read()
        result, draws_random_numbers = pickle.loads(packed)  # noqa: S301  # our own
        self.draws_random_numbers |= draws_random_numbers
        answer: _Result = result
        return answer

    # Samples with indices

    def fetch(self, draw: Draw, *, one_by_one: bool = False) -> Any:
        """The batch that a worker makes of *draw*; *one_by_one*: without ``__getitems__``."""
        self._states, self._indices = None, draw.indices
        with loaders.report_dataset_errors(self._describe):
            fetcher = self._make_fetcher()
            if loaders.kind_of(self.dataset) == "map":
                dataset = _CopyingDataset(fetcher.dataset, one_by_one=one_by_one)
                is_seeded = self.comparer.comparison.seeded is not None
                fetcher.dataset = ObservedDataset(dataset, self._begin, one_by_one=is_seeded)
            batch = fetcher.fetch(draw.copy_for_worker().drawn)
        self._look_at_generators()
        return batch

    def read_alone(self, draws: Sequence[Draw], seed: int = 0) -> list[Reading]:
        """The one sample of each draw; *seed* is added to the seed of each."""
        self.comparer.begin()
        self._seed = seed
        try:
            return list(map(self._read_sample, draws))
        finally:
            self._seed = 0

    def _read_sample(self, draw: Draw) -> Reading:
        try:
            batch = self.fetch(draw)
        except loaders.CollateError:  # ``__getitems__`` may have left out the one sample.
            if not reads_whole_batches(self.dataset):
                raise
            batch = self.fetch(draw, one_by_one=True)
        return Reading(draw.names[0], self._row_of_one(batch, is_whole=draw.is_whole))

    def read_batches(self, draws: Sequence[Draw]) -> list[BatchReading]:
        """The batch of each draw, as its rows."""
        return list(map(self._read_batch, draws))

    def _read_batch(self, draw: Draw) -> BatchReading:
        batch = self.fetch(draw)
        if draw.is_whole or not self.loader._auto_collation:
            return BatchReading(draw.names, (self._row(batch),))
        count = len(draw.names)  # A ready batch may lack some.
        self._require_split(batch, count)
        counts = range(count, 0, -1) if reads_whole_batches(self.dataset) else [count]
        samples = next(filter(None, (self.comparer.split(batch, each) for each in counts)), None)
        rows = samples and tuple(self._row(each, is_slice=self.comparer.slices) for each in samples)
        return BatchReading(draw.names, rows)

    def read_whole_batches(self, draws: Sequence[Draw]) -> list[Reading]:
        """The batch of each draw, as one sample."""
        return [Reading(each.names, self._row(self.fetch(each))) for each in draws]

    def _make_fetcher(self) -> Any:
        is_map = loaders.kind_of(self.dataset) == "map"
        kind = _DatasetKind.Map if is_map else _DatasetKind.Iterable
        collation = self.loader._auto_collation, self._collate, self.loader.drop_last
        create: Any = _DatasetKind.create_fetcher
        return create(kind, self.dataset, *collation)

    def _begin(self, indices: Sequence[Any]) -> None:
        """Samples with these *indices* are made next."""
        self._look_at_generators()
        self._indices = indices
        if (start := self.comparer.comparison.seeded) is not None:
            for index in indices:
                same_as = index - self.displaced if self.displaced else index
                seed_sample(start + self._seed, same_as)
            self._states = None if self.draws_random_numbers else generator_states()

    def _look_at_generators(self) -> None:
        """Find out whether the last sample has drawn numbers."""
        if self._states is not None:
            self.draws_random_numbers |= generator_states(self._states) != self._states

    def _describe(self) -> str:
        """What fails now."""
        name, indices = type(self.dataset).__name__, ", ".join(map(_describe_index, self._indices))
        is_batch = self.loader._auto_collation and reads_whole_batches(self.dataset)
        return f"{name}.__getitems__([{indices}])" if is_batch else f"{name}[{indices}]"

    def _collate(self, samples: Any) -> Any:
        advice = (
            ". A DataLoader with this collate_fn cannot make a batch of them either: pass another"
            " one, as in loader={'collate_fn': ...}, or batch_size=None"
        )
        action = f"collating samples of {type(self.dataset).__name__}"
        with loaders.report_dataset_errors(action, advice, loaders.CollateError):
            return self.loader.collate_fn(samples)

    # Samples of a stream

    def read_stream(self) -> Iterator[Reading]:
        """The samples of the stream, each as a row of its own batch.

        Batches of an iterable differ with the workers; only their samples can be compared.
        """
        is_batched = self.loader._auto_collation
        fetcher, is_first = self._make_fetcher(), True
        while True:
            try:
                batch = fetcher.fetch([None] if is_batched else None)
            except StopIteration:
                return
            except loaders.CollateError:
                if is_first and self._collates_several():
                    self._refuse_batches()
                raise
            if is_batched and is_first and self.comparer.split(batch, 1) is None:
                self._refuse_batches()
            parts = () if is_batched else self.comparer.parts(batch)
            yield Reading(None, self._row_of_one(batch), parts)
            is_first = False

    def _collates_several(self) -> bool:
        """Whether the first samples of the stream can be made into a batch."""
        with contextlib.suppress(loaders.CollateError, StopIteration):
            self._make_fetcher().fetch([None] * (self.loader.batch_size or 1))
            return True
        return False

    def _refuse_batches(self) -> NoReturn:
        message = (
            f"the batches of {type(self.dataset).__name__} cannot be split into samples, and an"
            " iterable dataset has no indices that say what a batch should contain, so nothing"
            " can be compared. Pass batch_size=None, or define Contract(split=...)"
        )
        raise UnusableDatasetError(message)

    # What is compared

    def _row_of_one(self, batch: Any, *, is_whole: bool = False) -> Fingerprint:
        """The row of a batch of one sample; *is_whole*: it cannot be split."""
        is_batch = self.loader._auto_collation and not is_whole
        if is_batch and (samples := self.comparer.split(batch, 1)):
            return self._row(samples[0], is_slice=self.comparer.slices)
        return self._row(batch)

    def _row(self, sample: Any, *, is_slice: bool = False) -> Fingerprint:
        """The row of *sample*. The key of the contract must not fail: no fault has hit it."""
        if (key := self.comparer.contract.key) is not None:
            with loaders.report_dataset_errors("the contract's key"):
                key(sample)
        return self.comparer.row(sample, is_slice=is_slice)

    def _require_split(self, batch: Any, count: int) -> None:
        """Refuse a function of the author's that does not split *batch* into *count* samples."""
        contract_split = self.comparer.contract.split
        if contract_split is None or reads_whole_batches(self.dataset):
            return
        with loaders.report_dataset_errors("the contract's split"):
            samples = len(list(contract_split(batch)))
        if samples != count:
            message = (
                f"the contract's split divides a batch of {pluralize(count, 'sample')} into"
                f" {samples}. It must return the list of its samples"
            )
            raise UnusableDatasetError(message)


def time_samples(reader: Reader, draws: Sequence[Draw], seconds: float) -> list[float]:
    """How many seconds some of the *draws* take each; for half of *seconds* at most, in a child."""

    def measure() -> list[float]:
        took: list[float] = []
        for draw in draws:
            if sum(took) > seconds / 2:
                break
            began = time.monotonic()
            with contextlib.suppress(loaders.CollateError):
                reader.fetch(draw)
            took.append(time.monotonic() - began)
        return took

    return reader.run_in_child(measure, seconds)


class _CopyingDataset:
    """A dataset whose samples are copies; *one_by_one*: it is asked for one sample at a time."""

    def __init__(self, dataset: Any, *, one_by_one: bool) -> None:
        self._dataset = dataset
        if one_by_one:
            self.__getitems__ = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._dataset, name)

    def __getitem__(self, index: Any) -> Any:
        sample = self._dataset[index]
        try:
            return copy.deepcopy(sample)
        except Exception:  # noqa: BLE001  # It holds what has no copy, as an open file.
            return sample


def _describe_index(index: Any) -> str:
    name = name_of(index)
    return repr(name) if type(index) is str else str(name)


# Passes in workers


def read_in_workers(
    loader: DataLoader[Any], read: Callable[[], _Result]
) -> tuple[list[_Result], bool]:
    """What *read* returns in a worker of *loader*, and whether it needs all of its workers.

    A stream is read in one worker, which has all of it, or else in as many as *loader* has. Nothing
    is returned if a worker died.

    Raises:
        UnusableDatasetError: The dataset cannot be read in workers either.
    """
    replies = _read_in_workers(loader, read, 1)
    is_stream = loaders.kind_of(loaders.dataset_of(loader)) == "iterable"
    if is_stream and any(isinstance(each, UnusableDatasetError) for each in replies):
        of_all = _read_in_workers(loader, read, loader.num_workers)
        if of_all and not any(isinstance(each, UnusableDatasetError) for each in of_all):
            return of_all, True
    for reply in replies:
        if isinstance(reply, UnusableDatasetError):
            raise reply
    return replies, False


def _read_in_workers(loader: DataLoader[Any], read: Callable[[], Any], count: int) -> list[Any]:
    """What each of *count* workers replies, maybe an error; nothing if one of them died."""
    dataset = loaders.dataset_of(loader)
    options: dict[str, Any] = {} if loaders.kind_of(dataset) == "iterable" else {"sampler": [0]}
    options |= {"batch_size": None, "multiprocessing_context": "fork", "num_workers": count}
    task = _ReadInWorker(read, loader.worker_init_fn)
    try:
        return list(DataLoader(dataset, worker_init_fn=task, **options))
    except RuntimeError:  # A worker has exited.
        return []


class _ReadInWorker:
    """A ``worker_init_fn`` that runs the user's own; then *read* makes the one batch."""

    def __init__(self, read: Callable[[], Any], init_fn: Callable[[int], object] | None) -> None:
        self._read, self._then = read, init_fn

    def __call__(self, worker: int) -> None:
        """Run in the worker, before it makes its fetcher."""
        end_with_parent(at_once=True)
        reply = self._reply(worker)
        _DatasetKind.create_fetcher = lambda *_: _OneBatch(reply)  # type: ignore[method-assign]

    def _reply(self, worker: int) -> Any:
        try:
            with loaders.report_dataset_errors("worker_init_fn"):
                if self._then is not None:
                    self._then(worker)
            return self._read()
        except UnusableDatasetError as error:
            return error


class _OneBatch:
    """A fetcher that makes one batch, and then is at the end."""

    def __init__(self, batch: Any) -> None:
        self._batches = [batch]

    def fetch(self, _: Any) -> Any:
        if not self._batches:
            raise StopIteration
        return self._batches.pop()
