"""The lifecycle of a loader: steps that can follow each other, run and judged.

A lifecycle is a list of steps. They make a loader, go through it, break an epoch off, kill its
workers, arm and disarm faults, pickle the dataset. The steps are in ``lifecycle``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pytest_dataloader_faults import _arguments
from pytest_dataloader_faults._trial import run_lifecycle
from pytest_dataloader_faults.battery._survey import Survey
from pytest_dataloader_faults.exceptions import InvalidArgumentError
from pytest_dataloader_faults.lifecycle import (
    Arm,
    BreakEpoch,
    DeleteLoader,
    Iterate,
    KillWorker,
    NewLoader,
    PickleDataset,
    StartEpoch,
    Step,
)
from pytest_dataloader_faults.outcomes import Judgement, Outcome
from pytest_dataloader_faults.outcomes._judge._lifecycle import judge_lifecycle

Steps = tuple[Step, ...]

_OF_NEW_LOADER = ("num_workers", "batch_size", "persistent_workers")
_NEED_A_LOADER = (Iterate, BreakEpoch, StartEpoch, KillWorker)


def run_and_judge(
    found: Survey,
    steps: Steps,
    *,
    loader: Mapping[str, Any] | None,
    deadline: float,
    seed: int,
    engine: str,
) -> tuple[Outcome, Judgement]:
    """Do *steps* once: what had happened where the verdict was clear, and the verdict."""
    life = run_lifecycle(
        found.make_dataset,
        steps,
        comparison=found.comparison,
        loader=loader,
        deadline=deadline,
        seed=seed,
        engine=engine,
    )
    reference = found.reference_for(life.outcome)
    judgement, outcome = judge_lifecycle(life, reference, found.contract)
    return outcome, judgement


def check_loader(loader: Mapping[str, Any] | None) -> None:
    """Refuse options that ``NewLoader`` has."""
    _arguments.check(loader=loader)
    for name in _OF_NEW_LOADER:
        if (loader or {}).get(name) is not None:
            message = f"loader={loader!r} must not have {name!r}: give it to NewLoader()"
            raise InvalidArgumentError(message)


def steps_left_out(
    chosen: Sequence[type[Step]],
    found: Survey,
    *,
    loader: Mapping[str, Any] | None,
    deadline: float,
    engine: str,
) -> dict[type[Step], str]:
    """Those of the *chosen* kinds of steps that make no sense for this dataset, and why."""
    left_out: dict[type[Step], str] = {}
    if Arm in chosen and not (found.files.opens or found.files.reads):
        left_out[Arm] = "Arm() was left out: the workers of this dataset open and read no data file"
    if PickleDataset not in chosen:
        return left_out
    # A dataset need not be picklable where workers are forked.
    pickled = run_lifecycle(
        found.make_dataset,
        (PickleDataset(),),
        loader=loader,
        deadline=deadline,
        seed=0,
        engine=engine,
    )
    if (raised := pickled.outcome.exception) is not None:
        why = f"a new dataset cannot be pickled ({raised.type}: {raised.message})"
        left_out[PickleDataset] = f"PickleDataset() was left out: {why}"
    return left_out


def require_order(steps: Sequence[Any]) -> None:
    """Raise InvalidArgumentError unless *steps* can follow each other."""
    workers: int | None = None
    for number, step in enumerate(steps, start=1):
        if isinstance(step, _NEED_A_LOADER) and workers is None:
            message = f"step {number} is {step!r}, but there is no loader: put NewLoader() before"
            raise InvalidArgumentError(message)
        if isinstance(step, KillWorker) and step.worker >= (workers or 0):
            message = f"step {number} is {step!r}, but the loader has num_workers={workers}, from 0"
            raise InvalidArgumentError(message)
        if isinstance(step, (NewLoader, DeleteLoader)):
            workers = getattr(step, "num_workers", None)
