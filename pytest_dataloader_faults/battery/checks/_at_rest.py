"""Trials of files that are already damaged when the dataset is created. Pure.

Their workload is that of the constructor, the main process and the workers together.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

from pytest_dataloader_faults import faults
from pytest_dataloader_faults._settings.jobs import TrialOptions
from pytest_dataloader_faults.battery.checks._base import Scenario, TrialKind
from pytest_dataloader_faults.battery.targets import (
    OwnFolders,
    last_change,
    names_of,
    paths_with,
)
from pytest_dataloader_faults.battery.workload import NotApplicable, Workload, require_real_files
from pytest_dataloader_faults.faults.globs import GlobMatcher
from pytest_dataloader_faults.outcomes import (
    Contract,
    Finding,
    Outcome,
    Reference,
    Verdict,
    WorkerFacts,
)
from pytest_dataloader_faults.outcomes.judge.at_rest import (
    COPIED,
    DAMAGED_CACHE,
    count_lacking,
    has_full_reference,
    is_unlisted,
)
from pytest_dataloader_faults.outcomes.records import Pass
from pytest_dataloader_faults.outcomes.repeats import JudgedTrial
from pytest_dataloader_faults.outcomes.text import pluralize
from pytest_dataloader_faults.steps import Arm, Epoch, Processes, arm_before_init, run_epochs

if TYPE_CHECKING:
    from pytest_dataloader_faults.battery.fault_free_run import FaultFreeRun

_Batches: TypeAlias = "tuple[tuple[int, ...], ...]"
_WATCHED = TrialOptions(processes=run_epochs(before_init=True), watch_files=True)
_TWICE = TrialOptions(processes=arm_before_init(Epoch(), after_faults=False))
_FAILS_FOLLOWED = (
    "it fails even without a fault while its files are monitored from the constructor on: {}"
)
_FAILS_AGAIN = "it raised {} without a fault while its constructor was monitored"
_NOT_FOLLOWED = "its constructor cannot be monitored"
BY_FACTORY = "make_dataset writes or touches the files that it reads"
BY_WORKERS = "the workers write or touch the files that they read"
_REMEDIES = {
    BY_FACTORY: "Write them before the test, for example in a fixture, so that make_dataset only"
    " opens them",
    BY_WORKERS: "Open data files for reading only in the workers, so that they stay unchanged",
}
_BEFORE = (
    "The file was already damaged when make_dataset() was called, so the constructor saw the damage"
    " as well"
)
_MISSING = (
    "The file was already missing when make_dataset() was called, so the constructor could neither"
    " open it nor find it in its folder"
)
_UNREADABLE = (
    "The disk already failed when make_dataset() was called, so the constructor could not read the"
    " files either"
)


@dataclass(frozen=True)
class FollowedRun:
    """An epoch without a fault, in which files are monitored from the constructor on. Plain data.

    Files that a run rewrites, or creates in its own folder, cannot be damaged before the next run.

    Attributes:
        run: Its facts.
        changed: These files.
        rewritten: The rewritten files that it read, except for *own_files*.
        own_files: The created files that it read in its own folder.
        writer: BY_FACTORY or BY_WORKERS.
    """

    run: Outcome
    changed: tuple[str, ...] = ()
    rewritten: tuple[str, ...] = ()
    own_files: tuple[str, ...] = ()
    writer: str = BY_FACTORY

    @classmethod
    def of(cls, run: Outcome, began: int, folders: OwnFolders) -> FollowedRun:
        """The facts of *run*, which *began* at that time, in ns, with its own *folders*."""
        used_paths = {path for each in run.processes for path in each.files}
        own_paths = set(filter(folders.is_made_by_dataset, used_paths))
        changed = {
            path for path in used_paths - own_paths if last_change(folders.original(path)) > began
        }
        read, written = paths_with(run.processes, "reads"), paths_with(run.workers, "writes")
        by_main = paths_with([run.main] if run.main else [], "writes")
        is_by_workers = (own_paths | changed) & read <= written - by_main
        writer = BY_WORKERS if is_by_workers else BY_FACTORY
        return cls(
            run,
            tuple(sorted(own_paths | changed)),
            tuple(sorted(changed & read)),
            tuple(sorted(own_paths & read)),
            writer,
        )

    @property
    def outcome(self) -> Outcome:
        """The facts without the changed files."""
        without = partial(_without_files, self.changed)
        return replace(self.run, processes=tuple(map(without, self.run.processes)))

    def refusal(self, globs: tuple[str, ...]) -> NotApplicable | None:
        """Why the files that match *globs* cannot be damaged beforehand, and advice; or None."""
        is_meant = GlobMatcher(globs)
        paths = tuple(filter(is_meant, (*self.rewritten, *self.own_files)))
        if not paths or any(map(is_meant, paths_with(self.outcome.processes, "reads"))):
            return None
        files = f"({names_of(paths)}), so they cannot be damaged before it is called"
        return NotApplicable(f"{self.writer} {files}", self.writer, remedy=_REMEDIES[self.writer])

    def notes(self, globs: tuple[str, ...]) -> tuple[str, ...]:
        """A note about rewritten files, if other files can be damaged beforehand."""
        paths = tuple(filter(GlobMatcher(globs), self.rewritten))
        files = f"{pluralize(len(paths), 'file')} that each run writes ({names_of(paths)})"
        return (f"{files} cannot be damaged before make_dataset() is called",) if paths else ()


def _without_files(paths: Collection[str], process: WorkerFacts) -> WorkerFacts:
    files = {path: counts for path, counts in process.files.items() if path not in paths}
    return replace(process, files=files)


class AtRest(TrialKind):
    """Trials whose faults are armed before the dataset is created."""

    def includes(self, scenario: Scenario) -> bool:
        """Whether its first process arms the faults before all else."""
        return isinstance(scenario.processes[0][0], Arm)

    def run_epochs(self, count: int = 1) -> Processes:
        """*count* epochs with faults in the constructor, the main process and the workers."""
        return run_epochs(count, before_init=True)

    def fault_free_outcome(self, run: FaultFreeRun) -> Outcome:
        """An epoch without a fault, in which files are followed from the constructor on."""
        return _follow(run).outcome

    def complete_outcome(self, run: FaultFreeRun) -> Outcome:
        """The same epoch, with the files that the dataset itself makes or changes."""
        return _follow(run).run

    def workload(self, run: FaultFreeRun) -> Workload:
        """What the constructor, the main process and the workers do in the fault-free run."""
        require_real_files()
        outcome = self.fault_free_outcome(run)
        error, trial = outcome.exception, JudgedTrial(outcome, run.judge(outcome, Contract()))
        group = _FAILS_AGAIN.format(error.type) if error else _NOT_FOLLOWED
        run.require_pass(trial, _FAILS_FOLLOWED, group)
        return Workload.of(outcome, run.settings.files, run.own_folders)

    def reference_for(self, run: FaultFreeRun, outcome: Outcome) -> Reference:
        """The same, with the samples that have moved because a listing lacks a file before them."""
        reference = super().reference_for(run, outcome)
        lacking = count_lacking(outcome, reference)
        is_seeded, is_whole = outcome.comparison.seeded is not None, outcome.comparison.in_batches
        if not lacking or not is_unlisted(outcome) or outcome.comparison.in_workers:
            return reference
        if (is_seeded and is_whole) or (has_full_reference(reference) and not is_seeded):
            return reference
        batches = tuple(each.keys or () for each in outcome.delivered)
        if not all(isinstance(index, int) for indices in batches for index in indices):
            return reference
        read = partial(_read_moved_batches if is_whole else _read_moved, run, batches, lacking)
        displaced = run.find_once(f"displaced by {lacking}: {batches}", read)
        return replace(reference, displaced=displaced)

    def refusal(self, run: FaultFreeRun) -> NotApplicable | None:
        """That each run writes its files, if it does, so none can be damaged beforehand."""
        return _follow(run).refusal(run.settings.files)

    def notes(self, run: FaultFreeRun) -> tuple[str, ...]:
        """A note about files that cannot be damaged beforehand."""
        return _follow(run).notes(run.settings.files)

    def refine(self, finding: Finding, run: FaultFreeRun) -> Finding:
        """*finding*, or what is wrong with a second call of make_dataset without a fault."""
        if finding.verdict is not Verdict.POISONED:
            return finding
        # If make_dataset takes no folder, every trial calls it again in the same way.
        if run.own_folders.paths and not (second := _call_twice(run).finding).passed:
            return second
        is_copied = finding.cause == DAMAGED_CACHE and _copies_sources(run)
        return replace(finding, cause=COPIED) if is_copied else finding


def _follow(run: FaultFreeRun) -> FollowedRun:
    def follow() -> FollowedRun:
        began = time.time_ns()
        return FollowedRun.of(run.run_fault_free(options=_WATCHED)[-1], began, run.own_folders)

    return run.find_once("followed", follow)


def _read_moved(run: FaultFreeRun, batches: _Batches, by: int) -> tuple[tuple[Any, Any], ...]:
    """What may be at each index of *batches*: its own sample, or the one *by* so many after it."""
    indices = [index for each in batches for index in each]
    return tuple(
        (index - displaced, digest)
        for displaced in (0, by)
        for index, digest in _read_again(
            run, [(each + displaced,) for each in indices], displaced=displaced
        ).digests.items()
    )


def _read_moved_batches(
    run: FaultFreeRun, batches: _Batches, by: int
) -> tuple[tuple[Any, Any], ...]:
    """What each of *batches* may be if samples are *by* so many later, from one of them on."""
    moved = {
        (indices, tuple(index + by if index >= first else index for index in indices))
        for indices in batches
        for first in (*indices, math.inf)
    }
    requested = sorted({each for _, each in moved})
    digests_of = _read_again(run, requested).digests
    return tuple((indices, digests_of[each]) for indices, each in moved)


def _read_again(run: FaultFreeRun, batches: Sequence[tuple[int, ...]], **facts: Any) -> Reference:
    """The samples of *batches*, without a fault."""
    from pytest_dataloader_faults._trial import take_reference  # It imports torch.

    return take_reference(
        run.make_dataset,
        run.limited_settings,
        batches=batches,
        comparison=run.comparison,
        history=run.history,
        **facts,
    )


def _call_twice(run: FaultFreeRun) -> JudgedTrial:
    """A second call of make_dataset with the same folder, without a fault."""

    def call() -> JudgedTrial:
        outcome = run.run_trial(options=_TWICE)
        return JudgedTrial(outcome, run.judge(outcome, Contract()))

    return run.find_once("second call", call)


def _copies_sources(run: FaultFreeRun) -> bool:
    """Whether make_dataset copies files that it reads into the trial's folder."""
    main, folders = _follow(run).outcome.main, run.own_folders
    files = {path for worker in run.working.workers for path in worker.files}
    copies = set(map(os.path.basename, filter(folders.is_made_by_dataset, files)))
    return main is not None and any(os.path.basename(path) in copies for path in main.files)


def list_at_rest(run: FaultFreeRun, in_workers: Workload) -> tuple[Workload, ...]:
    """The files that can be damaged before the dataset is created, and the others of *in_workers*.

    Files that each run writes anew cannot, nor can any file if the constructor cannot be monitored.
    """
    kind = AtRest()
    try:
        at_rest = kind.workload(run)
        if refusal := kind.refusal(run):
            raise refusal
    except NotApplicable as refusal:
        if refusal.fatal is not None:
            raise
        return (replace(in_workers, not_at_rest=refusal),)
    at_rest = replace(at_rest, is_at_rest=True)
    rewritten = in_workers.paths & {*_follow(run).changed}
    return (at_rest, replace(in_workers, paths=rewritten)) if rewritten else (at_rest,)


def note_on_missing(outcome: Outcome) -> str:
    """That a folder decides how many samples there are, if it does."""
    if outcome.exception is not None or outcome.recovery is None or not is_unlisted(outcome):
        return ""
    left, whole = map(_count, (outcome.epochs[0], outcome.recovery))
    if left >= whole:
        return ""
    return f"the folder decides how many samples there are: {left} of {whole} if it lacks a file"


def _count(epoch: Pass) -> int:
    """How many samples the dataset of *epoch* has, as far as is known."""
    return epoch.length or epoch.sample_count


def describe_start(outcome: Outcome) -> str:
    """What a trial that damaged files before the dataset was created did, for its advice."""
    if not outcome.before_init:
        return ""
    if any(each.hides_file for each in outcome.schedule):
        return _MISSING
    is_unreadable = any(isinstance(each, faults.ReadError) for each in outcome.schedule)
    return _UNREADABLE if is_unreadable else _BEFORE
