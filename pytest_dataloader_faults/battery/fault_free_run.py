"""What a dataset returns and does when nothing is wrong.

The outcome of a fault is compared with it. It consists of the reference, which is read sample by
sample without workers, and of the fault-free epoch, which has workers, but no fault.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, TypeVar

from pytest_dataloader_faults._engine import require_engine
from pytest_dataloader_faults._settings import SAMPLES, Settings, check
from pytest_dataloader_faults._trial import repeat_if_killed, run_trial_job, take_reference
from pytest_dataloader_faults._trial.factory import DatasetFactory, bind_factory
from pytest_dataloader_faults._trial.job import Job, TakeReference
from pytest_dataloader_faults.battery.shares import (
    Deadlines,
    count_own_samples,
    digests_by_worker,
    take_worker_epoch,
)
from pytest_dataloader_faults.battery.targets import (
    OwnFolders,
    find_new_files,
    last_change,
    names_of,
    notes_on_changed,
    paths_with,
)
from pytest_dataloader_faults.battery.workload import (
    NEEDS_REAL_FILES,
    NotApplicable,
    Workload,
    has_fake_files,
)
from pytest_dataloader_faults.faults import Fault
from pytest_dataloader_faults.faults.globs import GlobMatcher
from pytest_dataloader_faults.outcomes import Contract, Finding, Outcome, Reference, reference
from pytest_dataloader_faults.outcomes.agreement import BY_FORM, EXACT, Comparison, Mask
from pytest_dataloader_faults.outcomes.judge import judge
from pytest_dataloader_faults.outcomes.repeats import (
    JudgedTrial,
    run_without_vain_waits,
    was_killed,
)
from pytest_dataloader_faults.outcomes.stages import FileHistory
from pytest_dataloader_faults.outcomes.text import pluralize
from pytest_dataloader_faults.steps import ONE_EPOCH, TrialOptions, run_epochs

_ENOUGH_SECONDS = 5.0
"""If reading the usual number of samples would take longer, fewer are checked."""
ONE_WORKER: Mapping[str, Any] = {"num_workers": 1}
_TWO_WORKERS: Mapping[str, Any] = {"num_workers": 2}
_WATCHED = TrialOptions(watch_files=True)
_FOLLOWED = TrialOptions(watch_files=True, processes=run_epochs(before_init=True))
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
_Found = TypeVar("_Found")


@dataclass(frozen=True)
class FollowedRun:
    """An epoch without a fault, in which files were followed from the constructor on. Plain data.

    Files that a run rewrites, or creates in its own folder, cannot be damaged before the next run.

    Attributes:
        outcome: Its facts.
        rewritten: The files that it rewrote.
        created: The files that it created in its own folder.
    """

    outcome: Outcome
    rewritten: frozenset[str] = frozenset()
    created: frozenset[str] = frozenset()

    @classmethod
    def of(cls, outcome: Outcome, began: int, folders: OwnFolders) -> FollowedRun:
        """The facts of a run that *began* at that time, in ns, with its own *folders*."""
        used = {path for each in outcome.processes for path in each.files}
        created = frozenset(filter(folders.is_made_by_dataset, used))
        rewritten = (each for each in used - created if last_change(folders.original(each)) > began)
        return cls(outcome, frozenset(rewritten), created)

    @property
    def changed(self) -> frozenset[str]:
        """The files that cannot be damaged before the run."""
        return self.rewritten | self.created

    @property
    def writer(self) -> str:
        """Who changes them: BY_FACTORY or BY_WORKERS."""
        by_main = paths_with([self.outcome.main] if self.outcome.main else [], "writes")
        by_workers = paths_with(self.outcome.workers, "writes") - by_main
        return BY_WORKERS if self._read & self.changed <= by_workers else BY_FACTORY

    @property
    def _read(self) -> set[str]:
        return paths_with(self.outcome.processes, "reads")

    def refusal(self, globs: tuple[str, ...]) -> NotApplicable | None:
        """Why the files that match *globs* cannot be damaged beforehand, and advice; or None."""
        read = set(filter(GlobMatcher(globs), self._read))
        if not read or read - self.changed:
            return None
        paths = (*sorted(read & self.rewritten), *sorted(read & self.created))
        files = f"({names_of(paths)}), so they cannot be damaged before it is called"
        return NotApplicable(f"{self.writer} {files}", self.writer, remedy=_REMEDIES[self.writer])

    def notes(self, globs: tuple[str, ...]) -> tuple[str, ...]:
        """A note about rewritten files, if other files can be damaged beforehand."""
        paths = tuple(sorted(filter(GlobMatcher(globs), self._read & self.rewritten)))
        files = f"{pluralize(len(paths), 'file')} that each run writes ({names_of(paths)})"
        return (f"{files} cannot be damaged before make_dataset() is called",) if paths else ()


_TIMES, _LEAST_BYTES = 4, 8_000_000
"""A retry reads the same again, and a worker that starts reads modules."""


def _most_bytes_of(fault_free: Outcome | None) -> int | None:
    """How many bytes a pass may read before it reads the same again and again.

    *fault_free*: a pass without a fault. None if that does not say it.
    """
    if fault_free is None or fault_free.unobserved:
        return None
    files = [counts for worker in fault_free.workers for counts in worker.files.values()]
    return max(_LEAST_BYTES, _TIMES * sum(each.bytes for each in files))


class FaultFreeRun:
    """A dataset without faults: its reference, and one epoch.

    Attributes:
        comparison: How samples are compared.
        runs: The epochs without a fault, with the loader that was passed: one, or two if a process
            of the first was killed.
        working: The epoch that faults are chosen by. It is the last of *runs*, unless that fails.
        followed: The same epoch, if files could be followed from the constructor on; or None.
        not_followed: Why they could not, or None.
        changes: Loader options that the dataset needs to work without a fault.
        cached: The files that the workers read, and that were created while the dataset was read.
        unusable_reason: Why the dataset does not work with these options either, or None.
        limited_settings: The settings, with the number of samples that are checked.
        fails_in_ranks: Whether the dataset fails without a fault, but with several ranks.
    """

    fails_in_ranks = False
    followed: FollowedRun | None = None
    not_followed: NotApplicable | None = None
    _sound: Outcome | None = None

    def __init__(
        self,
        make_dataset: DatasetFactory,
        settings: Settings,
        *,
        attempts: Sequence[Mapping[str, Any]] = ({}, ONE_WORKER),
    ) -> None:
        """*attempts*: loader options for the fault-free epoch, and for repeats if it fails."""
        check(make_dataset=make_dataset)
        require_engine()
        self.make_dataset, self.settings = make_dataset, settings
        self.contract = settings.contract
        self.deadlines = Deadlines(settings)
        self.comparison = EXACT
        self.changes: Mapping[str, Any] = {}
        self.history = FileHistory()
        self.unusable_reason: str | None = None
        self._references: dict[Comparison, Reference] = {}
        self._seconds = _ENOUGH_SECONDS if settings.samples == SAMPLES else None
        self._batch_size: int | None = None
        self.limited_settings = settings
        self._findings: dict[str, Any] = {}
        began = time.time_ns()
        for comparison in self._comparisons():
            self.comparison = comparison
            self._run(attempts)
            if self.unusable_reason is None:
                break
        self.cached = find_new_files(began, self.working)

    @property
    def outcome(self) -> Outcome:
        """The epoch without a fault, with the loader that was passed."""
        return self.runs[-1]

    @property
    def is_reusable(self) -> bool:
        """Whether later checks may use this run: it passed, and no process of it was killed."""
        findings = [getattr(each, "outcome", None) for each in self._findings.values()]
        if self.not_followed is not None and self.not_followed.fatal is not None:
            findings.append(self.not_followed.fatal.outcome)
        outcomes = (self.outcome, *filter(None, findings))
        return not (self.unusable_reason or any(map(was_killed, outcomes)))

    def passes_again(self) -> bool:
        """Whether the dataset still passes without a fault."""
        return self.judge(self.run_fault_free()[-1], Contract()).passed

    def find_once(self, name: str, find: Callable[[], _Found]) -> _Found:
        """What *find* returns about the dataset; it is called once for each *name*."""
        if name not in self._findings:
            self._findings[name] = find()
        finding: _Found = self._findings[name]
        return finding

    def require_pass(self, trial: JudgedTrial, reason: str, group: str) -> None:
        """Raise NotApplicable if the dataset fails in *trial*, which has no fault."""
        if not trial.finding.passed:
            self.fails_in_ranks = True
            raise _refuse(trial, reason, group)

    @property
    def worker_epoch(self) -> Reference | None:
        """The samples of an epoch of workers, if only that shows their content."""
        if self.unusable_reason is not None:
            return None
        facts = (self.reference, self.contract, self.settings.seed, self.run_fault_free)
        return self.find_once("epoch of workers", partial(take_worker_epoch, *facts))

    @cached_property
    def workload(self) -> Workload:
        """What the workers do, and which files can be damaged before the dataset is created."""
        in_workers, followed = self._workload_of(self.working), self.followed
        if followed is None:
            return replace(in_workers, at_rest=(replace(in_workers, refusal=self.not_followed),))
        everything = self._workload_of(followed.outcome)
        at_rest = replace(
            everything,
            paths=everything.paths - followed.changed,
            is_at_rest=True,
            refusal=followed.refusal(self.settings.files),
        )
        rewritten = replace(in_workers, paths=in_workers.paths & followed.changed)
        return replace(in_workers, at_rest=(at_rest, rewritten) if rewritten.paths else (at_rest,))

    def _workload_of(self, outcome: Outcome) -> Workload:
        settings = self.settings
        facts = (settings.files, self.own_folders, self.cached, self.reference, settings.ranks)
        return Workload.of(outcome, *facts)

    @property
    def notes(self) -> tuple[str, ...]:
        """What to know about every trial with faults of files."""
        return notes_on_changed(self.cached, self.outcome)

    @property
    def own_folders(self) -> OwnFolders:
        """The folders that belong to a single trial."""
        copy = self.settings.copy
        return OwnFolders(bind_factory(self.make_dataset, copy=copy)[1], copy)

    @property
    def reference(self) -> Reference:
        """The reference for the comparison of this run."""
        return self._references[self.comparison]

    @property
    def without_seeds(self) -> Comparison:
        """The comparison for trials that do not seed random numbers."""
        if self.comparison.seeded is None:
            return self.comparison
        return self.find_once("without seeds", lambda: self._take(BY_FORM).comparison)

    def run_trial(self, *faults: Fault, **arguments: Any) -> Outcome:
        """One trial; *arguments* are those of ``job``."""
        job = self.job(*faults, **arguments)
        return run_without_vain_waits(
            lambda unprovoked: run_trial_job(replace(job, unprovoked=unprovoked)),
            lambda outcome: not (faults or self.judge(outcome, Contract()).passed),
        )

    def run_fault_free(self, **arguments: Any) -> list[Outcome]:
        """A trial without a fault, and another one if a process of it was killed."""
        return repeat_if_killed(lambda: self.run_trial(**arguments), was_killed)

    def job(
        self,
        *faults: Fault,
        changes: Mapping[str, Any] | None = None,
        comparison: Comparison | None = None,
        deadline: float | None = None,
        options: TrialOptions = ONE_EPOCH,
        may_take_longer: bool = True,
    ) -> Job:
        """A trial; *changes*: loader options in place of the fault-free run's own changes."""
        return Job(
            make_dataset=self.make_dataset,
            faults=faults,
            settings=replace(self.limited_settings, deadline=deadline or self.deadlines.for_trial),
            changes=self._allowed_changes(self.changes if changes is None else changes),
            comparison=comparison or self.comparison,
            options=options,
            batch_size=self._batch_size,
            draws=self.reference.draws,
            length=self.reference.readable,
            needs_workers=True,
            recovers_in_workers=bool(self.reference.workers),
            history=self.history,
            may_take_longer=may_take_longer,
            most_bytes=_most_bytes_of(getattr(self, "working", None)),
        )

    def _allowed_changes(self, changes: Mapping[str, Any]) -> Mapping[str, Any]:
        """The *changes* of loader options that the dataset allows: it may reject other numbers."""
        if self.reference.workers <= 1:
            return changes
        return {name: value for name, value in changes.items() if name != "num_workers"}

    def judge(self, outcome: Outcome, contract: Contract | None = None) -> Finding:
        """The verdict on *outcome*, by *contract* or else by the fault-free run's own."""
        return judge(outcome, self.reference_for(outcome), contract or self.contract)

    def reference_for(self, outcome: Outcome) -> Reference:
        """The reference for *outcome*."""
        if outcome.comparison.in_workers and (worker_reference := self.worker_epoch):
            return replace(worker_reference, fault_free=self._sound)
        known_reference = self._references.get(outcome.comparison, self.reference)
        return replace(known_reference, fault_free=self._sound)

    def _comparisons(self) -> Iterator[Comparison]:
        """The comparisons to try, until the dataset passes without a fault."""
        yield self._adapt(Comparison(seeded=self.settings.seed))
        if self.contract.key is not None or not self.comparison.allows_for_randomness:
            return
        if self.comparison.mask and not self.comparison.by_form:
            # A part that rarely varies may be the same in two reads.
            yield self._adapt(self.comparison)
        if not self.comparison.by_form:
            yield self._adapt(BY_FORM)
        yield self._adapt(replace(self.comparison, mask=Mask(types_only=("",))))

    def _adapt(self, comparison: Comparison) -> Comparison:
        """The closest comparison, no closer than *comparison*, by which two reads agree."""
        return self._take(comparison).comparison

    def _take(self, comparison: Comparison) -> Reference:
        """The reference for a comparison that is no closer than *comparison*.

        The first one may have fewer samples than the settings say; the others then have as many.
        """
        # Random samples that are read again differ from their batch, whatever made that.
        if any(each.comparison.in_batches for each in self._references.values()):
            comparison = replace(comparison, in_batches=True)
        taken = take_reference(
            self.make_dataset,
            self.limited_settings,
            TakeReference(seconds=self._seconds, adapts_comparison=True),
            comparison=comparison,
            batch_size=self._batch_size,
            history=self.history,
        )
        self._references[taken.comparison] = taken
        self.limited_settings, self._seconds = replace(self.settings, samples=taken.limit), None
        self._batch_size = taken.batch_size
        return taken

    def _run(self, attempts: Sequence[Mapping[str, Any]]) -> None:
        """The fault-free epoch; another one if it shows that workers draw samples of their own."""
        if self.reference.workers > 1:
            attempts = [self._allowed_changes(attempts[0])]
        self._run_fault_free(attempts)
        if (count := self._count_own_samples(attempts[0])) is not None:
            self.comparison = self._adapt(replace(BY_FORM, limit=count, differs_per_worker=True))
            self._run_fault_free(attempts)

    def _count_own_samples(self, options: Mapping[str, Any]) -> int | None:
        """How many separate random samples each worker delivered, or None."""
        if self.comparison.limit is not None or self.reference.kind == "map":
            return None
        changes = _TWO_WORKERS if options == ONE_WORKER else options
        is_same_loader = changes == options
        outcome = self.outcome if is_same_loader else self.run_fault_free(changes=changes)[-1]
        if self.judge(outcome, Contract()).passed:
            return None
        count = count_own_samples(outcome, self.reference)
        if count is None or self.comparison.by_form:
            return count
        # The reference was the same twice; samples that depend on a race between workers are not.
        again = self.run_fault_free(changes=changes)[-1]
        return count if digests_by_worker(again) == digests_by_worker(outcome) else None

    def _run_fault_free(self, attempts: Sequence[Mapping[str, Any]]) -> None:
        """Trials without a fault until one of them shows nothing wrong."""
        reference.require_samples(self.reference, self.contract)
        runs = []
        for self.changes in attempts:
            run, finding = self._follow()
            self.deadlines.record_epoch(0 if run[-1].timed_out else run[-1].duration)
            runs.append(run)
            if finding.passed:
                break
        self.runs = runs[0]
        # The constructor's files count as the workers' only if they use them.
        self.working = replace(runs[-1][-1], processes=runs[-1][-1].workers)
        suffix = " and with one worker" if self.changes == ONE_WORKER else ""
        why = f"it fails even without a fault{suffix} ({finding.sentence}); see workers-agree"
        self.unusable_reason = None if finding.passed else why
        self._sound = runs[-1][-1] if finding.passed else None

    def _follow(self) -> tuple[list[Outcome], Finding]:
        """An epoch without a fault, and the finding on it.

        Files are followed from the constructor on, or in the workers only if that fails.
        """
        self.followed = self.not_followed = None
        if has_fake_files():
            self.not_followed = NotApplicable(NEEDS_REAL_FILES)
            return self.run_watched()
        began = time.time_ns()
        run, finding = self.run_watched(_FOLLOWED)
        if finding.passed:
            self.followed = FollowedRun.of(run[-1], began, self.own_folders)
            return run, finding
        error = run[-1].exception
        group = _FAILS_AGAIN.format(error.type) if error else _NOT_FOLLOWED
        self.not_followed = _refuse(JudgedTrial(run[-1], finding), _FAILS_FOLLOWED, group)
        return self.run_watched()

    def run_watched(self, options: TrialOptions = _WATCHED) -> tuple[list[Outcome], Finding]:
        """An epoch without a fault, whose files are watched, and the finding on it."""
        run = self.run_fault_free(options=options)
        return run, self.judge(run[-1], Contract())


def _refuse(trial: JudgedTrial, reason: str, group: str) -> NotApplicable:
    """Why a check does not apply to a dataset that fails in *trial*, which has no fault."""
    fatal = trial if was_killed(trial.outcome) else None
    return NotApplicable(reason.format(trial.finding.sentence), group, fatal)
