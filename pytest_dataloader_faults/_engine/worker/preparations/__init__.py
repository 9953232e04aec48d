"""What faults need in a worker before each batch: a module for each kind [runs in the worker].

Each has a function ``prepare_for``, which returns a ``Preparation`` if a plan needs that, and one
that reserves what the worker needs until the supervisor answers its calls.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from pytest_dataloader_faults._engine.plan import FilterRequirements
from pytest_dataloader_faults._engine.system.imports import import_modules


class Preparation(Protocol):
    """What is done before each batch, as long as faults can happen."""

    def prepare(self, send: Callable[[Any], None]) -> None:
        """A batch is about to start; *send* sends a message to the supervisor."""

    def end(self) -> None:
        """No fault can happen from now on."""


_MODULES = import_modules(__name__, __path__)


def reserve_for(needs: FilterRequirements) -> None:
    """Reserve what cannot be had between the filter for these *needs* and the supervisor."""
    for each in _MODULES:
        each.reserve_for(needs)


def preparations_for(needs: FilterRequirements) -> list[Preparation]:
    """What a plan with these *needs* requires."""
    preparations = (each.prepare_for(needs) for each in _MODULES)
    return [each for each in preparations if each is not None]
