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
        seeded: What random numbers begin anew from at each sample of a map-style dataset; None to
            leave them as they are.
        compare: The author's own ``compare(a, b)``, or None.
        kept: The reference's samples, for it.

    """

    shapes: bool = False
    seeded: int | None = None
    compare: Callable[[Any, Any], Any] | None = None
    kept: tuple[tuple[Any, str], ...] = ()

    @property
    def compared(self) -> str:
        """What is compared, for people, and to tell fingerprints that mean different things."""
        what = "compare" if self.compare else "shapes" if self.shapes else "bytes"
        return what if self.seeded is None else f"{what}, seeded from {self.seeded}"


EXACT = Telling()
SHAPES = Telling(shapes=True)
"""What random samples are compared by when their randomness is looked at."""


def ways_of(contract: Contract, seed: int) -> tuple[Telling, ...]:
    """Those that *contract* allows, the most exact one first; *seed*: of random samples."""
    if contract.deterministic:
        return (Telling(compare=contract.compare),)
    return Telling(seeded=seed, compare=contract.compare), SHAPES


def unstable(index: Any, contract: Contract) -> str:
    """What to say where sample *index* was not the same twice in any way of *contract*."""
    if not contract.deterministic:
        same = "types and shapes, let alone bytes, when it was read twice"
        advice = "Say what is the same: Contract(deterministic=False, compare=...)"
        return f"sample {index!r} did not have the same {same}. {advice}"
    return (
        f"the samples are not deterministic: sample {index!r} was different when it was read a"
        " second time in the same process, so a corrupted one could not be told. Seed it by its"
        " index, turn augmentation off in the test, or say Contract(deterministic=False)"
    )
