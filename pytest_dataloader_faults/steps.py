"""What a trial does: processes, one after the other, each of which consists of steps. Pure data.

A trial of faults in workers is one process:

    Make, Look, ARM, Epoch ..., END_WORKERS, Look, DISARM, FaultFreePass, END_WORKERS, Look

If the faults are armed before the dataset is created, ``ARM`` comes before ``Make``. The pass
without faults then needs a second process, which knows nothing of them.

A job is all that the processes of a trial know. They inherit it by fork, so it is not pickled.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from enum import Enum
from typing import Any, NamedTuple, TypeAlias, TypeVar

from pytest_dataloader_faults._arguments import FLAG, ArgumentRule
from pytest_dataloader_faults._settings import DEADLINE, Settings, check
from pytest_dataloader_faults.faults import Fault
from pytest_dataloader_faults.faults.base import DEFAULT_COLLISIONS, Collisions
from pytest_dataloader_faults.outcomes.agreement import EXACT, Comparison
from pytest_dataloader_faults.outcomes.refusals import FileHistory
from pytest_dataloader_faults.outcomes.stages import RECOVERY, Phase, Stage

__all__ = (
    "Action",
    "Epoch",
    "FaultFreePass",
    "Look",
    "Make",
    "MeasureEpochs",
    "Process",
    "Processes",
    "Step",
    "arm_before_init",
    "arm_workers",
    "run_epochs",
)


class Step:
    """A part of what a process does. Those of a check are frozen dataclasses, like these.

    If the loader could not be made, the steps that follow are left out, but ``Look`` and
    ``DISARM``.
    """

    @property
    def harms(self) -> bool:
        """Whether it does what a fault does, so that files are protected from then on."""
        return False

    def may_run(self, journal: Any) -> bool:  # noqa: ARG002  # for those that need it
        """Whether its process can run after the earlier ones, which wrote to the *journal*."""
        return True

    def run(self, process: Any) -> None:
        """Do it in *process*, a ``TrialProcess``."""
        raise NotImplementedError


class Action(Step, Enum):
    """A step without arguments: a method of ``TrialProcess``."""

    ARM = "arm"
    """Arm the faults in workers that start from now on, and in the dataset if it comes later."""
    READ_SAMPLE = "read_sample"
    """Read one sample in the main process."""
    USE_ACCELERATOR = "use_accelerator"
    """Have the main process use the accelerator, and later copy each batch to it."""
    END_FAULTS = "end_faults"
    """End the faults, in the same workers."""
    END_WORKERS = "end_workers"
    """End the workers that are still there."""
    DISARM = "disarm"
    """End the faults, and record what they did. Workers that start from now on are not armed."""

    def run(self, process: Any) -> None:
        """Call the method."""
        getattr(process, self.value)()


@dataclass(frozen=True)
class Make(Step):
    """Call make_dataset, and make the loader.

    Attributes:
        phase: The pass that ends with an error of make_dataset; None if there is no trial then.
        adapt: A function of the loader that returns the loader to use; None to use it as it is.
            Then the loader keeps its sampler, even if fewer samples are checked.
    """

    phase: Phase | None = None
    adapt: Callable[[Any], Any] | None = None

    def run(self, process: Any) -> None:
        """Make it."""
        process.make(self)


@dataclass(frozen=True)
class Look(Step):
    """Record what is open and what runs.

    Attributes:
        stage: When that is.
    """

    stage: Stage

    def run(self, process: Any) -> None:
        """Record it."""
        process.record_resources(self.stage)


@dataclass(frozen=True)
class Epoch(Step):
    """A pass under the faults. The first error ends the epochs.

    Attributes:
        batches: After how many batches the loop leaves it, as by ``break``; None for all of them.
        same_order: Whether it requests what the sampler drew without a fault, in that order.
        same_seed: Whether it has the same seed as the first epoch.
        keep_workers: Whether the same workers make the next epoch, even after an error.
    """

    batches: int | None = None
    same_order: bool = False
    same_seed: bool = False
    keep_workers: bool = False

    def run(self, process: Any) -> None:
        """Run it, unless an earlier one has failed."""
        process.run_epoch(self)


@dataclass(frozen=True)
class MeasureEpochs(Step):
    """Run epochs, and measure each process after each round, until the measurements are enough.

    Attributes:
        epochs: What a round consists of.
        rounds: The number of rounds at most.
    """

    epochs: tuple[Epoch, ...]
    rounds: int = 160

    def run(self, process: Any) -> None:
        """Run and measure them."""
        process.measure_epochs(self)


@dataclass(frozen=True)
class FaultFreePass(Step):
    """A pass without faults.

    A recovery needs no workers if another process can read the dataset: a child of the main process
    then does.

    Attributes:
        phase: Which pass it is.
        seed: What is added to the seed of the trial.
        after_faults: Whether it is left out in a trial that has no faults.
    """

    phase: Phase = RECOVERY
    _: KW_ONLY
    seed: int = 0
    after_faults: bool = True

    def run(self, process: Any) -> None:
        """Make the pass."""
        process.run_without_faults(self)


Process: TypeAlias = tuple[Step, ...]
Processes: TypeAlias = tuple[Process, ...]
_AnyStep = TypeVar("_AnyStep", bound=Step)


def arm_workers(*steps: Step, before: Process = ()) -> Processes:
    """Run *steps* with faults in the workers, and then a pass without faults.

    *before*: steps before the faults are armed.
    """
    recovery = (FaultFreePass(), Action.END_WORKERS, Look(Stage.RECOVERY))
    begin = (Make(), *before, Look(Stage.START), Action.ARM)
    return ((*begin, *steps, *_END, *recovery),)


def arm_before_init(*steps: Step, after_faults: bool = True) -> Processes:
    """Run *steps* with faults from before the dataset is created, and a pass in a new process.

    *after_faults*: whether that pass is left out in a trial that has no faults.
    """
    begin = (Action.ARM, Look(Stage.START), Make(Phase(Stage.EPOCH, 1)))
    again = (Make(RECOVERY), FaultFreePass(after_faults=after_faults))
    return (*begin, *steps, *_END), (*again, Action.END_WORKERS)


_END = (Action.END_WORKERS, Look(Stage.EPOCH), Action.DISARM)


def run_epochs(count: int = 1, *, before_init: bool = False) -> Processes:
    """Run *count* epochs with faults in the workers.

    *before_init*: whether the faults are armed before the dataset is created instead.
    """
    FLAG.check("before_init", before_init)
    return (arm_before_init if before_init else arm_workers)(*[Epoch()] * count)


_LETTERS: Mapping[object, str] = {
    Make: "M",
    Epoch: "E",
    MeasureEpochs: "E",
    FaultFreePass: "F",
    Action.ARM: "A",
    Action.END_FAULTS: "E",
    Action.DISARM: "D",
}
_ORDER = re.compile("(MA|AM)E+DF*(,MF+)*")
"""The steps that every trial has, in their order. Others may be anywhere."""


def _are_processes(value: object) -> bool:
    if not (isinstance(value, tuple) and all(map(_is_process, value))):
        return False
    return _ORDER.fullmatch(",".join(map(_letters, value))) is not None


def _is_process(value: object) -> bool:
    return isinstance(value, tuple) and all(isinstance(step, Step) for step in value)


def _letters(process: Process) -> str:
    kinds = (step if isinstance(step, Action) else type(step) for step in process)
    return "".join(_LETTERS.get(kind, "") for kind in kinds)


PROCESSES = ArgumentRule(
    _are_processes,
    "what arm_workers() or arm_before_init() returns: the first process makes the dataset,"
    " arms the faults, runs an epoch and disarms them",
)
"""What the processes of a trial may be."""


def steps_of(processes: Processes, kind: type[_AnyStep]) -> Iterator[_AnyStep]:
    """The steps of this *kind* in all *processes*."""
    return (step for process in processes for step in process if isinstance(step, kind))


def has_step(processes: Processes, action: Action) -> bool:
    """Whether *action* is a step of one of *processes*."""
    return any(action in process for process in processes)


def count_epochs(processes: Processes) -> int:
    """How many passes under faults there are at most; a round that is measured is one."""
    rounds = sum(step.rounds for step in steps_of(processes, MeasureEpochs))
    return rounds + sum(1 for _ in steps_of(processes, Epoch))


def _drop_recovery(processes: Processes) -> Processes:
    """The *processes* of a trial without faults: without these passes and what follows them."""
    shortened = (
        tuple(itertools.takewhile(lambda step: not _follows_faults(step), process))
        for process in processes
    )
    passes = (Epoch, MeasureEpochs, FaultFreePass)
    return tuple(
        process for process in shortened if any(isinstance(step, passes) for step in process)
    )


def _follows_faults(step: Step) -> bool:
    return isinstance(step, FaultFreePass) and step.after_faults


_ONE_EPOCH = run_epochs()


@dataclass(frozen=True, kw_only=True)
class TrialOptions:
    """What a check can request from its trial.

    Attributes:
        processes: The processes of the trial, with their steps.
        patience: Seconds that an epoch waits for a batch, once the workers are done or hung; None
            to wait as torch does.
        measuring: How many seconds all rounds of ``MeasureEpochs`` may take.
        watch_files: Whether opens and reads are counted even if no fault needs the counts.
        compare_worker_output: Whether the batches of workers are compared, because the loader's own
            ``__iter__`` changes them.
        descriptors: How many descriptors may be opened in addition to the open ones; None to keep
            the limit.
    """

    processes: Processes = _ONE_EPOCH
    patience: float | None = None
    measuring: float = DEADLINE / 2
    watch_files: bool = False
    compare_worker_output: bool = False
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
            not -self.length <= number < self.length for number in numbers
        )


NO_REPLAY = Replay()
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
    """What the processes of a trial, or of a reference, are to do.

    Attributes:
        changes: Options of the DataLoader, which overrule those of the settings, and those of a
            ready loader.
        may_take_longer: Whether it gets more time if it moves or sleeps at its deadline.
        most_bytes: How many bytes a pass may read before more reads no longer count as progress;
            None if unknown.
        rank: Which of the processes it is that train together; None without ranks.
        history: What is known of files.
        batch_size: How many samples a batch may have; None for the usual limit.
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

    @property
    def passes(self) -> int:
        """How many of its steps have a deadline of their own."""
        timed = (Make, Epoch, MeasureEpochs, FaultFreePass)
        return sum(isinstance(step, timed) for process in self.processes for step in process)

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
        return self.options.processes if has_faults else _drop_recovery(self.options.processes)


@dataclass(frozen=True, kw_only=True)
class TrialJob(Job):
    """Epochs under faults, and a recovery.

    Attributes:
        replay: What its passes request.
        needs_workers: Whether the loader gets a worker if its options ask for none.
        recovers_in_workers: Whether the recovery pass always has workers, as a dataset needs that
            only workers can read.
        collisions: How calls of its workers collide if there are no faults.
    """

    replay: Replay = NO_REPLAY
    needs_workers: bool = False
    recovers_in_workers: bool = False
    collisions: Collisions = DEFAULT_COLLISIONS

    @property
    def may_recover_in_child(self) -> bool:
        """Whether a child without workers makes the recovery pass if it can read the dataset."""
        passes = steps_of(self.processes, FaultFreePass)
        return not self.recovers_in_workers and any(each.phase == RECOVERY for each in passes)


@dataclass(frozen=True, kw_only=True)
class ReferenceJob(Job):
    """Samples one by one.

    Attributes:
        batches: The indices to read, by default as the loader's sampler draws.
        displaced: Each gets the random numbers of the index that is less by so many.
        seconds: If the samples would take longer, fewer are read.
        adapts_comparison: Whether to compare samples less closely if two reads of them disagree.
    """

    batches: Sequence[tuple[int, ...]] | None = None
    displaced: int = 0
    seconds: float | None = None
    adapts_comparison: bool = False

    @property
    def passes(self) -> int:
        """It makes the dataset, and reads it twice."""
        return 3
