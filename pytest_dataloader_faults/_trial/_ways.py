"""The ways in which samples can be told apart. Pure, and without torch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pytest_dataloader_faults.verdicts import Contract


@dataclass(frozen=True)
class Telling:
    """What counts as the same sample. It is inherited by fork, not pickled.

    Attributes:
        shapes: Whether only types and shapes count, and not what is in them.
        seeded: Whether random numbers begin anew at each sample of a map-style dataset.
        compare: The author's own ``compare(a, b)``, or None.
        kept: The reference's samples, for it.

    """

    shapes: bool = False
    seeded: bool = False
    compare: Callable[[Any, Any], Any] | None = None
    kept: tuple[tuple[Any, str], ...] = ()


SHAPES = Telling(shapes=True)
"""What random samples are compared by when their randomness is looked at."""


def ways_of(contract: Contract) -> tuple[Telling, ...]:
    """Those that *contract* allows, the most exact one first."""
    if contract.deterministic:
        return (Telling(compare=contract.compare),)
    return Telling(seeded=True, compare=contract.compare), SHAPES
