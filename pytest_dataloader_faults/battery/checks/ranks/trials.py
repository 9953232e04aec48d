"""Run a job in several ranks: one job for each, and one outcome of all [runs in pytest]."""

from __future__ import annotations

import contextlib
import math
import socket
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from pytest_dataloader_faults import exceptions
from pytest_dataloader_faults._arguments import ArgumentRule, is_int
from pytest_dataloader_faults._engine.system.temporary import AnonymousFile
from pytest_dataloader_faults._settings import check
from pytest_dataloader_faults._settings.jobs import (
    Job,
    Meetings,
    Member,
    ReferenceJob,
    Replay,
    TrialJob,
)
from pytest_dataloader_faults._trial import (
    Record,
    has_died,
    is_armed_before_init,
    outcome_of,
    reference_of,
    repeat_if_killed,
    require_engine_for_job,
    run_together,
)
from pytest_dataloader_faults._trial.journal import Journal, JournalEvent, PassEnded, TrialEnded
from pytest_dataloader_faults.battery.checks.ranks.rules import has_lost_rank
from pytest_dataloader_faults.outcomes import Outcome, Reference

ALL = "all"
_LOOPBACK = "127.0.0.1"
_Job = TypeVar("_Job", bound=Job)
_SEEDS_APART = 1_000_003
_SEEDS = 1 << 32
_HAS_GROUP = (
    "ranks={} needs its own process group, but pytest's process already has one, from"
    " torch.distributed.init_process_group(). Call that in make_dataset, or call"
    " destroy_process_group() first"
)
_EXCLUDES_RANKS = (
    "ranks={} and before_init=True exclude each other, because rank faults are armed after the"
    " datasets are created. Remove one of them"
)
_NO_GLOO = (
    "ranks={} needs torch.distributed with gloo, which this build of torch lacks. Install a build"
    " that has it, or remove ranks"
)


@dataclass(frozen=True)
class Rank(Member):
    """One of the processes that train together, as torchrun numbers them.

    Attributes:
        store: The descriptor of an anonymous file, by which ranks find each other; -1 for one rank.
        port: MASTER_PORT.
    """

    store: int = -1
    port: int = 0

    @property
    def name(self) -> str:
        """Its name in a message."""
        return f"rank {self.number}"

    @property
    def environment(self) -> dict[str, str]:
        """The variables that torchrun sets, and the one by which gloo uses the loopback alone."""
        number, size = str(self.number), str(self.size)
        return {
            "RANK": number,
            "LOCAL_RANK": number,
            "WORLD_SIZE": size,
            "LOCAL_WORLD_SIZE": size,
            "MASTER_ADDR": _LOOPBACK,
            "MASTER_PORT": str(self.port),
            "GLOO_SOCKET_IFNAME": "lo",
        }

    def join(self, journal: Journal) -> Meetings | None:
        """Make this process the rank, as one that torchrun has started."""
        from pytest_dataloader_faults.battery.checks.ranks import process_group

        return process_group.join(self, self.store, journal)

    def options_for(self, dataset: Any, options: dict[str, Any]) -> dict[str, Any]:
        """*options* with torch's ``DistributedSampler``, unless they have a sampler."""
        from pytest_dataloader_faults.battery.checks.ranks.loading import options_for

        return options_for(self, dataset, options)

    def require_loader(self, loader: Any) -> None:
        """Refuse a map-style dataset of which one rank draws what others get."""
        from pytest_dataloader_faults.battery.checks.ranks.loading import require_own_batches

        require_own_batches(loader)


def refuse_before_init(job: TrialJob) -> None:
    """Refuse faults that are armed before the datasets of a user's ranks are created."""
    if is_armed_before_init(job):
        raise exceptions.InvalidArgumentError(_EXCLUDES_RANKS.format(job.settings.ranks))


def run_ranks(
    request: TrialJob,
    on_rank: int | str | None = None,
    replays: Sequence[Replay] = (),
    *,
    shares_folder: bool = False,
) -> Outcome:
    """Run the job in as many processes at once as its settings have ranks.

    *replays*: those of the ranks, if known. *shares_folder*: as in ``Member``.

    Raises:
        InvalidArgumentError: An argument cannot be used.
    """
    ranks = _require_ranks(request.settings.ranks, on_rank)
    require_engine_for_job(request)
    with _split_by_rank(request, ranks, on_rank, shares_folder=shares_folder) as rank_jobs:
        replays = replays or [request.replay] * ranks
        pairs = zip(rank_jobs, replays, strict=True)
        jobs = [replace(job, replay=replay) for job, replay in pairs]
        records = run_together(*jobs)
    outcomes = [outcome_of(*each) for each in zip(jobs, records, strict=True)]
    return _combine_outcomes(
        request, list(zip(outcomes, [each.events for each in records], strict=True))
    )


def take_references(request: ReferenceJob, *, shares_folder: bool) -> list[Reference]:
    """Read the samples of each rank."""
    ranks = _require_ranks(request.settings.ranks)

    def run() -> list[tuple[ReferenceJob, Record]]:
        # A store cannot be used again by other ranks.
        with _split_by_rank(request, ranks, None, shares_folder=shares_folder) as rank_jobs:
            return list(zip(rank_jobs, run_together(*rank_jobs), strict=True))

    results = repeat_if_killed(run, lambda pairs: has_died(record for _, record in pairs))[-1]
    return [reference_of(*result) for result in results]


def make_only_rank(job: _Job) -> _Job:
    """*job* as the only rank, although its dataset is one for several ranks."""
    _require_gloo(_require_ranks(job.settings.ranks))
    return replace(job, member=Rank(port=_free_port()))


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
        probe.bind((_LOOPBACK, 0))
        return int(probe.getsockname()[1])


def _require_gloo(ranks: int) -> None:
    """Refuse *ranks* if torch lacks gloo, or has a process group that they would inherit."""
    from torch import distributed

    from pytest_dataloader_faults.battery.checks.ranks import (  # once here, not in every rank
        loading,  # noqa: F401
        process_group,  # noqa: F401
    )

    if not (distributed.is_available() and distributed.is_gloo_available()):
        message = _NO_GLOO.format(ranks)
        raise exceptions.UnusableEnvironmentError(message, "torch without gloo")
    if distributed.is_initialized():
        raise exceptions.InvalidArgumentError(_HAS_GROUP.format(ranks))


@contextlib.contextmanager
def _split_by_rank(
    job: _Job, ranks: int, on_rank: int | str | None, *, shares_folder: bool
) -> Iterator[list[_Job]]:
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
                member=Rank(number, ranks, recovers, shares_folder, store.fd, port),
            )
            for number in range(ranks)
        ]
    finally:
        store.close()


def _combine_outcomes(
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
    causes = {number: at for number, at in failed.items() if not has_lost_rank(outcomes[number])}
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
