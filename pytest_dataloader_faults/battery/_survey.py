"""What a dataset does when nothing is wrong: the ground that faults are drawn for.

A survey takes the reference, and runs one epoch with one worker, the engine on and no fault: what
that worker opens and reads is what can fail.
"""

from __future__ import annotations

import glob
import math
import os
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from pytest_dataloader_faults import _arguments
from pytest_dataloader_faults._engine import choose
from pytest_dataloader_faults._trial import run_compared_trial, take_reference
from pytest_dataloader_faults._trial.job import TrialOptions
from pytest_dataloader_faults.battery._targets import EVERY_FILE, globs_of, nothing_matches
from pytest_dataloader_faults.battery._targets import Files as Globs
from pytest_dataloader_faults.exceptions import InvalidArgumentError, UnusableDatasetError
from pytest_dataloader_faults.faults import Fault, OpenError, ReadError
from pytest_dataloader_faults.faults._globs import GlobMatcher, is_excluded
from pytest_dataloader_faults.outcomes import Contract, Judgement, Outcome, Reference, WorkerFacts
from pytest_dataloader_faults.outcomes._judge import judge
from pytest_dataloader_faults.outcomes._reference import Comparison, unstable, ways_of

__all__ = ("DataFiles", "Survey", "survey")

_ALONE = {"num_workers": 1}


@dataclass(frozen=True, kw_only=True)
class DataFiles:
    """The files that a dataset reads, as globs, the first one first.

    A glob is the end of a path, as ``"*/03.rec"``, as long as that means one file only: so a
    schedule means the same where the data lies in another folder, as with ``tmp_path``.

    Attributes:
        opens: How often one worker opens each in an epoch.
        reads: How often one worker reads each in an epoch. Mapping it counts as one read.
        every: A glob, or globs, for all of them together.
        batches: How many batches one worker makes in an epoch.
        samples: How many samples the dataset has.
        workers: How many workers share the files.
        epochs: How many epochs a worker lives for.
        one: Which file may be meant alone; by default each.
        survived: Errors that go away which the dataset gets over; None if that was not tried.

    """

    opens: Mapping[str, int]
    reads: Mapping[str, int]
    every: str | tuple[str, ...] = "*"
    batches: int = 4
    samples: int = 16
    workers: int = 1
    epochs: int = 1
    one: str | None = None
    survived: tuple[OpenError | ReadError, ...] | None = None

    def under(self, loader: Mapping[str, Any], epochs: int) -> DataFiles:
        """The same, for the workers of a *loader* that is gone through so many times."""
        workers = max(1, loader.get("num_workers", 1))
        size = loader.get("batch_size")
        batches = math.ceil(self.samples / size) if size else self.batches
        return replace(
            self,
            batches=math.ceil(batches / workers),
            workers=workers,
            epochs=epochs if loader.get("persistent_workers") else 1,
        )


class Survey:
    """A dataset, and what was found out about it before any fault.

    Attributes:
        files: What can be put at risk: give it to strategies as ``files=``.
        control: The outcome of the epoch without a fault.
        make_dataset: What was surveyed.
        contract: What the author promises; it says how samples are compared, too.

    """

    def __init__(
        self,
        make_dataset: Callable[[], Any],
        *,
        loader: Mapping[str, Any] | None,
        files: Globs | None,
        deadline: float,
        seed: int,
        engine: str,
        contract: Contract | None,
    ) -> None:
        _arguments.check(make_dataset=make_dataset, loader=loader)
        _arguments.check(deadline=deadline, seed=seed)
        self.contract = Contract.given(contract)
        self._how: dict[str, Any] = {"loader": loader, "deadline": deadline, "seed": seed}
        self.make_dataset = make_dataset
        globs = globs_of(files)
        self._look(choose(engine))
        samples = len(self._reference.samples) or sum(
            len(indices) for indices, _ in self._reference.batches
        )
        self.files = _files_of(self.control, samples, globs)

    def _look(self, engine: str) -> None:
        """The reference and the epoch without a fault, as exact as shows nothing wrong."""
        for way in ways_of(self.contract, self._how["seed"]):
            self._way = way
            self._reference = self._take_reference()
            if self._reference.unstable is not None:
                continue
            self.control = run_compared_trial(
                self.make_dataset,
                comparison=self.comparison,
                changes=_ALONE,
                options=TrialOptions(watch_files=True),
                needs_workers=True,
                engine=engine,
                **self._how,
            )
            if self.judge(self.control).passed:
                break
        if self._reference.unstable is not None:
            raise UnusableDatasetError(unstable(self._reference.unstable, self.contract))

    def _take_reference(self, **asked: Any) -> Reference:
        return take_reference(self.make_dataset, comparison=self._way, **self._how, **asked)

    def __repr__(self) -> str:
        """What matters in a failing example."""
        return f"Survey(files={self.files!r})"

    @property
    def is_iterable(self) -> bool:
        """Whether the dataset is a stream, which has no indices."""
        return self._reference.kind == "iterable"

    @property
    def comparison(self) -> Comparison:
        """How samples are told apart."""
        return replace(self._way, kept=self._reference.kept)

    def run_trial(
        self,
        *faults: Fault,
        loader: Mapping[str, Any] | None = None,
        epochs: int = 1,
        deadline: float = 30.0,
        seed: int = 0,
        engine: str = "auto",
    ) -> Outcome:
        """``run_trial`` of this dataset, whose samples are compared as its contract says.

        The arguments are those of ``run_trial``, which compares what is in samples, byte by byte.
        *loader*: options beside those of the survey, or in their place.
        """
        return run_compared_trial(
            self.make_dataset,
            *faults,
            comparison=self.comparison,
            loader={**(self._how["loader"] or {}), **(loader or {})},
            options=TrialOptions(epochs=epochs),
            deadline=deadline,
            seed=seed,
            engine=engine,
        )

    def judge(self, outcome: Outcome, contract: Contract | None = None) -> Judgement:
        """The verdict on *outcome*, by *contract* or, without one, by the survey's own."""
        contract = Contract.given(contract or self.contract)
        require_same_way(contract, self.contract)
        return judge(outcome, self.reference_for(outcome), contract)

    def reference_for(self, outcome: Outcome) -> Reference:
        """The reference; samples of *outcome* that it does not know yet are taken now."""
        if lacking := self._reference.lacks(outcome):
            self._reference = self._reference.with_more(self._take_reference(batches=lacking))
        return self._reference


def survey(
    make_dataset: Callable[[], Any],
    *,
    files: Globs | None = None,
    loader: Mapping[str, Any] | None = None,
    deadline: float = 30.0,
    seed: int = 0,
    engine: str = "auto",
    contract: Contract | None = None,
) -> Survey:
    """Run the dataset that *make_dataset* returns once without a fault, and tell what it reads.

    Args:
        make_dataset: Returns a map-style or iterable dataset, or a ready ``DataLoader``.
        files: Globs of the files to put at risk; by default all that its worker reads.
        loader: Options of the ``DataLoader`` that every trial has, such as ``collate_fn``.
        deadline: Seconds for each of the two runs.
        seed: Of the samplers and workers.
        engine: ``"auto"``, ``"kernel"`` or ``"python"``.
        contract: What the author promises beyond the ordinary. Where it says that samples are
            random, or how to compare them, run trials by the survey's own ``run_trial``.

    Raises:
        InvalidArgumentError, UnusableDatasetError, EngineUnavailableError: See ``run_trial``.

    """
    how: dict[str, Any] = {"deadline": deadline, "seed": seed, "engine": engine}
    return Survey(make_dataset, files=files, loader=loader, contract=contract, **how)


def require_same_way(contract: Contract, own: Contract) -> None:
    """Refuse to judge by *contract* what was compared as *own* says."""
    if ways_of(contract, 0) != ways_of(own, 0):
        message = (
            f"contract={contract!r} compares samples otherwise than {own!r}, by which they were"
            " taken: give it to survey(), and run trials by the survey's own run_trial(...)"
        )
        raise InvalidArgumentError(message)


def _files_of(control: Outcome, samples: int, globs: tuple[str, ...]) -> DataFiles:
    seen = {path for worker in control.workers for path in worker.files}
    meant = sorted(filter(GlobMatcher(globs), seen))
    if globs != EVERY_FILE and not meant:
        raise InvalidArgumentError(nothing_matches(globs, control))
    namer = _Namer(seen)
    names = {path: namer.name(path) for path in meant}
    opens, reads = (_counts(control.workers, names, place) for place in (0, 1))
    batches = max((worker.fetches for worker in control.workers), default=1)
    used = [path for path, name in names.items() if name in opens or name in reads]
    return DataFiles(
        opens=opens, reads=reads, every=namer.all_of(used), batches=batches, samples=samples
    )


def _counts(workers: Collection[WorkerFacts], names: Mapping[str, str], at: int) -> dict[str, int]:
    """How often the busiest worker did it to each file that it did it to at all."""
    found = {
        name: max(worker.files[path][at] for worker in workers if path in worker.files)
        for path, name in names.items()
    }
    return {name: count for name, count in found.items() if count}


def _endings(path: str) -> Iterator[str]:
    """The name, then the name with its folder, and so on."""
    parts = path.split("/")
    return ("/".join(parts[start:]) for start in range(len(parts) - 1, 0, -1))


class _Namer:
    """Gives files the shortest names that tell them from each other."""

    def __init__(self, seen: Collection[str]) -> None:
        self._seen = seen
        self._shared = Counter(ending for path in seen for ending in _endings(path))

    def name(self, path: str) -> str:
        """A glob of the shortest end of *path* that no other has; all of it if "*" spares it."""
        alone = (ending for ending in _endings(path) if self._shared[ending] == 1)
        ending = None if is_excluded(path) else next(alone, None)
        return glob.escape(path) if ending is None else f"*/{glob.escape(ending)}"

    def all_of(self, paths: Collection[str]) -> str | tuple[str, ...]:
        """A glob by their common extension, if no other file has it; else a glob each."""
        names = tuple(map(self.name, paths))
        if len(names) <= 1:
            return "".join(names) or "*"
        extensions = {os.path.splitext(path)[1] for path in paths}
        common = f"*{glob.escape(extensions.pop())}" if len(extensions) == 1 else "*"
        meant = set(filter(GlobMatcher((common,)), self._seen))
        return common if meant == set(paths) else names
