"""Inject real storage and process faults under multi-worker PyTorch DataLoaders, and judge them.

Four levels, each built on the one below:

1. ``check_dataset`` runs the battery of checks; ``sweep`` fails each operation in turn.
2. ``explore`` searches for schedules of faults under which the dataset fails.
3. ``run_trial`` runs one schedule of faults in a disposable process.
4. ``inject`` arms faults around your own loop over a loader.

The decorator ``check`` makes a check of your own, which the battery runs as well.

Importing this package imports neither torch nor Hypothesis.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pytest_dataloader_faults import exceptions as exceptions
    from pytest_dataloader_faults import faults as faults
    from pytest_dataloader_faults import strategies as strategies
    from pytest_dataloader_faults._trial import run_trial as run_trial
    from pytest_dataloader_faults._trial.factory import DatasetFactory as DatasetFactory
    from pytest_dataloader_faults._trial.factory import part_of as part_of
    from pytest_dataloader_faults.battery.checking import check_dataset as check_dataset
    from pytest_dataloader_faults.battery.checks import Scenario as Scenario
    from pytest_dataloader_faults.battery.checks import check as check
    from pytest_dataloader_faults.battery.sweeping import sweep as sweep
    from pytest_dataloader_faults.battery.workload import NotApplicable as NotApplicable
    from pytest_dataloader_faults.exceptions import UnclearErrorWarning as UnclearErrorWarning
    from pytest_dataloader_faults.injection import inject as inject
    from pytest_dataloader_faults.outcomes import CheckResult as CheckResult
    from pytest_dataloader_faults.outcomes import Contract as Contract
    from pytest_dataloader_faults.outcomes import Finding as Finding
    from pytest_dataloader_faults.outcomes import Outcome as Outcome
    from pytest_dataloader_faults.outcomes import Verdict as Verdict
    from pytest_dataloader_faults.search import explore as explore


_HOMES = {
    "CheckResult": "outcomes",
    "Contract": "outcomes",
    "DatasetFactory": "_trial.factory",
    "Finding": "outcomes",
    "NotApplicable": "battery.workload",
    "Outcome": "outcomes",
    "Scenario": "battery.checks",
    "UnclearErrorWarning": "exceptions",
    "Verdict": "outcomes",
    "check": "battery.checks",
    "check_dataset": "battery.checking",
    "explore": "search",
    "inject": "injection",
    "part_of": "_trial.factory",
    "run_trial": "_trial",
    "sweep": "battery.sweeping",
}
_MODULES = ("exceptions", "faults", "strategies")
__all__ = tuple(sorted([*_HOMES, *_MODULES]))


def __getattr__(name: str) -> Any:
    """Import the module of a public name when the name is first used (PEP 562)."""
    if name == "__version__":
        from importlib.metadata import version

        return version("pytest-dataloader-faults")
    if name in _MODULES:
        return import_module(f"{__name__}.{name}")
    if name in _HOMES:
        return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    message = f"module {__name__!r} has no attribute {name!r}"
    raise AttributeError(message)


def __dir__() -> list[str]:
    """List the public names, for completion in shells."""
    return sorted([*__all__, "__version__"])
