"""What a trial does: processes, one after the other, each of which consists of steps. Pure data.

A trial of faults in workers is one process:

    Make, Look, ARM, Epoch ..., END_WORKERS, Look, DISARM, FaultFreePass, END_WORKERS, Look

If the faults are armed before the dataset is created, ``ARM`` comes before ``Make``. The pass
without faults then needs a second process, which knows nothing of them.

A job is all that the processes of a trial know. They inherit it by fork, so it is not pickled.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from enum import Enum
from typing import Any, ClassVar, TypeAlias

from pytest_dataloader_faults._arguments import FLAG, ArgumentRule
from pytest_dataloader_faults._settings import DEADLINE
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
    "TrialOptions",
    "arm_before_init",
    "arm_workers",
    "run_epochs",
)


class Step:
    """A part of what a process does. Those of a check are frozen dataclasses, like these.

    Those of this module name the method of ``TrialProcess`` that does it.

    If the loader could not be made, the steps that follow are left out, but ``Look`` and
    ``DISARM``.
    """

    method: ClassVar[str]
    deadlines: ClassVar[int] = 0
    """How many deadlines it may take; a pass takes one."""

    @property
    def harms(self) -> bool:
        """Whether it does what a fault does, so that files are protected from then on."""
        return False

    def may_run(self, journal: Any) -> bool:  # noqa: ARG002  # for those that need it
        """Whether its process can run after the earlier ones, which wrote to the *journal*."""
        return True

    def run(self, process: Any) -> None:
        """Do it in *process*, a ``TrialProcess``."""
        getattr(process, self.method)(self)


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

    method: ClassVar[str] = "make"
    deadlines: ClassVar[int] = 1
    phase: Phase | None = None
    adapt: Callable[[Any], Any] | None = None


@dataclass(frozen=True)
class Look(Step):
    """Record what is open and what runs.

    Attributes:
        stage: When that is.
    """

    method: ClassVar[str] = "record_resources"
    stage: Stage


@dataclass(frozen=True)
class Epoch(Step):
    """A pass under the faults. The first error ends the epochs.

    Attributes:
        batches: After how many batches the loop leaves it, as by ``break``; None for all of them.
        same_seed: Whether it has the same seed as the first epoch.
        keep_workers: Whether the same workers make the next epoch, even after an error.
    """

    method: ClassVar[str] = "run_epoch"
    deadlines: ClassVar[int] = 1
    batches: int | None = None
    same_seed: bool = False
    keep_workers: bool = False


@dataclass(frozen=True)
class MeasureEpochs(Step):
    """Run epochs, and measure each process after each round, until the measurements are enough.

    Attributes:
        epochs: What a round consists of.
        rounds: The number of rounds at most.
    """

    method: ClassVar[str] = "measure_epochs"
    deadlines: ClassVar[int] = 1
    epochs: tuple[Epoch, ...]
    rounds: int = 160


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

    method: ClassVar[str] = "run_without_faults"
    deadlines: ClassVar[int] = 1
    phase: Phase = RECOVERY
    _: KW_ONLY
    seed: int = 0
    after_faults: bool = True


Process: TypeAlias = tuple[Step, ...]
Processes: TypeAlias = tuple[Process, ...]


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


def _is_tuple(value: object, has: Callable[[Any], bool]) -> bool:
    return isinstance(value, tuple) and bool(value) and all(map(has, value))


PROCESSES = ArgumentRule(
    lambda value: _is_tuple(
        value, lambda process: _is_tuple(process, lambda step: isinstance(step, Step))
    ),
    "what arm_workers() or arm_before_init() returns: a tuple of steps for each process",
)
"""What the processes of a trial may be."""


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
        descriptors: How many descriptors may be opened in addition to the open ones; None to keep
            the limit.
    """

    processes: Processes = _ONE_EPOCH
    patience: float | None = None
    measuring: float = DEADLINE / 2
    watch_files: bool = False
    descriptors: int | None = None

    def has_step(self, action: Action) -> bool:
        """Whether *action* is a step of one of the processes."""
        return any(action in process for process in self.processes)


ONE_EPOCH = TrialOptions()
