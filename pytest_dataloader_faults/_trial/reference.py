"""The reference: the samples that a dataset returns without faults [in the disposable process].

A comparison is adapted to what two passes agree on: see ``outcomes/agreement.py``.
"""

from __future__ import annotations

import contextlib
import itertools
import pickle
import statistics
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from torch.utils.data._utils import worker as torch_worker

from pytest_dataloader_faults._engine.fetch_hooks import seed_everything
from pytest_dataloader_faults._engine.system.processes import run_in_child
from pytest_dataloader_faults._trial import loaders
from pytest_dataloader_faults._trial.job import Job, TakeReference
from pytest_dataloader_faults._trial.passes import Reader
from pytest_dataloader_faults._trial.samplers import choose_size, count_samples, limit_samples
from pytest_dataloader_faults._trial.samples import (
    Draw,
    Name,
    draws_of,
    draws_the_same_again,
    pickle_draws,
)
from pytest_dataloader_faults.exceptions import UnusableDatasetError
from pytest_dataloader_faults.outcomes import Batch, Reference
from pytest_dataloader_faults.outcomes.agreement import (
    SampleParts,
    closest,
    count_varying,
    difference,
    spread,
)
from pytest_dataloader_faults.outcomes.reference import count_rows
from pytest_dataloader_faults.outcomes.text import pluralize

if TYPE_CHECKING:
    from torch.utils.data import DataLoader

# Some facts about datasets that only workers can read. A ``worker_init_fn`` may open the handle
# that samples are read from, as many recipes for HDF5 do, and a dataset may refuse to be read by
# another process. A stream may also refuse any number of workers but the one that it was made for,
# as streams of energon do.


CALLS_USER_CODE = True

_READINGS = 2
"""Each sample is read twice, which shows whether it is the same again."""
_TIMED = 8
"""The number of samples that show how long one takes."""
_MOST_SAMPLES, _SHARE_OF_DEADLINE = 10_000, 1 / 3
"""When an endless stream is left: after this many samples, or this time."""
_PATIENCE, _SHARE_FOR_CHILD, _TIMES = 2.0, 1 / 8, 2
"""A child may take this many seconds, or this part of a deadline, longer than twice as long as the
same took here: it may hang."""
_LEAST = 1e-9
"""Seconds for a sample, whatever the clock says."""
_SHARE_FOR_BATCHES = 1 / 2
"""The part of a deadline that whole batches of slow samples may take."""
_FEW_SAMPLES, _FEW_BATCHES = 64, 4
"""How many samples of such a stream each worker returns: this many, in whole batches."""


_Pass: TypeAlias = Sequence[Batch]
_StreamPasses: TypeAlias = tuple[list[Batch], list[Batch], int | None]
"""Two passes over a stream, and after how many samples these ended; None if by themselves."""


def take_reference(loader: DataLoader[Any], job: Job, step: TakeReference) -> Reference:
    """The samples of the dataset, read here, or else in workers."""
    is_stream = loaders.kind_of(loaders.dataset_of(loader)) == "iterable"
    facts = job.comparison, job.settings.contract, loader
    taker = (_OfStream if is_stream else _ByIndex)(*facts, displaced=step.displaced)
    taker.job, taker.step = job, step
    return taker.take()


class _Taker(Reader):
    """Takes the reference of the dataset of a loader, as the *step* of *job* says."""

    kind = ""
    job: Job
    step: TakeReference

    def take(self) -> Reference:
        """The reference, read here, or else in workers."""
        try:
            results, workers = [self._read_all()], 0
        except UnusableDatasetError as error:
            if error.__cause__ is None or not self.loader.num_workers:
                raise  # The user's code has raised nothing.
            results = self._read_in_workers()
            workers = len(results)
            if not results:
                raise
        reference = self._combine(results)
        return replace(reference, workers=workers, lacks_workers=not self.loader.num_workers)

    def _read_all(self) -> Any:
        """What one process reads."""
        raise NotImplementedError

    def _combine(self, results: list[Any]) -> Reference:
        """The reference of which processes have read these parts."""
        raise NotImplementedError

    def _read_in_workers(self) -> list[Any]:
        """What each worker reads that is needed; nothing if one of them died.

        Samples with indices are read in one worker, and a stream in one, which has all of it, or
        else in as many as the loader has.

        Raises:
            UnusableDatasetError: The dataset cannot be read in workers either.
        """
        seconds = self.job.passes * self.job.deadline
        replies: list[Any] = []
        for count in (1, self.loader.num_workers) if self.kind == "iterable" else (1,):
            packed = [
                run_in_child(partial(self._read_as_worker, worker, count), seconds)
                for worker in range(count)
            ]
            others = list(map(pickle.loads, packed)) if all(packed) else []  # our own
            if others and not any(isinstance(each, UnusableDatasetError) for each in others):
                return others
            replies = replies or others
        for reply in replies:
            if isinstance(reply, UnusableDatasetError):
                raise reply
        return []

    def _read_as_worker(self, worker: int, count: int) -> bytes:
        """What this process reads as one of *count* workers, or the error."""
        loader, dataset = self.loader, self.dataset
        seed = torch.initial_seed() + worker
        info = torch_worker.WorkerInfo(id=worker, num_workers=count, seed=seed, dataset=dataset)
        torch_worker._worker_info = info
        try:
            with loaders.report_dataset_errors("worker_init_fn"):
                if loader.worker_init_fn is not None:
                    loader.worker_init_fn(worker)
            return pickle.dumps(self._read_all())
        except UnusableDatasetError as error:
            return pickle.dumps(error)

    def _adapt(self, readings: _Pass, repeats: _Pass) -> None:
        """Compare as closely as both readings agree, if the step allows that."""
        first, second = _pairs(readings), _pairs(repeats)
        is_allowed = self.step.adapts_comparison and self.contract.key is None
        if is_allowed and len(first) == len(second):
            is_stream = self.kind == "iterable"
            self.comparison = closest(self.comparison, first, second, is_stream=is_stream)

    def _build(self, readings: _Pass, repeats: _Pass) -> Reference:
        """The reference from two readings of the same samples; those of a stream in any order."""
        comparison = self.comparison
        is_regrouped = _have_same_rows(readings, repeats)
        pairs, others = _pairs(readings), _pairs(repeats)
        self.begin()
        named = enumerate(pair for each in readings for pair in each.pairs)
        samples = [
            (number if name is None else name, self.record(sample))
            for number, (name, sample) in named
        ]
        if self.contract.key is not None and not is_regrouped:
            self._require_stable(pairs, others)
        varies = not (is_regrouped or repeats is readings)
        rows = tuple(each.rows for each in readings)
        return Reference(
            self.kind,
            tuple(samples),
            varying=tuple(count_varying(pairs, others).items()) if varies else (),
            comparison=comparison,
            parts=rows if all(rows) else (),
        )

    def _require_stable(self, readings: SampleParts, repeats: SampleParts) -> None:
        """Refuse a key that is not the same for both *readings* of a sample."""
        remaining = Counter((name, self.digest(parts)) for name, parts in repeats)
        for place, (name, parts) in enumerate(readings[: len(repeats)]):
            remaining[name, self.digest(parts)] -= 1
            if remaining[name, self.digest(parts)] < 0:
                change = difference(parts, repeats[place][1]).replace("the reference", "the first")
                text = f"sample {place if name is None else name!r} was different when it was read"
                message = (
                    f"{text} again: {change}. The contract's key must return the same for both"
                )
                raise UnusableDatasetError(message)


def _pairs(readings: _Pass) -> SampleParts:
    return [(name, sample.parts) for each in readings for name, sample in each.pairs]


def _have_same_rows(readings: _Pass, repeats: _Pass) -> bool:
    """Whether both readings have the same rows, in a stream's own batches, which may differ."""
    rows, repeated = (
        count_rows([each.rows for each in reading]) for reading in (readings, repeats)
    )
    return rows is not None and rows == repeated


# Some facts about samples and their batches. A sample is read in a batch, and in a batch of its
# own, in the reverse order: what is random may depend on what was read before. If both are not
# equal, although each of them is the same again, the samples of a batch depend on each other, as
# with padding, and batches are compared as wholes. And if no sample draws random numbers, or
# differs under another seed, trials need no seeds.


class _ByIndex(_Taker):
    """Takes the reference of samples with indices."""

    kind = "map"
    _seconds = 0.0

    def _combine(self, results: list[Reference]) -> Reference:
        return results[0]

    def _read_all(self) -> Reference:
        job, batched = self.job, bool(self.loader._auto_collation)
        with loaders.report_dataset_errors(f"comparing samples of {type(self.dataset).__name__}"):
            seed_everything(job.settings.seed)
            if self.step.indices is not None:
                requested = ([each] if batched else each for each in self.step.indices)
                drawn = [Draw.of(each, self.dataset, batched=batched) for each in requested]
                return self._read_drawn(drawn)
            limit, first_draws, batch_size = self._limit()
            total = count_samples(self.loader)
            readable = loaders.count_readable(self.loader)
            if limit is not None:
                limit_samples(self.loader, limit, batch_size=batch_size)
                seed_everything(job.settings.seed)
            # Some samplers can be iterated only once.
            drawn = list(draws_of(self.loader)) or first_draws
            if not any(each.names for each in drawn):
                raise loaders.EmptyDatasetError(self.dataset)
            is_whole = not job.settings.ranks or draws_the_same_again(self.loader, drawn)
            return replace(
                self._read_drawn(drawn),
                limit=limit,
                is_whole=is_whole,
                draws=pickle_draws(drawn),
                batch_size=batch_size,
                total=total,
                readable=readable,
            )

    def _limit(self) -> tuple[int | None, list[Draw], int | None]:
        """About how many samples to check: fewer than requested if they take long.

        And what the sampler drew to find that out, and how many samples a batch may have: as many
        as the loader has chosen, if there is time for that.
        """
        requested, enough = self.job.settings.samples, self.step.seconds
        if requested is None or enough is None:
            return requested, [], self.job.batch_size
        first_draws = list(itertools.islice(draws_of(self.loader), 1))
        sample_draws = [part for draw in first_draws for part in draw.split()][:_TIMED]
        with self.child(partial(self._time, sample_draws)) as times:
            took = times(self._patience)
        seconds = _READINGS * max(_LEAST, statistics.median(took or [0]))
        limit = requested
        # Halved instead of computed, because the time of samples varies.
        while limit > 1 and limit * seconds > enough:
            limit //= 2
        longest = self.job.deadline * _SHARE_FOR_BATCHES if limit < requested else enough
        affordable, possible = enough / seconds, longest / seconds
        limit, batch_size = choose_size(self.loader, limit, affordable, possible)
        return limit, first_draws, batch_size

    def _time(self, draws: Sequence[Draw]) -> list[float]:
        """How many seconds some of the *draws* take each; for half of the patience at most."""
        took: list[float] = []
        for draw in draws:
            if sum(took) <= self._patience / 2:
                began = time.monotonic()
                with contextlib.suppress(loaders.CollateError):
                    self.fetch(draw)
                took.append(time.monotonic() - began)
        return took

    @property
    def _patience(self) -> float:
        return min(_PATIENCE, self.job.deadline * _SHARE_FOR_CHILD)

    def _read_drawn(self, drawn: Sequence[Draw]) -> Reference:
        """The reference of the samples in *drawn*, or of whole batches."""
        self._requested = [each for each in drawn if each.names]
        if self.comparison.in_batches:
            return self._read_whole_batches()
        samples: dict[Name, Draw] = {}
        for draw in itertools.chain(*(each.split() for each in self._requested)):
            samples.setdefault(draw.names[0], draw)
        self._alone: dict[tuple[int, int], Callable[[float], list[Batch]]] = {}
        """Each sample alone, by the step through the samples and what is added to their seeds."""
        with contextlib.ExitStack() as children:
            # A child reads only after this process: it may use up what both have open.
            for step, seed in ((-1, 1), (-1, 0), (1, 0)):
                if not seed or self._may_drop_seeds:
                    alone = self.read_alone, list(samples.values()), step, seed
                    read = partial(self._read, *alone)
                    self._alone[step, seed] = children.enter_context(self.child(read))
            batched = self._read(self.read, self._requested)
            try:
                return self._compare(batched)
            except loaders.CollateError:  # Of one sample: it may need as many as a batch has.
                if all(len(each.names) == 1 for each in self._requested):
                    raise
        return self._read_whole_batches()

    def _compare(self, batched: _Pass) -> Reference:
        """The reference of samples that are the same in these batches and alone; or of batches."""
        readings = repeats = self._read_first(batched)
        if self.comparison.is_loose or not self._agree(readings, batched):
            repeats = self._read_alone(batched, step=1)
            self._adapt(readings, repeats)
        if not self._agree(readings, batched):
            self._adapt(batched, self._read(self.read, self._requested, step=-1))
        if self.comparison.is_loose:
            self._drop_useless_seeds()
        reference = self._build(readings, repeats)
        if self._agree(readings, batched):
            return reference
        return self._read_whole_batches()

    def _read_first(self, batched: _Pass) -> _Pass:
        """Each sample alone; without seeds if no sample needs them."""
        if not self._may_drop_seeds:
            return self._read_alone(batched)
        readings = self._read_alone(batched, seed=1)
        if not self._agree(readings, batched):
            return self._read_alone(batched)
        self._drop_useless_seeds()
        return readings

    def _read_alone(self, batched: _Pass, step: int = -1, seed: int = 0) -> _Pass:
        """Each sample alone, or else those of the batches.

        What the dataset has open may not survive a fork: that is the business of the workers.
        """
        try:
            return self._alone[step, seed](self._seconds)
        except loaders.CollateError:
            raise
        except UnusableDatasetError:
            if not all(each.samples and not each.is_whole for each in batched):
                raise
            pairs = (zip(each.keys or (), each.samples, strict=False) for each in batched)
            samples = dict(itertools.chain.from_iterable(pairs))
            return [Batch((name,), (sample,)) for name, sample in samples.items()]

    @property
    def _may_drop_seeds(self) -> bool:
        return self.step.adapts_comparison and self.comparison.seeded is not None

    def _drop_useless_seeds(self) -> None:
        """Do without seeds if no sample draws random numbers."""
        if self.step.adapts_comparison and not self.draws_random_numbers:
            self.comparison = replace(self.comparison, seeded=None)

    def _read_whole_batches(self) -> Reference:
        """The reference of whole batches, because their samples depend on each other."""
        self.comparison = replace(self.comparison, in_batches=True)
        readings, repeats = (self._read(self.read, self._requested, step) for step in (1, -1))
        self._adapt(readings, repeats)
        mask = spread(self.comparison.mask, _pairs((*readings, *repeats)))
        self.comparison = replace(self.comparison, mask=mask)
        self._drop_useless_seeds()
        return self._build(readings, repeats)

    def _read(
        self, read: Callable[[Draw], Batch], drawn: Sequence[Draw], step: int = 1, seed: int = 0
    ) -> list[Batch]:
        """What *read* makes of each of these draws; a *step* of -1 reads them backwards."""
        self.seed, began = seed, time.monotonic()
        result = list(map(read, drawn[::step]))[::step]
        self._seconds = self._patience + _TIMES * (time.monotonic() - began)
        return result

    def _agree(self, readings: _Pass, batches: _Pass) -> bool:
        """Whether each row of the *batches* is equal to its sample in *readings*.

        A ready batch may hold fewer samples than requested: the judge says that some are missing.
        """
        digests = {key: self.digest(parts) for key, parts in _pairs(readings)}
        known = set(digests.values())
        for batch in batches:
            found = [self.digest(sample.parts) for sample in batch.samples]
            names = batch.keys or ()
            is_complete = len(found) == len(names) and found == [digests[each] for each in names]
            is_part = 0 < len(found) < len(names) and known.issuperset(found)
            if batch.is_whole or not (is_complete or is_part):
                return False
        return True


class _OfStream(_Taker):
    """Takes the reference of a stream."""

    kind = "iterable"

    def _read_all(self) -> _StreamPasses:
        """Two passes over the stream; if it does not end, over its first samples."""
        limit, size = self.job.comparison.limit, self.loader.batch_size or 1
        kept_count = size * max(_FEW_BATCHES, _FEW_SAMPLES // size)
        until = time.monotonic() + self.job.deadline * _SHARE_OF_DEADLINE
        readings: list[Batch] = []
        with loaders.report_dataset_errors(f"iterating {type(self.dataset).__name__}"):
            for reading in self.read_stream():
                readings.append(reading)
                if len(readings) == limit:
                    break
                is_long = len(readings) >= _MOST_SAMPLES or time.monotonic() > until
                if limit is None and is_long and len(readings) >= kept_count:
                    limit = kept_count
                    break
            seed_everything(self.job.settings.seed + 1)  # A stream may draw by its worker's seed.
            repeats = list(itertools.islice(self.read_stream(), limit))
        return readings[:limit], repeats, limit

    def _combine(self, results: list[_StreamPasses]) -> Reference:
        readings = [reading for part, _, _ in results for reading in part]
        repeats = [reading for _, part, _ in results for reading in part]
        if not readings:
            raise loaders.EmptyDatasetError(self.dataset)
        limit = max((limit for *_, limit in results if limit is not None), default=None)
        comparison = replace(self.job.comparison, seeded=None)
        if limit is not None:
            comparison = replace(comparison, limit=limit, by_form=True)
        self.comparison = comparison
        is_regrouped = _have_same_rows(readings, repeats)
        if not is_regrouped:
            self._adapt(readings, repeats)
        reference = self._build(readings, repeats)
        if is_regrouped or len(repeats) == len(readings):
            return reference
        if len(repeats) < len(readings):
            return replace(reference, second_pass_count=len(repeats))
        message = (
            f"the stream returned {pluralize(len(readings), 'sample')}, and {len(repeats)} when it"
            " was iterated again, so it is not known how many it should return"
        )
        raise UnusableDatasetError(message)
