"""The life of a loader: the steps that it is made of. Plain data.

Steps are frozen values that describe and never act; ``eval(repr(step)) == step`` holds with this
module's names and those of ``faults`` in scope.
"""

from __future__ import annotations

from dataclasses import MISSING, dataclass, fields
from typing import Any

from pytest_dataloader_faults.exceptions import InvalidArgumentError
from pytest_dataloader_faults.faults import Fault, has_files

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


def _is_count(value: object, least: int = 1) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def _is_of_files(value: object) -> bool:
    return isinstance(value, Fault) and has_files(value) and value.reading is None


_ALLOWED: dict[str, tuple[Any, str]] = {
    "num_workers": (_is_count, "1 or more: faults happen in worker processes"),
    "batch_size": (_is_count, "1 or more"),
    "persistent_workers": (lambda value: isinstance(value, bool), "True or False"),
    "batches": (
        lambda value: value is None or _is_count(value),
        "1 or more, or None for the rest",
    ),
    "worker": (lambda value: _is_count(value, 0), "a worker id, 0 or more"),
    "fault": (
        _is_of_files,
        "a fault of files, such as ReadError('*.jpg'); a worker's death is a step: KillWorker()",
    ),
}


class Step:
    """Base of all steps: short reprs and checked arguments."""

    def __post_init__(self) -> None:
        """Refuse what cannot be done."""
        for each in fields(self):  # type: ignore[arg-type]  # Every subclass is a dataclass.
            value = getattr(self, each.name)
            allows, allowed = _ALLOWED[each.name]
            if not allows(value):
                message = f"{type(self).__name__}: {each.name}={value!r} must be {allowed}"
                raise InvalidArgumentError(message)

    def __repr__(self) -> str:
        """Valid code: the arguments that differ from their defaults."""
        shown = []
        for each in fields(self):  # type: ignore[arg-type]
            value = getattr(self, each.name)
            if each.default is MISSING or value != each.default:
                shown.append(f"{each.name}={value!r}" if each.kw_only else repr(value))
        return f"{type(self).__name__}({', '.join(shown)})"


@dataclass(frozen=True, repr=False, kw_only=True)
class NewLoader(Step):
    """Make a ``DataLoader`` over the dataset; the one before it, if there is one, is deleted."""

    num_workers: int = 1
    batch_size: int = 4
    persistent_workers: bool = False


@dataclass(frozen=True, repr=False)
class Iterate(Step):
    """Take so many batches, or all that are left; begins an epoch if none is going on."""

    batches: int | None = None


@dataclass(frozen=True, repr=False)
class BreakEpoch(Step):
    """Break the epoch off, as ``break`` does in a loop over the loader."""


@dataclass(frozen=True, repr=False)
class StartEpoch(Step):
    """Begin an epoch, whether or not one is going on, as ``batches = iter(loader)`` does."""


@dataclass(frozen=True, repr=False)
class KillWorker(Step):
    """Kill a worker by SIGKILL, between two batches."""

    worker: int = 0


@dataclass(frozen=True, repr=False)
class Arm(Step):
    """From the next batch that is asked for on, *fault* can happen, in workers that run, too.

    Its ``nth`` counts from here.
    """

    fault: Fault


@dataclass(frozen=True, repr=False)
class Disarm(Step):
    """No fault happens any more. A file that was opened under one stays what it was."""


@dataclass(frozen=True, repr=False)
class PickleDataset(Step):
    """Go on with a copy of the dataset that came out of ``pickle``, and a loader made again."""


@dataclass(frozen=True, repr=False)
class DeleteLoader(Step):
    """Delete the loader, which ends its workers."""
