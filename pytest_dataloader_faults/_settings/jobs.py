"""What a disposable process should do: one of two jobs. A job is inherited by fork, not pickled."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, TypeVar

from pytest_dataloader_faults._settings import Settings, check
from pytest_dataloader_faults.faults import Fault
from pytest_dataloader_faults.faults.collisions import DEFAULT_COLLISIONS, Collisions
from pytest_dataloader_faults.outcomes.agreement import (
    EXACT,
    Comparison,
)
from pytest_dataloader_faults.outcomes.refusals import FileHistory
from pytest_dataloader_faults.steps import (
    Epoch,
    FaultFreePass,
    Make,
    MeasureEpochs,
    OwnStep,
    Process,
    Processes,
    Step,
    run_epochs,
)

_AnyStep = TypeVar("_AnyStep")
_ONE_EPOCH = run_epochs()
LOOPBACK = "127.0.0.1"


def steps_of(processes: Processes, kind: type[_AnyStep]) -> Iterator[_AnyStep]:
    """The steps of this *kind* in all *processes*."""
    return (step for process in processes for step in process if isinstance(step, kind))


def has_step(processes: Processes, kind: type) -> bool:
    """Whether a step of this *kind* is in one of *processes*."""
    return next(steps_of(processes, kind), None) is not None


def count_epochs(processes: Processes) -> int:
    """How many passes under faults there are at most; a round that is measured is one."""
    rounds = sum(step.rounds for step in steps_of(processes, MeasureEpochs))
    return rounds + sum(1 for _ in steps_of(processes, Epoch))


def change_epochs(processes: Processes, change: Callable[[Epoch], Epoch]) -> Processes:
    """The same *processes*, with each of their epochs changed by *change*."""
    return _map_steps(processes, lambda step: change(step) if isinstance(step, Epoch) else step)


def limit_measurement(processes: Processes, seconds: float) -> Processes:
    """The same *processes*, which measure for *seconds*."""

    def limit(step: Step) -> Step:
        return replace(step, seconds=seconds) if isinstance(step, MeasureEpochs) else step

    return _map_steps(processes, limit)


def _map_steps(processes: Processes, change: Callable[[Step], Step]) -> Processes:
    return tuple(tuple(map(change, process)) for process in processes)


def drop_recovery(processes: Processes) -> Processes:
    """The *processes* of a trial that has no faults: without the passes that follow these."""
    kept = (_drop_recovery(process) for process in processes)
    return tuple(process for process in kept if process)


def _drop_recovery(process: Process) -> Process:
    """The steps before the pass that is left out; none if there is no other pass."""
    passes = [
        number
        for number, step in enumerate(process)
        if isinstance(step, FaultFreePass) and step.after_faults
    ]
    kept = process[: passes[0]] if passes else process
    has_pass = any(isinstance(step, Epoch | MeasureEpochs | FaultFreePass) for step in kept)
    return kept if has_pass else ()


@dataclass(frozen=True, kw_only=True)
class TrialOptions:
    """What a check can request from its trial.

    Attributes:
        processes: The processes of the trial, with their steps.
        watch_files: Whether opens and reads are counted even if no fault needs the counts.
        of_workers: Whether the batches of workers are compared, because the loader's own
            ``__iter__`` changes them.
        descriptors: How many descriptors may be opened in addition to the open ones; None to keep
            the limit.
    """

    processes: Processes = _ONE_EPOCH
    watch_files: bool = False
    of_workers: bool = False
    descriptors: int | None = None


ONE_EPOCH = TrialOptions()


class Replay(NamedTuple):
    """What to request instead of what the sampler draws, if that cannot be compared.

    Attributes:
        draws: What the sampler drew for each batch without a fault, pickled.
        length: How many samples there were to draw from, if that is known.
        in_batches: Whether only these batches are known, and not all that their samples can make.
    """

    draws: tuple[bytes, ...] = ()
    length: int | None = None
    in_batches: bool = False

    def has_no_sample_of(self, names: Iterable[Any]) -> bool:
        """Whether there is no sample for one of the *names*, which the sampler should not draw."""
        numbers = [each for each in names if isinstance(each, int)]
        return self.length is not None and any(
            not -self.length <= each < self.length for each in numbers
        )


NO_REPLAY = Replay()


@dataclass(frozen=True)
class Rank:
    """One of the processes that train together, as torchrun numbers them.

    Attributes:
        number: Its number, from 0.
        size: How many ranks there are.
        recovers: Whether it makes a recovery pass, even if faults were armed in other ranks only.
        shares_folder: Whether the folder that make_dataset receives is the same in all ranks.
        store: The descriptor of an anonymous file, by which ranks find each other; -1 for one rank.
        port: MASTER_PORT.
    """

    number: int = 0
    size: int = 1
    recovers: bool = False
    shares_folder: bool = False
    store: int = -1
    port: int = 0

    @property
    def environment(self) -> dict[str, str]:
        """The variables that torchrun sets, and the one by which gloo uses the loopback alone."""
        number, size = str(self.number), str(self.size)
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
        most_bytes: How many bytes its workers may read before more reads no longer count as
            progress; None if unknown.
    """

    deadline: float
    may_take_longer: bool = False
    most_bytes: int | None = None


@dataclass(frozen=True, kw_only=True)
class Job:
    """What every job has.

    *changes*: options of the DataLoader, which overrule those of the settings, and those of a ready
    loader. *may_take_longer*: whether it gets more time if it moves or sleeps at its deadline.
    *most_bytes*: how many bytes a pass may read before more reads no longer count as progress; None
    if unknown. *rank*: which of the processes it is that train together; None without ranks.
    *history*: what is known of files. *batch_size*: how many samples a batch may have; None for the
    usual limit.
    """

    make_dataset: Any
    faults: tuple[Fault, ...] = ()
    settings: Settings = field(default_factory=Settings)
    changes: Mapping[str, Any] = field(default_factory=dict)
    comparison: Comparison = EXACT
    options: TrialOptions = ONE_EPOCH
    may_take_longer: bool = False
    most_bytes: int | None = None
    rank: Rank | None = None
    history: FileHistory = field(default_factory=FileHistory)
    batch_size: int | None = None

    def __post_init__(self) -> None:
        """Raise InvalidArgumentError for an invalid dataset."""
        check(make_dataset=self.make_dataset)

    @property
    def deadline(self) -> float:
        """Seconds for each epoch."""
        return self.settings.longest_epoch

    @property
    def loader(self) -> dict[str, Any]:
        """Options of the DataLoader, with the changes."""
        return {**(self.settings.loader or {}), **self.changes}

    def longest(self, delay: float) -> float:
        """Seconds that its loader can take, if each deadline is extended by *delay* at most."""
        seconds = sum(step.seconds for step in steps_of(self.processes, MeasureEpochs))
        return self._deadline_count * (self.deadline + delay) + seconds

    @property
    def limits(self) -> Limits:
        """What the warden holds it to."""
        byte_limit = None if self.most_bytes is None else self._deadline_count * self.most_bytes
        return Limits(self.deadline, self.may_take_longer, byte_limit)

    @property
    def rank_of_several(self) -> Rank | None:
        """Which rank it is, if there are others."""
        return self.rank if self.rank is not None and self.rank.size > 1 else None

    @property
    def may_have_faults(self) -> bool:
        """Whether faults may be armed in it, or in another rank."""
        harms = any(step.harms for step in steps_of(self.processes, OwnStep))
        return bool(self.faults) or harms or self.rank_of_several is not None

    @property
    def processes(self) -> Processes:
        """What its processes do; without faults there is nothing to recover from."""
        has_faults = bool(self.faults) or (self.rank is not None and self.rank.recovers)
        processes = self.options.processes
        return processes if has_faults else drop_recovery(processes)

    @property
    def _deadline_count(self) -> int:
        """How many of its steps have a deadline of their own."""
        steps = (step for process in self.processes for step in process)
        return sum(isinstance(step, (Make, Epoch, MeasureEpochs, FaultFreePass)) for step in steps)


@dataclass(frozen=True, kw_only=True)
class TrialJob(Job):
    """Epochs under faults, and a recovery.

    *recovers_in_workers*: whether the recovery pass always has workers, as a dataset needs that
    only workers can read. *watchers*: what makes the watchers of its process. *collisions*: how
    calls of its workers collide if there are no faults. *replay*: what its passes request.
    """

    replay: Replay = NO_REPLAY
    needs_workers: bool = False
    recovers_in_workers: bool = False
    collisions: Collisions = DEFAULT_COLLISIONS

    @property
    def may_recover_in_child(self) -> bool:
        """Whether a child without workers makes the recovery pass if it can read the dataset."""
        passes = steps_of(self.processes, FaultFreePass)
        return not self.recovers_in_workers and any(each.in_child for each in passes)


@dataclass(frozen=True, kw_only=True)
class ReferenceJob(Job):
    """Samples one by one.

    *batches*: the indices to read, by default as the loader's sampler draws. *displaced*: each
    gets the random numbers of the index that is less by so many. *seconds*: if *samples* would take
    longer, fewer are read. *adapts_comparison*: whether to compare samples less closely than by
    *comparison* if two reads of them disagree.
    """

    batches: Sequence[tuple[int, ...]] | None = None
    displaced: int = 0
    seconds: float | None = None
    adapts_comparison: bool = False

    @property
    def _deadline_count(self) -> int:
        return 3  # It makes the dataset, and reads it twice.


_LEAST, _TIMES = 10.0, 20
_LEAST_TO_LOOK, _TIMES_TO_LOOK = 2.0, 3
"""Seconds at least, and how many times as long as an epoch without a fault."""


class Deadlines:
    """How long the trials of one dataset may take, if its *settings* leave that open."""

    def __init__(self, settings: Settings) -> None:
        self._is_set = settings.deadline is not None
        self.most = settings.longest_epoch
        self._longest: float | None = None

    def record_epoch(self, seconds: float) -> None:
        """An epoch without a fault took *seconds*."""
        self._longest = max(seconds, self._longest or 0.0)

    @property
    def for_trial(self) -> float:
        """That of a trial."""
        if self._is_set or self._longest is None:
            return self.most
        return min(self.most, max(_LEAST, math.ceil(_TIMES * self._longest)))

    @property
    def for_look(self) -> float:
        """That of a look whether a dataset which has hung before hangs at the same place."""
        enough = math.ceil(_TIMES_TO_LOOK * (self._longest or 0.0))
        return min(self.for_trial, max(_LEAST_TO_LOOK, enough))
