"""Run a trial of several ranks: one job for each, and one outcome of all [runs in pytest]."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TypeVar

from pytest_dataloader_faults import exceptions
from pytest_dataloader_faults._arguments import ArgumentRule, is_int
from pytest_dataloader_faults._engine.system.temporary import AnonymousFile
from pytest_dataloader_faults._settings import check
from pytest_dataloader_faults._settings.jobs import Job, Rank, TrialJob
from pytest_dataloader_faults._trial.journal import JournalEvent, PassEnded, TrialEnded
from pytest_dataloader_faults.outcomes import Outcome

ALL = "all"
_Job = TypeVar("_Job", bound=Job)
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


def require_ranks(ranks: int | None, on_rank: int | str | None = None) -> None:
    """Refuse what no trial of *ranks* can be.

    Raises:
        InvalidArgumentError: An argument cannot be used.
    """
    check(ranks=ranks)
    if ranks is None:
        if on_rank is not None:
            message = f"on_rank={on_rank!r} selects one of several ranks: pass ranks=2 or more"
            raise exceptions.InvalidArgumentError(message)
        return
    allowed = f"an int from 0 to {ranks - 1} (with ranks={ranks}), 'all', or None for the last one"
    ArgumentRule(lambda value: value in (None, ALL) or is_int(value, 0, ranks - 1), allowed).check(
        "on_rank", on_rank
    )


def _require_gloo(ranks: int) -> None:
    """Refuse *ranks* if torch lacks gloo, or has a process group that they would inherit."""
    from torch import distributed

    if not (distributed.is_available() and distributed.is_gloo_available()):
        message = _NO_GLOO.format(ranks)
        raise exceptions.UnusableEnvironmentError(message, "torch without gloo")
    if distributed.is_initialized():
        raise exceptions.InvalidArgumentError(_HAS_GROUP.format(ranks))


@contextlib.contextmanager
def split_by_rank(job: _Job, ranks: int, on_rank: int | str | None) -> Iterator[list[_Job]]:
    """*job* for each of that many *ranks*; its faults are armed in one, or in all of them.

    Each rank has its own random numbers, like ranks that are not seeded.
    """
    _require_gloo(ranks)
    from pytest_dataloader_faults._trial.process_group import free_port

    store = AnonymousFile("ranks")
    try:
        port, recovers, seed = free_port(), bool(job.faults), job.settings.seed
        armed = ranks - 1 if on_rank is None else on_rank
        yield [
            replace(
                job,
                faults=job.faults if armed in (number, ALL) else (),
                settings=replace(job.settings, seed=(seed + number * _SEEDS_APART) % _SEEDS),
                rank=Rank(number, ranks, store.fd, port, recovers),
            )
            for number in range(ranks)
        ]
    finally:
        store.close()


def make_only_rank(job: _Job, ranks: int | None) -> _Job:
    """*job* as the only rank, if its dataset is one for several *ranks*."""
    if ranks is None:
        return job
    _require_gloo(ranks)
    from pytest_dataloader_faults._trial.process_group import free_port

    return replace(job, rank=Rank(port=free_port()))


def combine_outcomes(
    job: TrialJob, results: Sequence[tuple[Outcome, Sequence[JournalEvent]]]
) -> Outcome:
    """One outcome of all ranks: that of the rank which was the first to fail.

    If none failed, it is that of the first rank with faults, or else of rank 0.
    """
    outcomes = tuple(outcome for outcome, _ in results)
    failed = {
        number: _failed_at(*result)
        for number, result in enumerate(results)
        if _has_failed(result[0])
    }
    causes = {number: at for number, at in failed.items() if not outcomes[number].has_lost_rank}
    number_of_first = next((number for number, each in enumerate(outcomes) if each.schedule), 0)
    if failed:
        number_of_first = min(causes or failed, key=lambda number: (causes or failed)[number])
    first = outcomes[number_of_first]
    return replace(first, request=replace(first.request, seed=job.settings.seed), ranks=outcomes)


def _has_failed(outcome: Outcome) -> bool:
    return bool(outcome.timed_out or outcome.died or outcome.exception)


def _failed_at(outcome: Outcome, events: Sequence[JournalEvent]) -> float:
    """When it failed, by the clock of all ranks."""
    for event in events:
        match event:
            case PassEnded(at, result) if result.exception:
                return at
            case TrialEnded():
                return event.began + outcome.duration
    return math.inf
