"""Rank checks: a training job has a loader in each of its processes. Pure."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

from pytest_dataloader_faults import faults
from pytest_dataloader_faults._settings import Settings
from pytest_dataloader_faults._settings.jobs import Job, TrialJob
from pytest_dataloader_faults.battery.checks._base import (
    Check,
    Scenario,
    Scenarios,
    TrialKind,
    for_each_kind,
    no_fault,
)
from pytest_dataloader_faults.battery.checks.ranks.generators import (
    RECORDED_EPOCH,
    find_same_numbers,
)
from pytest_dataloader_faults.battery.checks.ranks.rules import SAME_ORDER
from pytest_dataloader_faults.battery.checks.ranks.shared_folder import (
    DISTURBS_RANKS,
    PREFACE,
    hold_writes,
)
from pytest_dataloader_faults.battery.workload import Workload
from pytest_dataloader_faults.faults import Fault
from pytest_dataloader_faults.outcomes import Contract, Finding, Outcome, Reference, Verdict
from pytest_dataloader_faults.outcomes.repeats import JudgedTrial
from pytest_dataloader_faults.steps import run_epochs

if TYPE_CHECKING:
    from pytest_dataloader_faults.battery.checks.ranks.fault_free import FaultFreeRanks
    from pytest_dataloader_faults.battery.fault_free_run import FaultFreeRun

RANKS_AGREE = "ranks-agree"
WITHOUT_RANKS = (
    "it applies to training with several processes: pass ranks=2, or --dataloader-faults-ranks=2"
)
_RANKS_FAIL = "its ranks fail even without a fault ({}); see ranks-agree"
_Job = TypeVar("_Job", bound=Job)
_HALVES = 2
_DISTURBED = (Verdict.CORRUPTED, Verdict.FAILS_WITHOUT_FAULT, Verdict.HUNG)
_FAULT_IN_ONE_RANK = (
    "The fault was injected into one rank, as if one of several machines had a failing disk"
)
_SPLIT_ADVICE = (
    "Split the samples by rank and by worker: torch.distributed.get_rank() and get_world_size(), or"
    " RANK and WORLD_SIZE, and get_worker_info(). For indices use DistributedSampler; for streams,"
    " webdataset's split_by_node or datasets' split_dataset_by_node. Every rank needs the same"
    " number of batches: drop the remainder, or repeat samples. If a trainer adds its own sampler"
    " to the loader, or make_dataset divides a map-style dataset, pass the loader that the trainer"
    " uses"
)
_EPOCH_ADVICE = (
    "Before each epoch, set_epoch() was called on the loader, its samplers and its dataset, if they"
    " have it. Shuffle with a seed and that number, in the same way on all ranks"
)
_STEP_ADVICE = (
    "Raise the error, so that the job stops and can be restarted. If a rank may skip samples, have"
    " the ranks agree on a number of batches, or substitute other samples for the skipped ones"
)


class RankTrials(TrialKind):
    """Trials of several ranks, with faults in one of them."""

    fault_free_check = RANKS_AGREE
    may_compare_workers = False

    def includes(self, scenario: Scenario) -> bool:
        """Whether it has several ranks."""
        return scenario.ranks

    def requirement(self, settings: Settings) -> str:
        """How many ranks there are."""
        return WITHOUT_RANKS if settings.ranks is None else ""

    def fault_free_outcome(self, run: FaultFreeRun) -> Outcome:
        """An epoch of all ranks without a fault."""
        return _find_ranks(run).outcome

    def fault_free_runs(self, run: FaultFreeRun) -> list[Outcome]:
        """The epochs of all ranks without a fault: two if a process of the first was killed."""
        return list(_find_ranks(run).runs)

    def run_trial(self, run: FaultFreeRun, *faults: Fault, **arguments: Any) -> Outcome:
        """One trial of all ranks, with *faults* in one of them."""
        from pytest_dataloader_faults.battery.checks.ranks.fault_free import run_faulty_rank

        return run_faulty_rank(run, *faults, **arguments)

    def reference_for(self, run: FaultFreeRun, outcome: Outcome) -> Reference:  # noqa: ARG002  # one for all
        """The reference, with that of each rank."""
        from pytest_dataloader_faults.battery.checks.ranks.fault_free import reference_for

        return reference_for(run)

    def workload(self, run: FaultFreeRun) -> Workload:
        """What the workers of the rank with the faults do in the fault-free run."""
        ranks = _find_ranks(run)
        trial = JudgedTrial(ranks.outcome, self.judge(run, ranks.outcome, Contract()))
        run.require_pass(trial, _RANKS_FAIL, "its ranks do not agree")
        return Workload.of(ranks.outcome.ranks[ranks.faulty_rank], run.settings.files)


def run_ranks(job: TrialJob, on_rank: int | str | None = None) -> Outcome:
    """Run the *job* in as many processes at once as its settings have ranks.

    *on_rank*: the rank in which the faults are armed, or ``"all"``; None for the last one.
    """
    from pytest_dataloader_faults.battery.checks.ranks import trials

    trials.refuse_before_init(job)
    return trials.run_ranks(job, on_rank)


def make_only_rank(job: _Job) -> _Job:
    """*job* as the only rank, although its dataset is one for several ranks."""
    from pytest_dataloader_faults.battery.checks.ranks import trials

    return trials.make_only_rank(job)


def _find_ranks(run: FaultFreeRun) -> FaultFreeRanks:
    from pytest_dataloader_faults.battery.checks.ranks.fault_free import find_ranks

    return find_ranks(run)


@for_each_kind
def _fails_halfway(workload: Workload) -> faults.Fault:
    return faults.ReadError(workload.read.path, nth=max(1, workload.reads // _HALVES))


class _SharedFolderCheck(Check):
    """A check of what the ranks do to each other: alone, each of them passes."""

    def refine(self, finding: Finding, outcome: Outcome, reference: Reference) -> Finding:
        """The finding, of which the shared folder is the cause."""
        finding = super().refine(finding, outcome, reference)
        is_caused = finding.verdict in _DISTURBED
        return replace(finding, cause=DISTURBS_RANKS) if is_caused else finding


def _hold_writes(_: Workload) -> Scenarios:
    return (
        Scenario(title="new files"),
        Scenario(title="new folders", processes=hold_writes(1, before_folders=True)),
    )


def _is_in_order(drawn: Sequence[Any]) -> bool:
    """Whether *drawn* is sorted, except that it may start over once to fill up the last batches."""
    try:
        falls = sum(index > next_index for index, next_index in itertools.pairwise(drawn))
    except TypeError:  # A sampler can draw objects of any type.
        falls = sum(
            repr(index) > repr(next_index) for index, next_index in itertools.pairwise(drawn)
        )
    return bool(falls <= 1)


def _same_order(outcome: Outcome, _: Reference) -> Finding | None:
    """A shuffled order that does not change with the epoch."""
    for number, rank in enumerate(outcome.ranks):
        first_order, second_order = (
            [index for batch in epoch.drawn for index in batch] for epoch in rank.epochs
        )
        if len(first_order) > 1 and first_order == second_order and not _is_in_order(first_order):
            sentence = (
                f"rank {number} drew its samples in the same order in both epochs, although they"
                " are shuffled"
            )
            return Finding(Verdict.CORRUPTED, sentence, SAME_ORDER)
    return None


RANKS = (
    Check(
        RANKS_AGREE,
        "together, the ranks of a training job deliver each sample exactly once, in the same number"
        " of batches each, and draw different random numbers",
        no_fault,
        scenario=Scenario(ranks=True, watch_files=True, processes=RECORDED_EPOCH),
        rule=find_same_numbers,
        advice=_SPLIT_ADVICE,
    ),
    Check(
        "ranks-next-epoch",
        "the same in the second epoch, in a different order if samples are shuffled",
        no_fault,
        scenario=Scenario(ranks=True, processes=run_epochs(2)),
        rule=_same_order,
        advice=_EPOCH_ADVICE,
    ),
    _SharedFolderCheck(
        "ranks-share-folder",
        "ranks that prepare the same files in one folder do not disturb each other",
        _hold_writes,
        scenario=Scenario(ranks=True, processes=hold_writes(2)),
        preface=PREFACE,
        is_about_errors=True,
    ),
    Check(
        "rank-read-error",
        "if the disk of one rank fails halfway, all ranks stop in time or stay in step",
        _fails_halfway,
        scenario=Scenario(ranks=True),
        preface=_FAULT_IN_ONE_RANK,
        advice=_STEP_ADVICE,
    ),
    Check(
        "rank-worker-killed",
        "if a worker of one rank dies, all ranks stop in time",
        lambda _: faults.WorkerKilled(),
        scenario=Scenario(ranks=True),
        preface=_FAULT_IN_ONE_RANK,
    ),
)
