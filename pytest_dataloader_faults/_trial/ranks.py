"""Run a job in several ranks: one job for each, and one outcome of all [runs in pytest].

A rank may fail because another one did. So the outcome of all ranks is that of the one which was
the first to fail, by the clock that all processes of a machine share.
"""

from __future__ import annotations

import contextlib
import math
import socket
from collections.abc import Iterator, Sequence
from dataclasses import replace

from pytest_dataloader_faults import exceptions
from pytest_dataloader_faults._arguments import ArgumentRule, is_int
from pytest_dataloader_faults._engine.system.temporary import AnonymousFile
from pytest_dataloader_faults._settings import check
from pytest_dataloader_faults._trial import (
    outcome_of,
    require_engine_for_job,
    run_together,
)
from pytest_dataloader_faults._trial.job import LOOPBACK, Job, Rank
from pytest_dataloader_faults._trial.journal import JournalEvent, PassEnded, TrialEnded
from pytest_dataloader_faults.outcomes import Outcome

CALLS_USER_CODE = True

ALL = "all"
_SEEDS_APART = 1_000_003
_SEEDS = 1 << 32
_HAS_GROUP = (
    "ranks={} needs its own process group, but pytest's process already has one, from"
    " torch.distributed.init_process_group(). Call that in make_dataset, or call"
    " destroy_process_group() first"
)
_NO_GLOO = (
    "ranks={} needs torch.distributed with gloo, which this build of torch lacks. Install a build"
    " that has it, or remove ranks"
)


def run_ranks(
    request: Job,
    on_rank: int | str | None = None,
    *,
    shares_folder: bool = False,
) -> Outcome:
    """Run the job in as many processes at once as its settings have ranks.

    *on_rank*: the rank in which the faults are armed, or ``"all"``; None for the last one.
    *shares_folder*: as in ``Rank``.

    Raises:
        InvalidArgumentError: An argument cannot be used.
    """
    ranks = _require_ranks(request.settings.ranks, on_rank)
    require_engine_for_job(request)
    with _split_by_rank(request, ranks, on_rank, shares_folder=shares_folder) as jobs:
        records = run_together(*jobs)
    outcomes = tuple(outcome_of(*each) for each in zip(jobs, records, strict=True))
    failed = {
        number: _failed_at(outcome, record.events)
        for number, (outcome, record) in enumerate(zip(outcomes, records, strict=True))
        if outcome.timed_out or outcome.died or outcome.exception
    }
    causes = [number for number in failed if not outcomes[number].has_lost_rank]
    armed = next((number for number, each in enumerate(outcomes) if each.schedule), 0)
    first = outcomes[min(causes or failed, key=lambda number: failed[number], default=armed)]
    request_of_all = replace(first.request, seed=request.settings.seed)
    return replace(first, request=request_of_all, ranks=outcomes)


def make_only_rank(job: Job) -> Job:
    """*job* as the only rank, although its dataset is one for several ranks."""
    _require_gloo(_require_ranks(job.settings.ranks))
    return replace(job, rank=Rank(port=_free_port()))


def _require_ranks(ranks: int | None, on_rank: int | str | None = None) -> int:
    """How many *ranks* there are; raises InvalidArgumentError if there are none."""
    check(ranks=ranks)
    if ranks is None:
        message = f"on_rank={on_rank!r} selects one of several ranks: pass ranks=2 or more"
        raise exceptions.InvalidArgumentError(message)
    allowed = f"an int from 0 to {ranks - 1} (with ranks={ranks}), 'all', or None for the last one"
    ArgumentRule(lambda value: value in (None, ALL) or is_int(value, 0, ranks - 1), allowed).check(
        "on_rank", on_rank
    )
    return ranks


def _free_port() -> int:
    """A port for MASTER_PORT, on which nothing listens."""
    with socket.socket() as probe:
        probe.bind((LOOPBACK, 0))
        return int(probe.getsockname()[1])


def _require_gloo(ranks: int) -> None:
    """Refuse *ranks* if torch lacks gloo, or has a process group that they would inherit."""
    from torch import distributed

    if not (distributed.is_available() and distributed.is_gloo_available()):
        message = _NO_GLOO.format(ranks)
        raise exceptions.UnusableEnvironmentError(message, "torch without gloo")
    if distributed.is_initialized():
        raise exceptions.InvalidArgumentError(_HAS_GROUP.format(ranks))


@contextlib.contextmanager
def _split_by_rank(
    job: Job, ranks: int, on_rank: int | str | None, *, shares_folder: bool
) -> Iterator[list[Job]]:
    """*job* for each of that many *ranks*; its faults are armed in one, or in all of them.

    Each rank has its own random numbers, like ranks that are not seeded.
    """
    _require_gloo(ranks)
    store = AnonymousFile("ranks")
    try:
        port, recovers, seed = _free_port(), bool(job.faults), job.settings.seed
        armed = ranks - 1 if on_rank is None else on_rank
        yield [
            replace(
                job,
                faults=job.faults if armed in (number, ALL) else (),
                settings=replace(job.settings, seed=(seed + number * _SEEDS_APART) % _SEEDS),
                rank=Rank(number, ranks, recovers, shares_folder, store.fd, port),
            )
            for number in range(ranks)
        ]
    finally:
        store.close()


def _failed_at(outcome: Outcome, events: Sequence[JournalEvent]) -> float:
    """When it failed, by the clock of all ranks."""
    for event in events:
        match event:
            case PassEnded(at, result) if result.exception:
                return at
            case TrialEnded():
                return event.began + outcome.duration
    return math.inf
