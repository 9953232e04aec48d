"""What a disposable process is to do: one of two jobs. A job is inherited by fork, not pickled."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

from pytest_dataloader_faults._settings import Settings, check
from pytest_dataloader_faults.faults import Fault
from pytest_dataloader_faults.outcomes.contract import (
    DEFAULT_HANDLING,
    EXACT,
    Comparison,
    SampleHandling,
)
from pytest_dataloader_faults.outcomes.records import TrialRequest
from pytest_dataloader_faults.outcomes.text import plain


class Resume(NamedTuple):
    """Which states of a loader a trial keeps, for new processes that go on from them.

    Attributes:
        after: After how many batches of the epoch one is kept.
        at_end: Whether one is kept after the epoch.
        of_last: Whether one process goes on from the last one, and not one from each. Another one
            makes the same epoch without a break.
        killed_after: After how many batches the process that keeps them gets SIGKILL; None to let
            it live.
    """

    after: tuple[int, ...]
    at_end: bool = False
    of_last: bool = False
    killed_after: int | None = None


@dataclass(frozen=True, kw_only=True)
class TrialOptions:
    """What a check can ask of its trial.

    Attributes:
        epochs: Passes under the faults.
        leave_early: Whether each of them comes after one that is left after a batch, as by
            ``break``.
        faulty_epochs: In how many of them faults happen, from the first on; None for all of them.
        watch_files: Whether opens and reads are counted although no fault needs it.
        touch: Whether the loader's process reads one sample before it starts the workers.
        same_order: Whether each epoch has the same seed, and so the same order.
        same_draws: Whether the sampler of each epoch draws what that of the first one drew.
        whole_batches: Whether batches are as large as the loader makes them, also if that takes
            more samples than were asked for: a batch for each worker.
        footprints: For how many seconds each process is measured after each epoch; None for not
            at all.
        patience: Seconds that a pass under faults waits for a batch, once its workers are done or
            hung; None to wait as torch does.
        descriptors: How many descriptors may be opened besides those that are open; None for the
            limit as it is.
        accelerator: Whether the loader's process uses the accelerator first, and copies each batch
            to it.
        keep_workers: Whether the same workers make the next epoch after an error.
        from_start: Whether the faults are armed before the dataset is made, so that its constructor
            and the loader's own process meet them as well. Then a new process makes the dataset
            anew for the recovery.
        twice: Whether a new process makes the dataset anew though there are no faults.
        resume: Which states of the loader are kept, for new processes that go on from them; None
            where its state is not asked for.

    """

    epochs: int = 1
    leave_early: bool = False
    faulty_epochs: int | None = None
    watch_files: bool = False
    touch: bool = False
    same_order: bool = False
    same_draws: bool = False
    whole_batches: bool = False
    footprints: float | None = None
    patience: float | None = None
    descriptors: int | None = None
    accelerator: bool = False
    keep_workers: bool = False
    from_start: bool = False
    twice: bool = False
    resume: Resume | None = None


ONE_EPOCH = TrialOptions()

Drawn: TypeAlias = tuple[tuple[Any, ...], str | None]
"""The indices of a batch, and what the sampler drew as an outcome has it, where that is no list of
these."""


LOOPBACK = "127.0.0.1"


class Rank(NamedTuple):
    """One of the processes that train together, as torchrun numbers them.

    Attributes:
        number: Its rank, from 0.
        world_size: How many ranks there are.
        store: The descriptor of an anonymous file, by which ranks find each other; -1 for one rank.
        port: MASTER_PORT.
        recovers: Whether it makes a recovery, also where faults were armed in other ranks only.
    """

    number: int = 0
    world_size: int = 1
    store: int = -1
    port: int = 0
    recovers: bool = False

    @property
    def environment(self) -> dict[str, str]:
        """The variables that torchrun sets, and the one by which gloo uses the loopback alone."""
        number, size = str(self.number), str(self.world_size)
        return {
            "RANK": number,
            "LOCAL_RANK": number,
            "WORLD_SIZE": size,
            "LOCAL_WORLD_SIZE": size,
            "MASTER_ADDR": LOOPBACK,
            "MASTER_PORT": str(self.port),
            "GLOO_SOCKET_IFNAME": "lo",
        }


class Limits(NamedTuple):
    """What a trial may take.

    Attributes:
        deadline: Seconds for each epoch, and as many for the recovery.
        may_take_longer: Whether it gets more time if it moves or sleeps at its deadline.
        most_bytes: How many bytes its workers may read before reading more is no progress; None
            where that is not known.
    """

    deadline: float
    may_take_longer: bool = False
    most_bytes: int | None = None


@dataclass(frozen=True, kw_only=True)
class Job:
    """What every job has.

    *changes*: options of the DataLoader, which overrule those of the settings, and those of a ready
    loader. *may_take_longer*: whether it gets more time if it moves or sleeps at its deadline.
    *most_bytes*: how many bytes a pass may read before reading more is no progress; None if that is
    not known. *rank*: which rank its process is; None for a process that is no rank.
    """

    make_dataset: Any
    faults: tuple[Fault, ...] = ()
    settings: Settings = field(default_factory=Settings)
    changes: Mapping[str, Any] = field(default_factory=dict)
    comparison: Comparison = EXACT
    handling: SampleHandling = DEFAULT_HANDLING
    options: TrialOptions = ONE_EPOCH
    may_take_longer: bool = False
    most_bytes: int | None = None
    rank: Rank | None = None

    def __post_init__(self) -> None:
        """Raise InvalidArgumentError for what can be no dataset, and for no epoch."""
        options = self.options
        check(make_dataset=self.make_dataset, epochs=options.epochs, from_start=options.from_start)

    @property
    def deadline(self) -> float:
        """Seconds for each epoch."""
        return self.settings.longest_epoch

    @property
    def loader(self) -> dict[str, Any]:
        """Options of the DataLoader, with the changes."""
        return {**(self.settings.loader or {}), **self.changes}

    def longest(self, more: float) -> float:
        """Seconds that its loader can take, where each deadline is put off by *more* at most."""
        return self._passes * (self.deadline + more) + (self.options.footprints or 0.0)

    @property
    def limits(self) -> Limits:
        """What the warden holds it to."""
        most = None if self.most_bytes is None else self._passes * self.most_bytes
        return Limits(self.deadline, self.may_take_longer, most)

    @property
    def rank_of_several(self) -> Rank | None:
        """Its rank, if there are others."""
        return self.rank if self.rank is not None and self.rank.world_size > 1 else None

    @property
    def recovers(self) -> bool:
        """Whether a pass without faults follows the epochs."""
        has_faults = bool(self.faults) and self.options.resume is None
        return has_faults or (self.rank is not None and self.rank.recovers)

    @property
    def recovers_anew(self) -> bool:
        """Whether a process of its own makes the dataset anew, once the faults are gone."""
        return self.options.from_start and (bool(self.faults) or self.options.twice)

    @property
    def _passes(self) -> int:
        of_constructor = 1 if self.options.from_start else 0
        resume = self.options.resume
        resumed = 0 if resume is None else 2 if resume.of_last else len(resume.after) + 1
        epochs = self.options.epochs if self.options.footprints is None else 1
        return epochs + 2 + of_constructor + resumed

    @property
    def request(self) -> TrialRequest:
        """What an outcome says of it."""
        seed, engine = self.settings.seed, self.settings.engine
        how = (plain(self.loader), self.options.epochs, seed, self.deadline, engine)
        rank = self.rank_of_several
        number = rank.number if rank else None
        return TrialRequest(self.faults, *how, self.comparison, self.options.from_start, number)


@dataclass(frozen=True, kw_only=True)
class TrialJob(Job):
    """Epochs under faults, and a recovery.

    *in_workers_only*: whether the main process cannot read the dataset.
    """

    needs_workers: bool = False
    in_workers_only: bool = False


@dataclass(frozen=True, kw_only=True)
class ReferenceJob(Job):
    """Samples one by one.

    *batches*: what to ask for, by default as the loader's sampler draws. *seconds*: where *samples*
    would take longer, fewer are looked at.
    """

    batches: Sequence[Drawn] | None = None
    seconds: float | None = None


_LEAST, _TIMES = 10.0, 20
_LEAST_TO_LOOK, _TIMES_TO_LOOK = 2.0, 3
"""Seconds at least, and how many times as long as an epoch without a fault."""


class Deadlines:
    """How long the trials of one dataset may take, if its *settings* do not say it."""

    def __init__(self, settings: Settings) -> None:
        self._is_asked = settings.deadline is not None
        self.most = settings.longest_epoch
        self._longest: float | None = None

    def learn(self, seconds: float) -> None:
        """An epoch without a fault took *seconds*."""
        self._longest = max(seconds, self._longest or 0.0)

    @property
    def for_trial(self) -> float:
        """That of a trial."""
        if self._is_asked or self._longest is None:
            return self.most
        return min(self.most, max(_LEAST, math.ceil(_TIMES * self._longest)))

    @property
    def for_look(self) -> float:
        """That of a look whether a dataset which has hung before hangs at the same place."""
        enough = math.ceil(_TIMES_TO_LOOK * (self._longest or 0.0))
        return min(self.for_trial, max(_LEAST_TO_LOOK, enough))
