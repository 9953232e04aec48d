"""What a pass over a loader delivers, and passes without a fault [in the disposable process].

The judge compares records of samples only, and does not need the samples.
"""

from __future__ import annotations

import contextlib
import copy
import pickle
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NoReturn, TypeVar

from torch.utils.data.dataloader import _DatasetKind

from pytest_dataloader_faults._engine.fetch_hooks import (
    ObservedDataset,
    generator_states,
    seed_sample,
)
from pytest_dataloader_faults._engine.system.processes import ChildCall
from pytest_dataloader_faults._trial import loaders
from pytest_dataloader_faults._trial.samplers import try_user_code
from pytest_dataloader_faults._trial.samples import (
    Draw,
    digest_of,
    digest_of_rows,
    name_of,
    reads_whole_batches,
    rows_of,
    split,
    take_apart,
    without_batch,
)
from pytest_dataloader_faults.exceptions import UnusableDatasetError
from pytest_dataloader_faults.outcomes import Batch, Sample
from pytest_dataloader_faults.outcomes.agreement import EXACT, ZEROS, Comparison, Part
from pytest_dataloader_faults.outcomes.contract import Contract
from pytest_dataloader_faults.outcomes.text import pluralize

# Some facts about what would hide a defect. A dataset may change the samples that it keeps. So only
# the first pass without a fault is made here. The next ones are made by child processes, which have
# the dataset as it was before the first read, as a worker has. A dataset may return the same buffer
# for each sample, so its batches are made of copies. torch's own fetcher makes them, so torch
# decides what a batch is, and whether a dataset has ``__getitems__``, or else the library that has
# put a fetcher of its own in the place of torch's.


CALLS_USER_CODE = True

_Result = TypeVar("_Result")
_MOST_SAMPLES, _MOST_PARTS = 256, 16
"""How many parts of samples are reported. People read them, and an outcome must stay small."""


@dataclass
class SampleComparer:
    """Makes the records of all samples of one trial or reference."""

    comparison: Comparison = EXACT
    contract: Contract = field(default_factory=Contract)
    loader: Any = None
    _reported: int = 0

    def begin(self) -> None:
        """Begin a pass: the parts of its first samples are reported."""
        self._reported = 0

    def take_apart(self, value: Any) -> Sample:
        """*value*, or its key, as a sample with all parts, which has no digest yet."""
        return Sample("", parts=tuple(take_apart(self._key_of(value))))

    def split(self, batch: Any, count: int) -> list[Any] | None:
        """The samples of *batch*; None if it is not of *count* samples."""
        if (contract_split := self.contract.split) is None:
            samples = try_user_code(lambda: split(batch, count), None)
        else:  # The reference has tried it.
            samples = try_user_code(lambda: list(contract_split(batch)), None)
        return samples if samples and len(samples) == count else None

    def _digests_of_rows(self, batch: Any) -> tuple[str, ...]:
        """The digests of the rows of *batch*, which a stream has made; none if it lacks rows."""
        if self.comparison.by_form or self.contract.key is not None:
            return ()
        return try_user_code(
            lambda: tuple(digest_of(take_apart(row)) for row in rows_of(batch)), ()
        )

    def _key_of(self, value: Any) -> Any:
        """What is compared of *value*: all of it if the key fails, as it may under a fault."""
        key = self.contract.key  # It was tried on the reference, where it must work.
        return value if key is None else try_user_code(lambda: key(value), value)

    def digest(self, parts: Iterable[Part]) -> str:
        """The digest of what is compared of the *parts* of a sample."""
        return digest_of(self.comparison.reduce(parts))

    def record(self, sample: Sample) -> Sample:
        """The record of *sample*, with its first parts unless many have been reported already."""
        self._reported += 1
        compared = self.comparison.reduce(sample.parts)
        # A batch cannot have the content of another sample.
        large = [each for each in compared if each.is_large and not self.comparison.in_batches]
        zeros = f"{ZEROS} " if all(each.digest == ZEROS for each in large) else ""
        content = zeros + digest_of(large) if large else ""
        reported = sample.parts[:_MOST_PARTS] if self._reported <= _MOST_SAMPLES else ()
        return Sample(digest_of(compared), content, reported)

    def record_batch(self, batch: Any, draw: Draw | None, max_samples: int | None = None) -> Batch:
        """The record of *batch*, as the loop has received it; the arguments of ``split_batch``.

        Its digest is that of all parts, whatever is compared of them.
        """
        undigested = self.split_batch(batch, draw, max_samples)
        digests = (digest_of(sample.parts) for sample in undigested.samples)
        digest = next(digests) if undigested.is_whole else digest_of_rows(digests)
        samples = tuple(map(self.record, undigested.samples))
        return replace(undigested, samples=samples, digest=digest)

    def split_batch(self, batch: Any, draw: Draw | None, max_samples: int | None = None) -> Batch:
        """The samples of *batch*, or the whole if it is compared so, or cannot be split.

        *draw* is what the sampler requested; None for a stream. *max_samples*: how many samples it
        has at most, if that is not the batch size of the loader.
        """
        names = None if draw is None else draw.names
        size = max_samples or self.loader.batch_size or 1
        rows = None if self.comparison.in_batches else self._rows(batch, draw, size)
        if rows is None:
            return Batch(names, (self.take_apart(batch),), is_whole=True)
        is_own = draw is None and not self.loader._auto_collation
        return Batch(names, rows, rows=self._digests_of_rows(batch) if is_own else ())

    def _rows(self, batch: Any, draw: Draw | None, size: int) -> tuple[Sample, ...] | None:
        """The samples in *batch*, which may be fewer than were requested, or than its *size*."""
        indices = None if draw is None else draw.names
        if not self.loader._auto_collation or (draw and draw.is_whole):
            return (self.take_apart(batch),)
        if batch is None or indices == () or _is_empty(batch):
            return ()
        largest = size if indices is None else len(indices)
        counts = range(largest, 0, -1)
        return next((rows for count in counts if (rows := self._split_rows(batch, count))), None)

    def _split_rows(self, batch: Any, count: int) -> tuple[Sample, ...]:
        """The samples of *batch*; none if it is not of *count* samples."""
        rows = tuple(map(self.take_apart, self.split(batch, count) or ()))
        if self.contract.split is None and self.contract.key is None:
            return tuple(Sample("", parts=tuple(map(without_batch, row.parts))) for row in rows)
        return rows


def _is_empty(batch: Any) -> bool:
    return isinstance(batch, (list, tuple, dict)) and try_user_code(lambda: not batch, False)


# Passes without a fault


@dataclass
class Reader(SampleComparer):
    """Reads samples of *loader*'s dataset, and makes their fingerprints.

    Attributes:
        displaced: By how much the index whose random numbers a sample gets is less than its own.
        seed: What is added to the seed of the samples.
        draws_random_numbers: Whether samples that are seeded draw numbers from the global
            generators of torch, NumPy or Python.

    """

    displaced: int = 0
    seed: int = 0
    draws_random_numbers: bool = False

    def __post_init__(self) -> None:
        self._states: dict[str, Any] | None = None
        self._indices: Sequence[Any] = ()
        self._may_fork = loaders.start_method_of(self.loader) in ("", "fork")

    @property
    def dataset(self) -> Any:
        """The dataset that is read."""
        return loaders.dataset_of(self.loader)

    @contextlib.contextmanager
    def child(self, read: Callable[[], _Result]) -> Iterator[Callable[[float], _Result]]:
        """A child that is forked now; call it with a number of seconds for the result of *read*.

        If the child fails, or takes longer than that, *read* is called here, where an error is
        reported, and no other child is asked: the dataset may not survive a fork.
        """

        def ask(seconds: float) -> _Result:
            packed = call.answer(seconds) if call is not None and self._may_fork else b""
            self._may_fork = bool(packed)
            if not packed:
                return read()
            result, draws_random_numbers = pickle.loads(packed)  # noqa: S301  # our own
            self.draws_random_numbers |= draws_random_numbers
            answer: _Result = result
            return answer

        def pack() -> bytes:
            return pickle.dumps((read(), self.draws_random_numbers))

        call: ChildCall | None = None
        with contextlib.ExitStack() as scope:
            if self._may_fork:
                call = scope.enter_context(ChildCall(pack))
            yield ask

    # Samples with indices

    def fetch(self, draw: Draw, *, one_by_one: bool = False) -> Any:
        """The batch that a worker makes of *draw*; *one_by_one*: without ``__getitems__``."""
        self._states, self._indices = None, draw.indices
        with loaders.report_dataset_errors(self._describe):
            fetcher = self._make_fetcher()
            if loaders.kind_of(self.dataset) == "map":
                kind = _DatasetOfSamples if one_by_one else _CopyingDataset
                is_seeded = self.comparison.seeded is not None
                fetcher.dataset = kind(fetcher.dataset, self._begin, one_by_one=is_seeded)
            batch = fetcher.fetch(draw.copy_for_worker())
        self._look_at_generators()
        return batch

    def read_alone(self, draw: Draw) -> Batch:
        """The one sample of *draw*."""
        try:
            batch = self.fetch(draw)
        except loaders.CollateError:  # ``__getitems__`` may have left out the one sample.
            if not reads_whole_batches(self.dataset):
                raise
            batch = self.fetch(draw, one_by_one=True)
        samples = self.split_batch(batch, draw, 1).samples[:1] or (self.take_apart(batch),)
        return Batch(draw.names, samples)

    def read(self, draw: Draw) -> Batch:
        """The batch of *draw*. Only a dataset that makes ready batches may leave out samples."""
        batch, count = self.fetch(draw), len(draw.names)
        if self.loader._auto_collation and not draw.is_whole:
            self._require_split(batch, count)
        reading = self.split_batch(batch, draw, count)
        if len(reading.samples) == count or reads_whole_batches(self.dataset):
            return reading
        return Batch(draw.names, (self.take_apart(batch),), is_whole=True)

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
        if (start := self.comparison.seeded) is not None:
            for index in indices:
                same_as = index - self.displaced if self.displaced else index
                seed_sample(start + self.seed, same_as)
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

    def read_stream(self) -> Iterator[Batch]:
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
            if is_batched and is_first and self.split(batch, 1) is None:
                self._refuse_batches()
            yield self.split_batch(batch, None, 1)
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

    def _key_of(self, value: Any) -> Any:
        """What is compared of *value*. A key that fails on it is refused."""
        if self.contract.key is None:
            return value
        with loaders.report_dataset_errors("the contract's key"):
            return self.contract.key(value)

    def _require_split(self, batch: Any, count: int) -> None:
        """Refuse a function of the author's that does not split *batch* into *count* samples."""
        contract_split = self.contract.split
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


class _CopyingDataset(ObservedDataset):
    """A dataset whose samples are copies, unless they hold what has no copy, as an open file."""

    def __getitem__(self, index: Any) -> Any:
        sample = super().__getitem__(index)
        return try_user_code(lambda: copy.deepcopy(sample), sample)


class _DatasetOfSamples(_CopyingDataset):
    """A dataset of copies without ``__getitems__``: each sample is requested alone."""

    __getitems__: Any = None


def _describe_index(index: Any) -> str:
    name = name_of(index)
    return repr(name) if type(index) is str else str(name)
