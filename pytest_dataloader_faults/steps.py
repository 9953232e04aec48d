"""What a trial does: processes, one after the other, each of which consists of steps. Pure data.

A trial of faults in workers is one process:

    Make, Look, Arm, Epoch ..., EndWorkers, Look, Disarm, FaultFreePass, EndWorkers, Look

If the faults are armed before the dataset is created, ``Arm`` comes before ``Make``. The pass
without faults then needs a second process, which knows nothing of them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from typing import Any, TypeAlias, get_args

from pytest_dataloader_faults._arguments import FLAG, ArgumentRule
from pytest_dataloader_faults.outcomes.stages import RECOVERY, Phase, Stage

__all__ = (
    "Arm",
    "Disarm",
    "EndFaults",
    "EndWorkers",
    "Epoch",
    "FaultFreePass",
    "Look",
    "Make",
    "MeasureEpochs",
    "OwnStep",
    "Process",
    "Processes",
    "ReadSample",
    "Step",
    "UseAccelerator",
    "arm_before_init",
    "arm_workers",
    "run_epochs",
)


@dataclass(frozen=True)
class Make:
    """Call make_dataset, and make the loader.

    Attributes:
        phase: The pass that ends with an error of make_dataset; None if there is no trial then.
        adapt: A function of the loader that returns the loader to use; None to use it as it is.
            Then the loader keeps its sampler, even if fewer samples are checked.
        in_main_process: Whether the loader needs no workers if it is torch's, and if the main
            process can read the dataset.
    """

    phase: Phase | None = None
    adapt: Callable[[Any], Any] | None = None
    in_main_process: bool = False


@dataclass(frozen=True)
class UseAccelerator:
    """Have the main process use the accelerator, and later copy each batch to it."""


@dataclass(frozen=True)
class ReadSample:
    """Read one sample in the main process."""


@dataclass(frozen=True)
class Look:
    """Record what is open and what runs.

    Attributes:
        stage: When that is.
    """

    stage: Stage


@dataclass(frozen=True)
class Arm:
    """Arm the faults in workers that start from now on, and in the dataset if it comes later."""


class OwnStep:
    """Base of the steps that a check brings along. They are frozen dataclasses, too."""

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


@dataclass(frozen=True)
class Epoch:
    """A pass under the faults. The first error ends the epochs.

    Attributes:
        batches: After how many batches the loop leaves it, as by ``break``; None for all of them.
        patience: Seconds to wait for a batch, once the workers are done or hung; None to wait as
            torch does.
        same_order: Whether it requests what the sampler drew without a fault, in that order.
        same_seed: Whether it has the same seed as the first epoch.
        keep_workers: Whether the same workers make the next epoch, even after an error.
    """

    batches: int | None = None
    patience: float | None = None
    same_order: bool = False
    same_seed: bool = False
    keep_workers: bool = False


@dataclass(frozen=True)
class MeasureEpochs:
    """Run epochs, and measure each process after each round, until the measurements are enough.

    Attributes:
        epochs: What a round consists of.
        rounds: The number of rounds at most.
        seconds: About how long all of them may take.
    """

    epochs: tuple[Epoch, ...]
    rounds: int
    seconds: float


@dataclass(frozen=True)
class EndFaults:
    """End the faults, in the same workers."""


@dataclass(frozen=True)
class EndWorkers:
    """End the workers that are still there."""


@dataclass(frozen=True)
class Disarm:
    """End the faults, and record what they did. Workers that start from now on are not armed."""


@dataclass(frozen=True)
class FaultFreePass:
    """A pass without faults.

    Attributes:
        phase: Which pass it is.
        seed: What is added to the seed of the trial.
        in_child: Whether it needs no workers if another process can read the dataset: a child of
            the main process then does.
        after_faults: Whether it is left out in a trial that has no faults.
    """

    phase: Phase = RECOVERY
    _: KW_ONLY
    seed: int = 0
    in_child: bool = False
    after_faults: bool = True


Step: TypeAlias = (
    Make | UseAccelerator | ReadSample | Look | Arm | OwnStep | Epoch
    | MeasureEpochs | EndFaults | EndWorkers | Disarm | FaultFreePass
)  # fmt: skip
Process: TypeAlias = tuple[Step, ...]
Processes: TypeAlias = tuple[Process, ...]
_EPOCH_1 = Phase(Stage.EPOCH, 1)


def arm_workers(*steps: Step, before: Process = ()) -> Processes:
    """Run *steps* with faults in the workers, and then a pass without faults.

    *before*: steps before the faults are armed.
    """
    recovery = (FaultFreePass(in_child=True), EndWorkers(), Look(Stage.RECOVERY))
    begin = (Make(), *before, Look(Stage.START), Arm())
    return ((*begin, *steps, EndWorkers(), Look(Stage.EPOCH), Disarm(), *recovery),)


def arm_before_init(*steps: Step, after_faults: bool = True) -> Processes:
    """Run *steps* with faults from before the dataset is created, and a pass in a new process.

    *after_faults*: whether that pass is left out in a trial that has no faults.
    """
    begin = (Arm(), Look(Stage.START), Make(_EPOCH_1))
    again = (Make(RECOVERY, in_main_process=True), FaultFreePass(after_faults=after_faults))
    return (*begin, *steps, EndWorkers(), Look(Stage.EPOCH), Disarm()), (*again, EndWorkers())


def run_epochs(count: int = 1, *, before_init: bool = False) -> Processes:
    """Run *count* epochs with faults in the workers.

    *before_init*: whether the faults are armed before the dataset is created instead.
    """
    FLAG.check("before_init", before_init)
    return (arm_before_init if before_init else arm_workers)(*[Epoch()] * count)


def _are_processes(value: object) -> bool:
    if not (isinstance(value, tuple) and value and all(map(_is_process, value))):
        return False
    first, *following = value
    makes, arms, disarms = (_places(first, kind) for kind in (Make, Arm, Disarm))
    epochs = _places(first, (Epoch, MeasureEpochs, EndFaults))
    is_armed = len(makes) == len(arms) == len(disarms) == 1 and bool(epochs)
    is_ordered = is_armed and max(*makes, *arms) < epochs[0] <= epochs[-1] < disarms[0]
    return is_ordered and all(map(_has_pass, following))


def _is_process(value: object) -> bool:
    return isinstance(value, tuple) and all(isinstance(each, get_args(Step)) for each in value)


def _places(process: Process, kind: type | tuple[type, ...]) -> list[int]:
    return [number for number, step in enumerate(process) if isinstance(step, kind)]


def _has_pass(process: Process) -> bool:
    """Whether a process without faults makes the dataset, and then iterates it."""
    steps = [step for step in process if not isinstance(step, OwnStep)]
    return bool(steps) and isinstance(steps[0], Make) and bool(_places(process, FaultFreePass))


PROCESSES = ArgumentRule(
    _are_processes,
    "what arm_workers() or arm_before_init() returns: the first process makes the dataset,"
    " arms the faults, runs an epoch and disarms them",
)
"""What the processes of a trial may be."""
