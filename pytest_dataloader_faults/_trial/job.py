"""What a trial is to do: a description of its job, for the processes of the trial. Plain data."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, TypeVar

from pytest_dataloader_faults._settings import Settings, check
from pytest_dataloader_faults.faults import Fault
from pytest_dataloader_faults.outcomes.agreement import EXACT, Comparison
from pytest_dataloader_faults.outcomes.stages import RECOVERY, FileHistory
from pytest_dataloader_faults.steps import (
    ONE_EPOCH,
    Epoch,
    FaultFreePass,
    MeasureEpochs,
    Processes,
    Step,
    TrialOptions,
)

_AnyStep = TypeVar("_AnyStep", bound=Step)


def steps_of(processes: Processes, kind: type[_AnyStep]) -> Iterator[_AnyStep]:
    """The steps of this *kind* in all *processes*."""
    return (step for process in processes for step in process if isinstance(step, kind))


def count_epochs(processes: Processes) -> int:
    """How many passes under faults there are at most; a round that is measured is one."""
    rounds = sum(step.rounds for step in steps_of(processes, MeasureEpochs))
    return rounds + sum(1 for _ in steps_of(processes, Epoch))


def _drop_recovery(processes: Processes) -> Processes:
    """The *processes* of a trial without faults: without these passes and what follows them."""
    shortened = (
        tuple(
            itertools.takewhile(
                lambda step: not (isinstance(step, FaultFreePass) and step.after_faults), process
            )
        )
        for process in processes
    )
    passes = (Epoch, MeasureEpochs, FaultFreePass)
    return tuple(
        process for process in shortened if any(isinstance(step, passes) for step in process)
    )


@dataclass(frozen=True)
class TakeReference(Step):
    """Make the dataset, and read its samples twice, without workers. It is the only step.

    Attributes:
        indices: The indices to read, by default as the loader's sampler draws.
        displaced: Each sample gets the random numbers of the index that is smaller by this number.
        seconds: If the samples would take longer, fewer are read.
        adapts_comparison: Whether to compare samples less closely if two reads of them disagree.
    """

    method: ClassVar[str] = "take_reference"
    deadlines: ClassVar[int] = 3
    indices: Sequence[int] | None = None
    displaced: int = 0
    seconds: float | None = None
    adapts_comparison: bool = False


LOOPBACK = "127.0.0.1"


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


@dataclass(frozen=True, kw_only=True)
class Job:
    """What the processes of a trial are to do, or the one that reads a reference.

    Attributes:
        changes: Options of the DataLoader, which overrule those of the settings, and those of a
            ready loader.
        may_take_longer: Whether it gets more time if it moves or sleeps at its deadline.
        most_bytes: How many bytes a pass may read before more reads no longer count as progress;
            None if unknown.
        rank: Which of the processes it is that train together; None without ranks.
        history: What is known of files.
        batch_size: How many samples a batch may have; None for the usual limit.
        draws: What its passes request in place of what the sampler draws, as ``Reference.draws``.
        length: How many samples there were to draw from, if that is known.
        needs_workers: Whether the loader gets a worker if its options ask for none.
        recovers_in_workers: Whether the recovery pass always has workers, as a dataset needs that
            only workers can read.
        unprovoked: Globs of what its workers use without waiting for each other.
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
    draws: tuple[bytes, ...] = ()
    length: int | None = None
    needs_workers: bool = False
    recovers_in_workers: bool = False
    unprovoked: tuple[str, ...] = ()

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

    @property
    def passes(self) -> int:
        """How many deadlines its steps may take."""
        return sum(step.deadlines for step in steps_of(self.processes, Step))

    @property
    def max_bytes(self) -> int | None:
        """How many bytes all passes together may read, if that is known."""
        return None if self.most_bytes is None else self.passes * self.most_bytes

    @property
    def rank_of_several(self) -> Rank | None:
        """Which rank it is, if there are others."""
        return self.rank if self.rank is not None and self.rank.size > 1 else None

    @property
    def may_have_faults(self) -> bool:
        """Whether faults may be armed in it, or in another rank."""
        harms = any(step.harms for step in steps_of(self.processes, Step))
        return bool(self.faults) or harms or self.rank_of_several is not None

    @property
    def processes(self) -> Processes:
        """What its processes do; without faults there is nothing to recover from."""
        has_faults = bool(self.faults) or (self.rank is not None and self.rank.recovers)
        has_faults |= self.is_reference
        return self.options.processes if has_faults else _drop_recovery(self.options.processes)

    @property
    def is_reference(self) -> bool:
        """Whether it reads a reference, without workers or a supervisor."""
        return any(True for _ in steps_of(self.options.processes, TakeReference))

    @property
    def may_recover_in_child(self) -> bool:
        """Whether a child without workers makes the recovery pass if it can read the dataset."""
        passes = steps_of(self.processes, FaultFreePass)
        return not self.recovers_in_workers and any(each.phase == RECOVERY for each in passes)
