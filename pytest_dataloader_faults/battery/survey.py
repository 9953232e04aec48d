"""A baseline for searches: which files can fail, and trials to be judged by it."""

from __future__ import annotations

import glob
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from pytest_dataloader_faults._settings import Settings, check
from pytest_dataloader_faults._settings.jobs import TrialJob, TrialOptions
from pytest_dataloader_faults._trial import run_trial_job
from pytest_dataloader_faults._trial.factory import DatasetFactory
from pytest_dataloader_faults.battery import progress
from pytest_dataloader_faults.battery.baseline import ONE_WORKER, Baseline
from pytest_dataloader_faults.battery.targets import (
    connections_of,
    path_of,
    require_match,
    short_globs,
)
from pytest_dataloader_faults.exceptions import InvalidArgumentError
from pytest_dataloader_faults.faults import Fault, OpenError, ReadError
from pytest_dataloader_faults.globs import GlobMatcher, is_below
from pytest_dataloader_faults.outcomes import Contract, Judgement, Outcome, Reference
from pytest_dataloader_faults.outcomes.contract import Comparison


@dataclass(frozen=True, kw_only=True)
class DataFiles:
    """The files that a dataset reads, as globs, the first one first.

    A glob is the end of a path, as ``"*/03.rec"``, as long as that means one file only: so a
    schedule means the same where the data lies in another folder, as with ``tmp_path``.

    Attributes:
        opens: How often one worker opens each in an epoch.
        reads: How often one worker reads each in an epoch. Mapping it counts as one read.
        all_files: A glob, or globs, for all of them together.
        writes: How often one worker writes each in an epoch, of those in the trial's own folder.
        all_written: A glob, or globs, for all of these together.
        batches: How many batches one worker makes in an epoch.
        samples: How many samples the dataset has.
        workers: How many workers share the files.
        epochs: How many epochs a worker lives for.
        focus: The one file that faults of a single file hit; by default each file.
        connections: How often one worker makes each TCP connection in an epoch, by its path.
        tolerated_errors: Transient errors that the dataset survives; None if that was not tried.
    """

    opens: Mapping[str, int]
    reads: Mapping[str, int]
    all_files: str | tuple[str, ...] = "*"
    batches: int = 4
    samples: int = 16
    workers: int = 1
    epochs: int = 1
    focus: str | None = None
    tolerated_errors: tuple[OpenError | ReadError, ...] | None = None
    connections: Mapping[str, int] = field(default_factory=dict)
    writes: Mapping[str, int] = field(default_factory=dict)
    all_written: str | tuple[str, ...] = "*"

    def for_loader(self, loader: Mapping[str, Any], epochs: int) -> DataFiles:
        """The same, for the workers of a *loader* that goes through this many *epochs*."""
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
    """A dataset, and what it does when nothing is wrong.

    Attributes:
        files: The files that can fail: give it to strategies as ``files=``.
        fault_free: The outcome of the epoch without a fault.
        make_dataset: The factory of the dataset.
        from_start: Whether files are followed, and faults armed, before the dataset is made.
        contract: What the author promises. It says how samples are compared, too.
    """

    def __init__(
        self, make_dataset: DatasetFactory, settings: Settings, *, from_start: bool = False
    ) -> None:
        check(from_start=from_start)
        with progress.stage("first reading"):
            self._baseline = Baseline(make_dataset, settings, attempts=[ONE_WORKER])
        self.make_dataset = make_dataset
        self.contract = self._baseline.contract
        self.from_start = from_start
        base = self._baseline
        self.fault_free = base.from_start.outcome if from_start else base.fault_free
        self.files = _files_of(base, self.fault_free)

    def __repr__(self) -> str:
        """What matters in a failing example."""
        return f"Survey(files={self.files!r})"

    @property
    def is_iterable(self) -> bool:
        """Whether the dataset is a stream, which has no indices."""
        return self._baseline.reference.kind == "iterable"

    @property
    def comparison(self) -> Comparison:
        """How samples are compared."""
        return self._baseline.comparison

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

        The arguments are those of ``run_trial``, which compares samples byte by byte.
        *loader*: options beside those of the survey, or in their place.
        """
        given = {"loader": loader, "deadline": deadline, "seed": seed, "engine": engine}
        return trial_of(self, faults, epochs, **given)

    def judge(self, outcome: Outcome, contract: Contract | None = None) -> Judgement:
        """The verdict on *outcome*, by *contract* or, without one, by the survey's own."""
        contract = Contract.given(contract or self.contract)
        require_same_comparison(contract, self.contract)
        return self._baseline.judge(outcome, contract)

    def reference_for(self, outcome: Outcome) -> Reference:
        """The reference; samples of *outcome* that it does not know yet are taken now."""
        return self._baseline.reference_for(outcome)


def trial_of(found: Survey, faults: tuple[Fault, ...], epochs: int, **given: Any) -> Outcome:
    """One trial, by the settings of the survey but for those *given*, and more loader options."""
    own = found._baseline.settings
    check(loader=given["loader"])
    settings = {**given, "loader": {**(own.loader or {}), **(given["loader"] or {})}}
    job = TrialJob(
        make_dataset=found.make_dataset,
        faults=faults,
        settings=own.with_those_of(settings),
        comparison=found.comparison,
        handling=found._baseline.handling(found.comparison),
        options=TrialOptions(epochs=epochs, from_start=found.from_start),
    )
    return run_trial_job(job)


def require_same_comparison(contract: Contract, own: Contract) -> None:
    """Refuse to judge by *contract* what was compared as *own* says."""
    if _comparison_of(contract) != _comparison_of(own):
        message = (
            f"contract={contract!r} compares samples otherwise than {own!r}, by which they were"
            " taken: give it to survey(), and run trials by the survey's own run_trial(...)"
        )
        raise InvalidArgumentError(message)


def _comparison_of(contract: Contract) -> tuple[object, ...]:
    return contract.compare, contract.split, contract.deterministic is False


def _files_of(baseline: Baseline, fault_free: Outcome) -> DataFiles:
    workers, reference = fault_free.workers, baseline.reference
    files = [each.files for each in fault_free.processes]
    seen = {path for each in files for path in each}
    meant = sorted(filter(GlobMatcher(baseline.settings.files), seen))
    require_match(baseline.settings.files, fault_free)
    opens = {path: _most(each[path].opens for each in files if path in each) for path in meant}
    reads = {path: _most(each[path].reads for each in files if path in each) for path in meant}
    used = [path for path in meant if opens[path] or reads[path]]
    names, all_files = short_globs(used, seen)
    writes = _writes_of(baseline, meant)
    written, all_written = short_globs(writes, seen)
    return DataFiles(
        opens={name: opens[path] for path, name in names.items() if opens[path]},
        reads={name: reads[path] for path, name in names.items() if reads[path]},
        all_files=path_of(all_files) or "*",
        connections=_connections_of(baseline),
        writes={name: writes[path] for path, name in written.items()},
        all_written=path_of(all_written) or "*",
        batches=_most(worker.fetches for worker in workers) or 1,
        samples=len(reference.samples) or sum(len(indices) for indices, _ in reference.batches),
    )


def _writes_of(baseline: Baseline, meant: Iterable[str]) -> dict[str, int]:
    """How often a worker writes each of the files *meant* where a failed write does no harm."""
    own = baseline.own_folders.paths
    files = [worker.files for worker in baseline.fault_free.workers]
    ours = (path for path in meant if is_below(path, own))
    counts = {path: _most(each[path].writes for each in files if path in each) for path in ours}
    return {path: count for path, count in counts.items() if count}


def _connections_of(baseline: Baseline) -> dict[str, int]:
    """How often a worker makes each connection; the python engine cannot cut off their answers."""
    fault_free = baseline.fault_free
    made = [worker.connections for worker in fault_free.workers if fault_free.engine == "kernel"]
    meant = connections_of(fault_free, baseline.settings.files).paths
    counts = {path: _most(each.get(path, 0) for each in made) for path in meant}
    return {glob.escape(path): count for path, count in counts.items() if count}


def _most(counts: Iterable[int]) -> int:
    return max(counts, default=0)
