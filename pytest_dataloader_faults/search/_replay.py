"""One trial, run and judged again: what a failure prints, to be pasted."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pytest_dataloader_faults import _arguments
from pytest_dataloader_faults._trial.factory import DatasetFactory
from pytest_dataloader_faults.battery.survey import survey
from pytest_dataloader_faults.faults import Fault
from pytest_dataloader_faults.outcomes import Contract, Verdict
from pytest_dataloader_faults.outcomes.jobs import RunSettings
from pytest_dataloader_faults.search import _assertion


def replay(
    make_dataset: DatasetFactory,
    *faults: Fault,
    loader: Mapping[str, Any] | None = None,
    contract: Contract | None = None,
    epochs: int = 1,
    deadline: float = 30.0,
    seed: int = 0,
    engine: str = "auto",
) -> Verdict:
    """Run one trial under *faults*, and raise if the dataset fails.

    Args:
        make_dataset: Returns a map-style or iterable dataset, or a ready ``DataLoader``.
        *faults: As ``run_trial`` takes them.
        loader: Options of the ``DataLoader``.
        contract: What the author promises beyond the ordinary.
        epochs: Passes under the faults.
        deadline, seed, engine: See ``run_trial``.

    Returns:
        The verdict, which is a pass.

    Raises:
        CheckFailedError: The verdict, the evidence, a test that repeats the trial.
        FaultNotFiredError: There were faults, and none of them fired.
        InvalidArgumentError, UnusableDatasetError, EngineUnavailableError: See ``run_trial``.

    """
    __tracebackhide__ = True
    _arguments.check(make_dataset=make_dataset, loader=loader, epochs=epochs)
    _arguments.check(deadline=deadline, seed=seed)
    how = RunSettings(loader=loader, deadline=deadline, seed=seed, engine=engine)
    options = dict(loader or {})
    options.pop("num_workers", None)  # The reference does not depend on it.
    of_reference: RunSettings = {**how, "loader": options}
    found = survey(make_dataset, contract=contract, **of_reference)
    outcome = found.run_trial(*faults, epochs=epochs, **how)
    return _assertion.assert_survives_or_fails_cleanly(outcome, found)
