"""Rank checks: a training job has a loader in each of its processes. Pure."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

from pytest_dataloader_faults.battery.checks._base import (
    Scenario,
    check,
    for_each_kind,
)
from pytest_dataloader_faults.battery.checks.ranks.generators import TWO_EPOCHS, find_same_numbers
from pytest_dataloader_faults.battery.checks.ranks.shared_folder import hold_writes
from pytest_dataloader_faults.battery.workload import Workload
from pytest_dataloader_faults.faults import ReadError, WorkerKilled
from pytest_dataloader_faults.outcomes import Finding, Outcome, Reference, Verdict
from pytest_dataloader_faults.outcomes.contract import Cause

RANKS_AGREE = "ranks-agree"
WITHOUT_RANKS = (
    "it applies to training with several processes: pass ranks=2, or --dataloader-faults-ranks=2"
)
SAME_ORDER = Cause(
    "shuffles every epoch identically",
    "Before each epoch, set_epoch() was called on the loader, its samplers and its dataset, if they"
    " have it. Shuffle with a seed and that number, in the same way on all ranks",
    overrides=True,
    fix="shuffle with the seed plus the epoch of set_epoch()",
)
_HALVES = 2


def _find_violation(outcome: Outcome, _: Reference) -> Finding | None:
    """The same random numbers on two ranks, or the same order in both epochs."""
    return find_same_numbers(outcome) or _find_same_order(outcome)


@check(
    RANKS_AGREE,
    "together, the ranks of a training job deliver each sample exactly once, in the same number of"
    " batches each, draw different random numbers, and shuffle each epoch in another order",
    scenario=Scenario(ranks=True, watch_files=True, processes=TWO_EPOCHS),
    rule=_find_violation,
    advice="Split the samples by rank and by worker: torch.distributed.get_rank() and"
    " get_world_size(), or RANK and WORLD_SIZE, and get_worker_info(). For indices use"
    " DistributedSampler; for streams, webdataset's split_by_node or datasets'"
    " split_dataset_by_node. Every rank needs the same number of batches: drop the remainder, or"
    " repeat samples. If a trainer adds its own sampler to the loader, or make_dataset divides a"
    " map-style dataset, pass the loader that the trainer uses",
)
def ranks_agree(workload: Workload) -> Iterator[Scenario]:
    """Two epochs without a fault, and then in one folder, if make_dataset takes one.

    In the first trial each rank has its own folder, so that a race does not hide other failures.
    """
    yield Scenario()
    if workload.own_folders.paths:
        yield Scenario(
            title="in one folder",
            processes=hold_writes(),
            shares_folder=True,
            circumstance="when the ranks shared a folder, and rank 0 waited after it had created a"
            " file",
        )


@check(
    "rank-stops",
    "if the disk of one rank fails halfway, or one of its workers dies, all ranks stop in time or"
    " stay in step",
    scenario=Scenario(ranks=True),
    preface="The fault was injected into one rank, as if one of several machines had a failing"
    " disk",
    advice="Raise the error, so that the job stops and can be restarted. If a rank may skip"
    " samples, have the ranks agree on a number of batches, or substitute other samples for the"
    " skipped ones",
)
def rank_stops(workload: Workload) -> Iterator[Scenario]:
    """A death, which the dataset cannot see, and a read error, which it may catch.

    Halfway, so that each rank has had batches, and is waited for.
    """
    yield Scenario(faults=(WorkerKilled(),), title="a worker dies")
    if workload.read:
        yield from _fail_halfway(workload)


@for_each_kind
def _fail_halfway(workload: Workload) -> Iterator[Scenario]:
    # A worker that the loader keeps has made all epochs.
    epoch = workload.reads // len(workload.fault_free.epochs)
    fault = ReadError(workload.read.path, nth=max(1, epoch // _HALVES))
    yield Scenario(faults=(fault,), title="a read fails")


def _find_same_order(outcome: Outcome) -> Finding | None:
    """A shuffled order that does not change with the epoch."""
    for number, rank in enumerate(outcome.ranks):
        orders = [[index for batch in epoch.drawn for index in batch] for epoch in rank.epochs]
        is_same = len(orders) > 1 and orders[0] == orders[1]
        if is_same and len(orders[0]) > 1 and not _is_in_order(orders[0]):
            sentence = (
                f"rank {number} drew its samples in the same order in both epochs, although they"
                " are shuffled"
            )
            return Finding(Verdict.CORRUPTED, sentence, SAME_ORDER)
    return None


def _is_in_order(drawn: Sequence[Any]) -> bool:
    """Whether *drawn* is sorted, except that it may start over once to fill up the last batches."""
    try:
        falls = sum(index > next_index for index, next_index in itertools.pairwise(drawn))
    except TypeError:  # A sampler can draw objects of any type.
        falls = sum(
            repr(index) > repr(next_index) for index, next_index in itertools.pairwise(drawn)
        )
    return bool(falls <= 1)


RANKS = (ranks_agree, rank_stops)
