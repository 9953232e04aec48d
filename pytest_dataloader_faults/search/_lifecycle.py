"""The lifecycle of a loader: steps that can follow each other, run and judged.

A lifecycle is a list of steps. They make a loader, go through it, break an epoch off, kill its
workers, arm and disarm faults, pickle the dataset. The steps are in ``lifecycle``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pytest_dataloader_faults import _arguments, lifecycle
from pytest_dataloader_faults._trial import run_lifecycle
from pytest_dataloader_faults._trial.job import RunSettings
from pytest_dataloader_faults.battery._survey import Survey
from pytest_dataloader_faults.exceptions import InvalidArgumentError
from pytest_dataloader_faults.outcomes import Judgement, Outcome
from pytest_dataloader_faults.outcomes._judge._lifecycle import judge_lifecycle
from pytest_dataloader_faults.outcomes._text import printable

if TYPE_CHECKING:
    from typing_extensions import Unpack

Steps = tuple[lifecycle.Step, ...]

_OF_NEW_LOADER = ("num_workers", "batch_size", "persistent_workers")
_USE_LOADER = (lifecycle.Iterate, lifecycle.BreakEpoch, lifecycle.StartEpoch, lifecycle.KillWorker)


def run_and_judge(
    found: Survey, steps: Steps, **how: Unpack[RunSettings]
) -> tuple[Outcome, Judgement]:
    """Do *steps* once: what had happened where the verdict was clear, and the verdict."""
    life = run_lifecycle(
        found.make_dataset, steps, comparison=found.comparison, view=found.view, **how
    )
    judgement, outcome = judge_lifecycle(life, found.reference_for(life.outcome), found.contract)
    return outcome, judgement


def check_loader(loader: Mapping[str, Any] | None) -> None:
    """Refuse options that ``NewLoader`` has."""
    _arguments.check(loader=loader)
    for name in _OF_NEW_LOADER:
        if (loader or {}).get(name) is not None:
            message = f"loader={loader!r} must not have {name!r}: give it to NewLoader()"
            raise InvalidArgumentError(message)


def steps_left_out(
    chosen: Sequence[type[lifecycle.Step]], found: Survey, **how: Unpack[RunSettings]
) -> dict[type[lifecycle.Step], str]:
    """Those of the *chosen* kinds of steps that make no sense for this dataset, and why."""
    arm, pickled = lifecycle.Arm, lifecycle.PickleDataset
    left_out: dict[type[lifecycle.Step], str] = {}
    if arm in chosen and not (found.files.opens or found.files.reads):
        left_out[arm] = "Arm() was left out: the workers of this dataset open and read no data file"
    if pickled in chosen:  # A dataset need not be picklable where workers are forked.
        tried = run_lifecycle(found.make_dataset, (pickled(),), **how)
        if (raised := tried.outcome.exception) is not None:
            why = f"a new dataset cannot be pickled ({raised.type}: {raised.message})"
            left_out[pickled] = f"PickleDataset() was left out: {printable(why)}"
    return left_out


def require_order(steps: Sequence[Any]) -> None:
    """Raise InvalidArgumentError unless *steps* can follow each other."""
    workers: int | None = None
    for number, step in enumerate(steps, start=1):
        if isinstance(step, _USE_LOADER) and workers is None:
            message = f"step {number} is {step!r}, but there is no loader: put NewLoader() before"
            raise InvalidArgumentError(message)
        if isinstance(step, lifecycle.KillWorker) and step.worker >= (workers or 0):
            message = f"step {number} is {step!r}, but the loader has num_workers={workers}, from 0"
            raise InvalidArgumentError(message)
        if isinstance(step, (lifecycle.NewLoader, lifecycle.DeleteLoader)):
            workers = getattr(step, "num_workers", None)
