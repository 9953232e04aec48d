"""What ranks do to each other when they prepare files in one folder. Pure.

The step is here. What it does in a trial is in ``held_writes``, which is imported there only.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pytest_dataloader_faults.outcomes.contract import Cause
from pytest_dataloader_faults.outcomes.stages import Phase, Stage
from pytest_dataloader_faults.steps import Epoch, Make, OwnStep, Processes, arm_workers

if TYPE_CHECKING:
    from pytest_dataloader_faults._trial.run import TrialProcess

DISTURBS_RANKS = Cause(
    "prepares the same files on several ranks at once",
    "Let rank 0 download, extract and convert, and let the others wait: if rank == 0:"
    " prepare(), then torch.distributed.barrier(). Or hold a file lock while you check and"
    " prepare, or write to a temporary name and rename it with os.replace() once it is complete. If"
    " each rank writes its own samples, add the rank to the name of the file",
    overrides=True,
    fix="prepare files on rank 0, and call barrier() on all ranks before they read",
)
PREFACE = (
    "All ranks shared the folder that make_dataset receives, as ranks on one machine do, and rank 0"
    " waited until another rank had looked at what it was about to create, or had read a batch"
)
NO_FOLDER = (
    "make_dataset receives no folder that ranks could share: let it take one, as in"
    " lambda folder: MyDataset(data, cache=folder), and prepare files there"
)


@dataclass(frozen=True)
class HoldWrites(OwnStep):
    """Have rank 0 wait when it prepares files, until another rank has looked at them.

    Attributes:
        before_folders: Whether it waits before it creates a folder. Otherwise it waits after it has
            created a file, and before it writes to the file.
    """

    before_folders: bool = False

    def run(self, process: TrialProcess) -> None:
        """Hold them until the dataset is made."""
        from pytest_dataloader_faults.battery.checks.ranks.held_writes import hold

        hold(process, before_folders=self.before_folders)


@dataclass(frozen=True)
class ReportDataset(OwnStep):
    """Report to rank 0 that the dataset of another rank is made."""

    def run(self, process: TrialProcess) -> None:
        """Report it; rank 0 itself has nothing to report."""
        from pytest_dataloader_faults.battery.checks.ranks.held_writes import report_dataset

        report_dataset(process)


def hold_writes(epochs: int, *, before_folders: bool = False) -> Processes:
    """Epochs of a dataset whose writes are held while it is made.

    What the ranks write in the first epoch, they may read in the second one.
    """
    process, *others = arm_workers(*[Epoch()] * epochs)
    make = Make(Phase(Stage.EPOCH, 1))
    following = (step for step in process if not isinstance(step, Make))
    return ((HoldWrites(before_folders), make, ReportDataset(), *following), *others)
