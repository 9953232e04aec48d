"""The portable engine: Python's own file access, replaced in the worker, without kernel support."""

from __future__ import annotations

from pytest_dataloader_faults._engine.policy import FaultPolicy
from pytest_dataloader_faults._engine.system.imports import import_modules


def replace_others(policy: FaultPolicy) -> None:
    """Replace functions that use no file, by ``replace_functions`` of each module that has it."""
    for module in import_modules(__name__, __path__):
        if hasattr(module, "replace_functions"):
            module.replace_functions(policy)
