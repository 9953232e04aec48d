"""Read samples without a fault, by torch's own fetcher [in the disposable process].

So torch decides what a batch is, and whether a dataset has ``__getitems__``, or else the library
that has put a fetcher of its own in the place of torch's.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import pickle
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

from torch.utils.data.dataloader import _DatasetKind

from pytest_dataloader_faults._engine.system.children import ChildCall
from pytest_dataloader_faults._engine.worker.fetch_hooks import (
    ObservedDataset,
    generator_states,
    seed_sample,
)
from pytest_dataloader_faults._trial import loaders
from pytest_dataloader_faults._trial.samples.comparer import (
    Fingerprint,
    SampleComparer,
)
from pytest_dataloader_faults._trial.samples.draws import Draw, Name, name_of, reads_whole_batches
from pytest_dataloader_faults.exceptions import UnusableDatasetError
from pytest_dataloader_faults.outcomes.text import pluralize

if TYPE_CHECKING:
    from torch.utils.data import DataLoader
    from typing_extensions import Self

CALLS_USER_CODE = True

PATIENCE, _TIMES = 2.0, 2
"""How many seconds longer a child may take than this many times its parent."""


class Reading(NamedTuple):
    """A sample, or a batch that is compared as a whole, as it was read once."""

    name: Name | tuple[Name, ...]
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
        patience: How many seconds a child may take, however short its work is.
        lost: The seconds for which a child was waited for in vain.
        may_fork: Whether the dataset survives a fork, as far as that is known.

    """

    loader: DataLoader[Any]
    comparer: SampleComparer
    displaced: int = 0
    patience: float = PATIENCE
    draws_random_numbers: bool = False
    lost: float = 0.0
    may_fork: bool = field(init=False)

    def __post_init__(self) -> None:
        self._states: dict[str, Any] | None = None
        self._indices: Sequence[Any] = ()
        self.may_fork = loaders.start_method_of(self.loader) in ("", "fork")

    @property
    def dataset(self) -> Any:
        """The dataset that is read."""
        return loaders.dataset_of(self.loader)

    def ask(self, call: ChildCall, seconds: float) -> bytes:
        """The answer of *call*, a child; b"" if it fails, and then no other child is asked."""
        began = time.monotonic()
        answer = call.answer(seconds) if self.may_fork else b""
        if not answer:
            self.may_fork = False
            self.lost += time.monotonic() - began
        return answer

    # Samples with indices

    def fetch(self, draw: Draw, change: Callable[[Any], Any] | None = None) -> Any:
        """The batch that a worker makes of *draw*; *change*: of the dataset that it reads."""
        self._states, self._indices = None, draw.indices
        with loaders.report_dataset_errors(self._describe):
            batch = self._make_fetcher(change).fetch(draw.copy_for_worker().drawn)
        self._look_at_generators()
        return batch

    def read_sample(self, draw: Draw) -> Reading:
        """The one sample of *draw*, as a row of its own batch."""
        try:
            batch = self.fetch(draw)
        except loaders.CollateError:  # ``__getitems__`` may have left out the one sample.
            if not reads_whole_batches(self.dataset):
                raise
            batch = self.fetch(draw, _WithoutGetitems)
        return Reading(draw.names[0], self._row_of_one(batch, is_whole=draw.is_whole))

    def read_batch(self, draw: Draw, *, copies: bool = False) -> BatchReading:
        """The batch of *draw*, as its rows."""
        batch = self.fetch(draw, _CopyingDataset if copies else None)
        if draw.is_whole or not self.loader._auto_collation:
            return BatchReading(draw.names, (self._row(batch),))
        count = len(draw.names)  # A ready batch may lack some.
        self._require_split(batch, count)
        counts = range(count, 0, -1) if reads_whole_batches(self.dataset) else [count]
        samples = next(filter(None, (self.comparer.split(batch, each) for each in counts)), None)
        rows = samples and tuple(self._row(each, is_slice=self.comparer.slices) for each in samples)
        return BatchReading(draw.names, rows)

    def read_whole_batch(self, draw: Draw) -> Reading:
        """The batch of *draw*, as one sample."""
        return Reading(draw.names, self._row(self.fetch(draw)))

    def _make_fetcher(self, change: Callable[[Any], Any] | None = None) -> Any:
        is_map = loaders.kind_of(self.dataset) == "map"
        kind = _DatasetKind.Map if is_map else _DatasetKind.Iterable
        collation = self.loader._auto_collation, self._collate, self.loader.drop_last
        create: Any = _DatasetKind.create_fetcher
        fetcher = create(kind, self.dataset, *collation)
        if is_map:
            dataset = change(fetcher.dataset) if change else fetcher.dataset
            is_seeded = self.comparer.comparison.seeded is not None
            fetcher.dataset = ObservedDataset(dataset, self._begin, one_by_one=is_seeded)
        return fetcher

    def _begin(self, indices: Sequence[Any]) -> None:
        """Samples with these *indices* are made next."""
        self._look_at_generators()
        self._indices = indices
        if (start := self.comparer.comparison.seeded) is not None:
            for index in indices:
                seed_sample(start, index - self.displaced if self.displaced else index)
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
        fetcher, place = self._make_fetcher(), 0
        while True:
            try:
                batch = fetcher.fetch([None] if is_batched else None)
            except StopIteration:
                return
            except loaders.CollateError:
                if not place and self._collates_several():
                    self._refuse_batches()
                raise
            if is_batched and not place and self.comparer.split(batch, 1) is None:
                self._refuse_batches()
            parts = () if is_batched else self.comparer.parts(batch)
            yield Reading(place, self._row_of_one(batch), parts)
            place += 1

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
        self._require_key(sample)
        return self.comparer.row(sample, is_slice=is_slice)

    def _require_key(self, value: Any) -> None:
        """Refuse a function of the author's that fails on a sample that no fault has hit."""
        if (key := self.comparer.contract.key) is not None:
            with loaders.report_dataset_errors("the contract's key"):
                key(value)

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


class Way(NamedTuple):
    """How samples are read: in the order of their draws or in the reverse one, from which seed."""

    step: int = -1
    seed: int = 0
    """What is added to the seed of the samples."""


BACKWARD, FORWARD, OTHER_SEED = Way(), Way(step=1), Way(seed=1)


class SamplesAlone:
    """The samples of some draws, each in a batch of its own.

    Children read them, each of which has the dataset as it is now. If one fails, or takes much
    longer than *seconds*, they are read here, where an error is reported.
    """

    seconds = 0.0

    def __init__(self, reader: Reader, draws: Sequence[Draw]) -> None:
        self._reader, self._draws = reader, draws
        self._children = contextlib.ExitStack()
        self._calls: dict[Way, ChildCall] = {}
        ways = [BACKWARD, FORWARD]
        if reader.comparer.comparison.seeded is not None:
            ways.append(OTHER_SEED)
        for way in ways if reader.may_fork else ():
            call = ChildCall(functools.partial(self._pack, way))
            self._calls[way] = self._children.enter_context(call)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._children.close()

    def read(self, way: Way = BACKWARD) -> list[Reading]:
        """The samples, in the order of the draws."""
        seconds = self._reader.patience + _TIMES * self.seconds
        if not (way in self._calls and (answer := self._reader.ask(self._calls[way], seconds))):
            return self._read(way)
        readings, draws_random_numbers = pickle.loads(answer)  # noqa: S301  # our own
        self._reader.draws_random_numbers |= draws_random_numbers
        result: list[Reading] = readings
        return result

    def _pack(self, way: Way) -> bytes:
        return pickle.dumps((self._read(way), self._reader.draws_random_numbers))

    def _read(self, way: Way) -> list[Reading]:
        comparer = self._reader.comparer
        comparison = comparer.comparison
        if comparison.seeded is not None:
            comparer.comparison = replace(comparison, seeded=comparison.seeded + way.seed)
        comparer.begin()
        try:
            return list(map(self._reader.read_sample, self._draws[:: way.step]))[:: way.step]
        finally:
            comparer.comparison = comparison


def time_samples(reader: Reader, draws: Sequence[Draw]) -> list[float]:
    """How many seconds some of the *draws* take each, in a child if possible."""

    def measure() -> list[float]:
        took: list[float] = []
        for draw in draws:
            if sum(took) > reader.patience / 2:
                break
            began = time.monotonic()
            with contextlib.suppress(loaders.CollateError):
                reader.fetch(draw)
            took.append(time.monotonic() - began)
        return took

    packed = b""
    if reader.may_fork:
        with ChildCall(lambda: pickle.dumps(measure())) as call:
            packed = reader.ask(call, reader.patience)
    took: list[float] = pickle.loads(packed) if packed else measure()  # noqa: S301  # our own
    return took


class _WithoutGetitems:
    """A dataset whose samples are requested one by one."""

    __getitems__ = None

    def __init__(self, dataset: Any) -> None:
        self._dataset = dataset

    def __getitem__(self, index: Any) -> Any:
        return self._dataset[index]


class _CopyingDataset:
    """A dataset whose samples are copies: one may return the same buffer again and again."""

    def __init__(self, dataset: Any) -> None:
        self._dataset = dataset

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
