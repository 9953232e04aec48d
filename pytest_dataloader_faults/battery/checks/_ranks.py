"""Checks of several ranks: a training job has a loader in each of its processes. Pure."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

from pytest_dataloader_faults import faults
from pytest_dataloader_faults._settings.jobs import TrialOptions
from pytest_dataloader_faults.battery._workload import Workload
from pytest_dataloader_faults.battery.checks._base import Check, Plan, for_each_kind, once
from pytest_dataloader_faults.outcomes import Outcome, Reference, Verdict
from pytest_dataloader_faults.outcomes.contract import Finding, Wrong

RANKS_AGREE = "ranks-agree"
WITHOUT_RANKS = (
    "it is asked of what several processes train on: give ranks=2, or --dataloader-faults-ranks=2"
)
_HALVES = 2
_IN_ONE = "The fault was in one rank, as when one machine of several has a bad disk"
_SPLIT = (
    "Split the samples by rank and by worker: torch.distributed.get_rank() and get_world_size(), or"
    " RANK and WORLD_SIZE, and get_worker_info(). For indices use DistributedSampler, for streams"
    " split_by_node of webdataset or split_dataset_by_node of datasets. Each rank needs as many"
    " batches as the others: leave out the rest, or begin again. Where a trainer adds a sampler of"
    " its own to a loader, or make_dataset divides a map-style dataset, hand over the loader that"
    " it trains with"
)
_EPOCH = (
    "Between the epochs set_epoch() was called on the loader, its samplers and its dataset, as far"
    " as they have it. Shuffle from a seed and that number, alike in all ranks"
)
_STEP = (
    "Raise the error, so that the job ends and can begin again. Where a rank may leave samples out,"
    " have the ranks agree on a number of batches that each has, or give other samples in place of"
    " those that were left out"
)


@for_each_kind
def _fails_half_way(workload: Workload) -> Plan:
    if not workload.read.paths:
        return workload.no_target("read")
    nth = max(1, workload.reads // _HALVES)
    return once(faults.ReadError(workload.read.path, nth=nth))


def _is_in_order(drawn: Sequence[Any]) -> bool:
    """Whether *drawn* is sorted, but for some that begin again: they fill up the last batches."""
    try:
        falls = sum(one > other for one, other in itertools.pairwise(drawn))
    except TypeError:  # What a sampler draws can be of any kind.
        falls = sum(repr(one) > repr(other) for one, other in itertools.pairwise(drawn))
    return bool(falls <= 1)


def _same_order(outcome: Outcome, _: Reference) -> Finding | None:
    """A shuffled order that does not change with the epoch."""
    for number, each in enumerate(outcome.ranks):
        first, second = ([index for batch in one.drawn for index in batch] for one in each.passes)
        if len(first) > 1 and first == second and not _is_in_order(first):
            sentence = (
                f"rank {number} drew its samples in the same order in both epochs, although they"
                " are shuffled"
            )
            return Finding(Verdict.CORRUPTED, sentence, Wrong.SAME_ORDER)
    return None


RANKS = (
    Check(
        RANKS_AGREE,
        "the ranks of a training job give each sample once together, in as many batches each",
        options=TrialOptions(watch_files=True),
        advice=_SPLIT,
        ranks=True,
    ),
    Check(
        "ranks-next-epoch",
        "the same in the second epoch, in another order where samples are shuffled",
        options=TrialOptions(epochs=2),
        extra_rule=_same_order,
        advice=_EPOCH,
        ranks=True,
    ),
    Check(
        "rank-read-error",
        "where the disk of one rank fails half way, all ranks end in time, or go on in step",
        _fails_half_way,
        preface=_IN_ONE,
        advice=_STEP,
        ranks=True,
    ),
    Check(
        "rank-worker-killed",
        "where a worker of one rank dies, all ranks end in time",
        lambda _: once(faults.WorkerKilled()),
        preface=_IN_ONE,
        ranks=True,
    ),
)
