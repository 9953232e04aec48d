"""What a dataset gives when nothing is wrong. Plain data.

The ways in which samples can be told apart. Pure, and without torch.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from pytest_dataloader_faults.outcomes._records import Leaves, leaves_from
from pytest_dataloader_faults.outcomes._verdicts import Contract

if TYPE_CHECKING:
    from pytest_dataloader_faults.outcomes._facts import TrialFacts


@dataclass(frozen=True)
class Reference:
    """What a dataset gives when nothing is wrong, taken sample by sample in one process.

    Attributes:
        kind: ``"map"`` or ``"iterable"``.
        samples: A digest per index (map) or in order (iterable); empty if batches cannot be split.
        batches: A digest per tuple of indices, where samples cannot be told apart in a batch.
        unstable: The index of a sample that was not the same twice, or None.
        leaves: What the first samples are made of, by the same indices.
        varied: How many samples had other bytes when they were read a second time.
        again: How many samples a stream gave when it was iterated once more, where that is fewer.
        kept: The samples themselves, pickled and in base64, where the author compares them.
        comparison: What of samples is compared, as in an outcome.

    """

    kind: str
    samples: tuple[tuple[Any, str], ...]
    batches: tuple[tuple[tuple[Any, ...], str], ...] = ()
    unstable: Any = None
    leaves: tuple[tuple[Any, Leaves], ...] = ()
    varied: int = 0
    again: int | None = None
    kept: tuple[tuple[Any, str], ...] = field(default=(), repr=False)
    comparison: str = "bytes"

    def lacks(self, outcome: TrialFacts) -> list[tuple[Any, ...]]:
        """The batches of *outcome* that this reference does not know; samplers may draw others."""
        if self.kind == "iterable":
            return []
        samples, batches = dict(self.samples), dict(self.batches)
        passes = [*outcome.passes, *([outcome.recovery] if outcome.recovery else [])]
        asked = {each.indices or () for one in passes for each in one.delivered}
        if samples:
            return [indices for indices in asked if not samples.keys() >= set(indices)]
        return [indices for indices in asked if indices not in batches]

    def with_more(self, other: Reference) -> Reference:
        """This and what *other* knows."""
        return replace(
            self,
            samples=(*self.samples, *other.samples),
            batches=(*self.batches, *other.batches),
            leaves=(*self.leaves, *other.leaves),
            kept=(*self.kept, *other.kept),
        )

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Reference:
        """The inverse of ``asdict``."""
        samples = tuple((index, digest) for index, digest in data["samples"])
        batches = tuple((tuple(indices), digest) for indices, digest in data["batches"])
        leaves = tuple((index, leaves_from(parts)) for index, parts in data.get("leaves", ()))
        kept = tuple(
            (tuple(index) if isinstance(index, list) else index, pickled)  # Of a whole batch: many.
            for index, pickled in data.get("kept", ())
        )
        built = {"samples": samples, "batches": batches, "leaves": leaves, "kept": kept}
        return cls(**{**data, **built})


@dataclass(frozen=True)
class Comparison:
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
    def description(self) -> str:
        """What is compared, for people, and to tell fingerprints that mean different things."""
        what = "compare" if self.compare else "shapes" if self.shapes else "bytes"
        return what if self.seeded is None else f"{what}, seeded from {self.seeded}"


EXACT = Comparison()
SHAPES = Comparison(shapes=True)
"""What random samples are compared by when their randomness is looked at."""


def ways_of(contract: Contract, seed: int) -> tuple[Comparison, ...]:
    """Those that *contract* allows, the most exact one first; *seed*: of random samples."""
    if contract.deterministic:
        return (Comparison(compare=contract.compare),)
    return Comparison(seeded=seed, compare=contract.compare), SHAPES


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
