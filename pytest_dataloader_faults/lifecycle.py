"""The steps in the lifecycle of a loader. Plain data.

Steps are frozen values that describe and never act; ``eval(repr(step)) == step`` holds with this
module's names and those of ``faults`` in scope.

No step changes a file. ``Arm(OpenError(path, errno.ENOENT))`` makes a file missing from there on,
and ``Arm(TruncatedFile(path))`` makes it shorter. The files themselves stay as they are.
"""

from __future__ import annotations

from dataclasses import Field, dataclass
from typing import Any, ClassVar

from pytest_dataloader_faults._arguments import FLAG, Checked, Rule, at_least, ints, optional
from pytest_dataloader_faults.faults import Fault
from pytest_dataloader_faults.faults._base import FileFault

__all__ = (
    "Arm",
    "BreakEpoch",
    "DeleteLoader",
    "Disarm",
    "Iterate",
    "KillWorker",
    "NewLoader",
    "PickleDataset",
    "StartEpoch",
    "Step",
)


class Step(Checked):
    """Base of all steps."""

    _rules: ClassVar = {
        "num_workers": ints(1, allowed="1 or more: faults happen in worker processes"),
        "batch_size": ints(1, allowed="1 or more"),
        "persistent_workers": FLAG,
        "batches": optional(at_least(1), "1 or more, or None for the rest"),
        "worker": ints(0, allowed="a worker id, 0 or more"),
        "fault": Rule(
            lambda value: isinstance(value, FileFault),
            "a fault of files, such as ReadError('*.jpg'). To kill a worker, use KillWorker()",
        ),
    }

    def _argument(self, field: Field[Any]) -> str:
        return super()._argument(field) if field.kw_only else repr(getattr(self, field.name))


@dataclass(frozen=True, repr=False, kw_only=True)
class NewLoader(Step):
    """Make a ``DataLoader`` over the dataset, and delete the one before it, if there is one.

    *num_workers*, *batch_size* and *persistent_workers* are options of the ``DataLoader``.
    """

    num_workers: int = 1
    batch_size: int = 4
    persistent_workers: bool = False


@dataclass(frozen=True, repr=False)
class Iterate(Step):
    """Take so many *batches*, or all that are left. Begins an epoch if none is under way."""

    batches: int | None = None


@dataclass(frozen=True, repr=False)
class BreakEpoch(Step):
    """End the epoch early, as ``break`` does in a loop over the loader."""


@dataclass(frozen=True, repr=False)
class StartEpoch(Step):
    """Begin an epoch, also while one is under way, as ``batches = iter(loader)`` does."""


@dataclass(frozen=True, repr=False)
class KillWorker(Step):
    """Kill *worker* by SIGKILL, between two batches."""

    worker: int = 0


@dataclass(frozen=True, repr=False)
class Arm(Step):
    """Let *fault* happen from the next batch on, also in workers that already run.

    Its ``nth`` counts from here.
    """

    fault: Fault


@dataclass(frozen=True, repr=False)
class Disarm(Step):
    """Let no fault happen any more. A file that was opened under one stays as it was."""


@dataclass(frozen=True, repr=False)
class PickleDataset(Step):
    """Replace the dataset by a copy made by ``pickle``, and make the loader again."""


@dataclass(frozen=True, repr=False)
class DeleteLoader(Step):
    """Delete the loader, which ends its workers."""
