"""Ranks: one job for each, one outcome of all, and what a rank does [in pytest and the trial].

A rank may fail because another one did. So the outcome of all ranks is that of the one which was
the first to fail, by the clock that all processes of a machine share.
"""

from __future__ import annotations

import contextlib
import inspect
import math
import os
import socket
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from enum import IntEnum
from typing import Any

import torch
from torch.utils.data import DistributedSampler

from pytest_dataloader_faults._arguments import ArgumentRule, is_int
from pytest_dataloader_faults._engine.system.temporary import AnonymousFile
from pytest_dataloader_faults._settings import check
from pytest_dataloader_faults._trial import outcome_of, require_engine_for_job, run_together
from pytest_dataloader_faults._trial.job import LOOPBACK, Job, Rank
from pytest_dataloader_faults._trial.journal import (
    HARNESS,
    LOADER,
    OTHERS,
    Journal,
    JournalEvent,
    PassEnded,
    TrialEnded,
)
from pytest_dataloader_faults.exceptions import InvalidArgumentError, UnusableEnvironmentError
from pytest_dataloader_faults.outcomes import Outcome
from pytest_dataloader_faults.outcomes.stages import Absence, EpochsApart, Position, Reason

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
_distributed: Any = torch.distributed
_NO_LOOPBACK = (
    "ranks cannot create a process group, because gloo needs the loopback interface: {}. Bring it"
    " up (ip link set lo up), or remove ranks. No dataset was judged"
)
DISPATCHED = (
    "accelerate's dispatch_batches=True makes rank 0 draw the batches of all ranks, so it is not"
    " known which samples of a map-style dataset each rank gets. Prepare the loader with"
    " dispatch_batches=False"
)
_INIT = "init_process_group"
_ENVIRONMENT = (None, "env://")


def run_ranks(
    request: Job, on_rank: int | str | None = None, *, shares_folder: bool = False
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
        raise InvalidArgumentError(message)
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
        raise UnusableEnvironmentError(message, "torch without gloo")
    if distributed.is_initialized():
        raise InvalidArgumentError(_HAS_GROUP.format(ranks))


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


# Some facts about process groups. A script calls ``init_process_group()`` once, and a second call
# raises. A factory may be written for a script that has called it, or may call it itself, by env://
# from the variables that torchrun sets. So a group is there when the factory is called, and the
# first call of the factory's own replaces that group. All groups of a trial find their members by
# one ``FileStore`` on an anonymous file, which the ranks inherit: ranks do not listen on
# MASTER_PORT, which another program may have taken. gloo connects by the loopback interface.
#
# The harness's collectives have their own group, or they would mix with those of the dataset. A
# rank that runs out of batches announces that in a collective, which a training job would not join.
# So the others know without a deadline that they would wait forever.


def join(rank: Rank, journal: Journal) -> Meetings | None:
    """Make this process *rank*, as one that torchrun has started; None for a single rank."""
    os.environ.update(rank.environment)
    journal.write_turn(HARNESS)
    store: Any = _distributed.HashStore()
    if rank.size > 1:
        store = _distributed.FileStore(f"/proc/self/fd/{rank.store}", rank.size)
    try:
        _init(rank, store, "harness")
    except RuntimeError as error:
        message = _NO_LOOPBACK.format(error)
        raise UnusableEnvironmentError(message, "no loopback interface") from error
    _replace_init(_members(rank, store, "dataset"))
    # Its first collective waits until every rank has the other group: one may destroy that soon.
    meetings = Meetings(rank, store, journal) if rank.size > 1 else None
    journal.write_turn(LOADER)
    return meetings


def divide(rank: Rank, dataset: Any, options: dict[str, Any]) -> dict[str, Any]:
    """*options* of a loader that delivers the part of one *rank* of a map-style *dataset*."""
    if any(options.get(name) for name in ("sampler", "batch_sampler")):
        return options
    shuffle = options.get("shuffle", True)
    sampler: Any = DistributedSampler(dataset, rank.size, rank.number, shuffle=shuffle)
    return {**options, "shuffle": None, "sampler": sampler}


def _init(rank: Rank, store: Any, name: str) -> None:
    _distributed.init_process_group("gloo", **_members(rank, store, name))


def _members(rank: Rank, store: Any, name: str) -> dict[str, Any]:
    """How *rank* finds the others of the group *name*."""
    prefixed = _distributed.PrefixStore(name, store)
    return {"store": prefixed, "rank": rank.number, "world_size": rank.size}


def _destroy() -> None:
    """Close the connections of every group of the dataset's."""
    if _distributed.is_initialized():
        _distributed.destroy_process_group()


def _replace_init(members: dict[str, Any]) -> None:
    """Have the first call of ``init_process_group`` replace the group that there is."""
    real = _distributed.init_process_group

    def init_process_group(*args: Any, **kwargs: Any) -> None:
        """Like torch's function, if a group exists that is not the caller's."""
        _rename(init_process_group, real)
        _destroy()
        arguments = inspect.signature(real).bind(*args, **kwargs).arguments
        if arguments.get("store") is None and arguments.get("init_method") in _ENVIRONMENT:
            arguments = {**arguments, **members, "init_method": None}
        real(**arguments)

    _rename(real, init_process_group)


def _rename(was: Callable[..., None], now: Callable[..., None]) -> None:
    """Replace *was* with *now* in each module, also if it was imported from torch."""
    for module in list(sys.modules.values()):
        if vars(module).get(_INIT) is was:
            setattr(module, _INIT, now)


class _State(IntEnum):
    """What a rank contributes to a collective."""

    HAS_BATCH = 0
    FINISHED = 1
    FAILED = 2


_REASONS = {_State.FINISHED: Reason.FINISHED, _State.FAILED: Reason.FAILED}


class Meetings:
    """Where this rank waits for the others: after each batch, and after its last one.

    The collective in which a rank has run out of batches is the last one of all. A rank that an
    error has ended closes the connections of the dataset's group, as the end of its process would:
    so nobody waits for it in a collective of the dataset's own.
    """

    def __init__(self, rank: Rank, store: Any, journal: Journal) -> None:
        self._rank, self._store, self._journal = rank, store, journal
        self.number = rank.number
        self.notes = _distributed.PrefixStore("notes", store)
        """What the steps of ranks write down for each other."""
        self._group = _distributed.ProcessGroupGloo(*_members(rank, store, "meetings").values())
        self._are_over = self._are_apart = self._has_failed = False
        self._exchange(_State.HAS_BATCH, Position(0, 0))

    def meet(self, epoch: int, batch: int) -> bool:
        """Wait with *batch* of *epoch*, from 1, until each rank has one; False if one has none."""
        position = Position(epoch, batch)
        self._journal.write_turn(OTHERS)
        try:
            states = self._exchange(_State.HAS_BATCH, position)
        except RuntimeError:  # gloo's, once the connection to a rank is closed.
            return self._end(Absence(None, Reason.GONE, position))
        absent = [(state, rank) for rank, (state, _) in enumerate(states) if state in _REASONS]
        if absent:
            state, rank = max(absent)
            return self._end(Absence(rank, _REASONS[state], position))
        positions = tuple(each for _, each in states)
        if len({each.epoch for each in positions}) > 1 and not self._are_apart:
            self._are_apart = True
            self._journal.write(EpochsApart(positions))
        self._journal.write_turn(LOADER)
        return True

    def await_second(self) -> None:
        """Wait with all ranks until the same second of the clock begins."""
        states = self._exchange(_State.HAS_BATCH, Position(0, math.ceil(time.time())))
        self._journal.write_turn(HARNESS)
        begin = max(position.batch for _, position in states)
        while (seconds := begin - time.time()) > 0:
            time.sleep(seconds)

    def leave(self, *, failed: bool) -> None:
        """Announce to the others that this rank has run out of batches."""
        if failed and not self._are_over:
            _destroy()
        self._wait(_State.FAILED if failed else _State.FINISHED)
        self._are_over = True

    def renew(self) -> None:
        """Replace the group that was closed, for the recovery pass of all ranks."""
        if self._has_failed:
            _destroy()
            self._journal.write_turn(HARNESS)
            with contextlib.suppress(RuntimeError):  # A rank has exited.
                _init(self._rank, self._store, "recovery")

    def end(self) -> None:
        """Wait until each rank is here: what the others still do may need this process."""
        self._are_over = False
        self._wait(_State.FINISHED)

    def _wait(self, state: _State) -> None:
        if self._are_over:
            return
        self._journal.write_turn(OTHERS)
        with contextlib.suppress(RuntimeError):  # A rank has exited, whose own facts say how.
            self._exchange(state, Position(0, 0))
        self._journal.write_turn(HARNESS)

    def _end(self, absence: Absence) -> bool:
        self._are_over = True
        self._journal.write(absence)
        self._journal.write_turn(LOADER)
        return False

    def _exchange(self, state: _State, position: Position) -> list[tuple[_State, Position]]:
        """What each rank brings, in the order of their numbers."""
        ours = torch.tensor([state, position.epoch, position.batch])
        tensors = [torch.zeros_like(ours) for _ in range(self._rank.size)]
        self._group.allgather([tensors], [ours]).wait()
        states = [
            (_State(state), Position(*position))
            for state, *position in map(torch.Tensor.tolist, tensors)
        ]
        self._has_failed |= any(each is _State.FAILED for each, _ in states)
        return states
