"""The life of a loader: the steps that it is made of, and what was found after each. Plain data.

Steps are frozen values that describe and never act; ``eval(repr(step)) == step`` holds with this
module's names and those of ``faults`` in scope.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields
from typing import Any

from pytest_dataloader_faults.exceptions import InvalidArgumentError
from pytest_dataloader_faults.faults import Fault, has_files
from pytest_dataloader_faults.outcomes import Outcome

__all__ = (
    "Arm",
    "Break",
    "Delete",
    "Disarm",
    "Iterate",
    "Kill",
    "Life",
    "Moment",
    "NewLoader",
    "Pickle",
    "Restart",
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
        "a fault of files, such as ReadError('*.jpg'); a worker's death is a step: Kill()",
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
class Break(Step):
    """Break the epoch off, as ``break`` does in a loop over the loader."""


@dataclass(frozen=True, repr=False)
class Restart(Step):
    """Begin an epoch, whether or not one is going on, as ``batches = iter(loader)`` does."""


@dataclass(frozen=True, repr=False)
class Kill(Step):
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
class Pickle(Step):
    """Go on with a copy of the dataset that came out of ``pickle``, and a loader made again."""


@dataclass(frozen=True, repr=False)
class Delete(Step):
    """Delete the loader, which ends its workers."""


_NEED_A_LOADER = (Iterate, Break, Restart, Kill)


def check(steps: tuple[Any, ...]) -> None:
    """Raise InvalidArgumentError unless *steps* are steps that can follow each other."""
    if not steps:
        message = "steps=() must have one step or more: the first is NewLoader()"
        raise InvalidArgumentError(message)
    workers = None
    for number, step in enumerate(steps, start=1):
        if not isinstance(step, Step):
            message = f"step {number} is {step!r}, which is no step of a life, such as Iterate(2)"
            raise InvalidArgumentError(message)
        if isinstance(step, _NEED_A_LOADER) and workers is None:
            message = f"step {number} is {step!r}, but there is no loader: put NewLoader() before"
            raise InvalidArgumentError(message)
        if isinstance(step, Kill) and step.worker >= (workers or 0):
            message = f"step {number} is {step!r}, but the loader has num_workers={workers}, from 0"
            raise InvalidArgumentError(message)
        if isinstance(step, (NewLoader, Delete)):
            workers = getattr(step, "num_workers", None)


@dataclass(frozen=True)
class Moment:
    """The end of one step: what was found there.

    Attributes:
        outcome: All that had happened up to here: a pass per epoch begun, faults, workers.
        armed: How many faults could happen.
        loaders: How many iterators have had workers of their own so far.
        running: Whether there were workers, or should have been.
        opened: How often each process has each file open, by the process' name.
        processes: Descendants that are no worker, by pid, looked for where no worker is to run.
        left: Files in /dev/shm that workers made, where none of them is to run.

    """

    outcome: Outcome
    armed: int
    loaders: int
    running: bool
    opened: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    processes: Mapping[str, str] = field(default_factory=dict)
    left: tuple[str, ...] = ()


@dataclass(frozen=True)
class Life:
    """What was found in one life.

    Attributes:
        steps: What was to be done.
        moments: The ends of the steps that came to one.
        outcome: All that had happened at the end, as of ``run_trial``.

    """

    steps: tuple[Step, ...]
    moments: tuple[Moment, ...]
    outcome: Outcome
