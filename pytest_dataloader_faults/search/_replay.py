"""One trial, or one lifecycle, run and judged again: what a failure prints, to be pasted."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pytest_dataloader_faults import _arguments
from pytest_dataloader_faults._trial.factory import DatasetFactory
from pytest_dataloader_faults._trial.job import RunSettings
from pytest_dataloader_faults.battery._survey import survey
from pytest_dataloader_faults.exceptions import InvalidArgumentError
from pytest_dataloader_faults.faults import Fault
from pytest_dataloader_faults.lifecycle import Step
from pytest_dataloader_faults.outcomes import Contract, Verdict
from pytest_dataloader_faults.search import _assertion
from pytest_dataloader_faults.search._lifecycle import check_loader, require_order, run_and_judge


def replay(
    make_dataset: DatasetFactory,
    *what: Fault | Step,
    loader: Mapping[str, Any] | None = None,
    contract: Contract | None = None,
    epochs: int = 1,
    deadline: float = 30.0,
    seed: int = 0,
    engine: str = "auto",
) -> Verdict:
    """Run one trial under faults, or one lifecycle of steps, and raise if the dataset fails.

    Args:
        make_dataset: Returns a map-style or iterable dataset. For faults it may also return a ready
            ``DataLoader``.
        *what: Faults, as ``run_trial`` takes them, or the steps of a lifecycle. Not both: within a
            lifecycle, ``Arm(fault)`` is the step that arms a fault.
        loader: Options of the ``DataLoader``. For steps, those that ``NewLoader`` does not have.
        contract: What the author promises beyond the ordinary.
        epochs: Passes under the faults. Steps say themselves how many epochs there are.
        deadline, seed, engine: See ``run_trial``.

    Returns:
        The verdict, which is a pass.

    Raises:
        CheckFailedError: The verdict, the evidence, a test that repeats the trial.
        FaultNotFiredError: There were faults, and none of them fired.
        InvalidArgumentError: Faults and steps are mixed, or steps cannot follow each other; see
            also ``run_trial``.
        UnusableDatasetError, EngineUnavailableError: See ``run_trial``.

    """
    __tracebackhide__ = True
    _arguments.check(make_dataset=make_dataset, loader=loader, epochs=epochs)
    _arguments.check(deadline=deadline, seed=seed)
    steps = tuple(each for each in what if isinstance(each, Step))
    if steps:
        _require_steps(what, loader, epochs)
    how = RunSettings(loader=loader, deadline=deadline, seed=seed, engine=engine)
    options = dict(loader or {})
    options.pop("num_workers", None)  # The reference does not depend on it.
    of_reference: RunSettings = {**how, "loader": loader if steps else options}
    found = survey(make_dataset, contract=contract, **of_reference)
    if steps:
        outcome, judgement = run_and_judge(found, steps, **how)
        return _assertion.require_pass(outcome, judgement, make_dataset, contract, steps)
    faults = tuple(each for each in what if not isinstance(each, Step))
    outcome = found.run_trial(*faults, epochs=epochs, **how)
    return _assertion.assert_survives_or_fails_cleanly(outcome, found)


def _require_steps(
    what: tuple[Fault | Step, ...], loader: Mapping[str, Any] | None, epochs: int
) -> None:
    """Refuse what cannot be replayed as a lifecycle."""
    for number, each in enumerate(what, start=1):
        if not isinstance(each, Step):
            message = (
                f"step {number} is {each!r}, which is no step: give faults or steps, not both."
                " The step that arms a fault is Arm(fault)"
            )
            raise InvalidArgumentError(message)
    if epochs != 1:
        message = f"epochs={epochs!r} must be left out with steps: Iterate() goes through an epoch"
        raise InvalidArgumentError(message)
    require_order(what)
    check_loader(loader)
