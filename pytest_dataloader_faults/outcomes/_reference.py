"""What a dataset gives when nothing is wrong, and the ways to compare samples with it. Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from pytest_dataloader_faults.outcomes._records import Leaves, from_json
from pytest_dataloader_faults.outcomes._verdicts import Contract

if TYPE_CHECKING:
    from pytest_dataloader_faults.outcomes._facts import TrialFacts


@dataclass(frozen=True)
class Reference:
    """What a dataset gives when nothing is wrong, taken sample by sample in one process.

    Attributes:
        kind: ``"map"`` or ``"iterable"``.
        samples: A digest per index (map) or in order (iterable); empty if batches cannot be split.
        batches: A digest per tuple of indices, where batches do not come apart into samples.
        unstable_index: The index of a sample that was not the same twice, or None.
        leaves: What the first samples are made of, by the same indices.
        nondeterministic_count: How many samples had other bytes in a second reading.
        second_pass_count: How many samples a stream gave in a second pass, if fewer.
        pickled_samples: The samples, pickled and in base64, for the author's own ``compare``.
        comparison: What of samples is compared, as in an outcome.
    """

    kind: str
    samples: tuple[tuple[Any, str], ...]
    batches: tuple[tuple[tuple[Any, ...], str], ...] = ()
    unstable_index: Any = None
    leaves: tuple[tuple[Any, Leaves], ...] = ()
    nondeterministic_count: int = 0
    second_pass_count: int | None = None
    pickled_samples: tuple[tuple[Any, str], ...] = field(default=(), repr=False)
    comparison: str = "bytes"

    def unknown_batches(self, outcome: TrialFacts) -> list[tuple[Any, ...]]:
        """The batches of *outcome* that this reference does not know; samplers may draw others."""
        if self.kind == "iterable":
            return []
        samples, batches = dict(self.samples), dict(self.batches)
        passes = [*outcome.passes, *([outcome.recovery] if outcome.recovery else [])]
        asked = {each.indices or () for one in passes for each in one.delivered}
        if samples:
            return [indices for indices in asked if not samples.keys() >= set(indices)]
        return [indices for indices in asked if indices not in batches]

    def merged_with(self, other: Reference) -> Reference:
        """This and what *other* knows."""
        names = ("samples", "batches", "leaves", "pickled_samples")
        return replace(self, **{name: getattr(self, name) + getattr(other, name) for name in names})

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Reference:
        """The inverse of ``asdict``."""
        pickled = [
            (tuple(index) if isinstance(index, list) else index, text)  # Of a whole batch: many.
            for index, text in data.get("pickled_samples", ())
        ]
        made: Reference = from_json(cls, {**data, "pickled_samples": pickled})
        return made


@dataclass(frozen=True)
class Comparison:
    """What counts as the same sample. It is inherited by fork, not pickled.

    Attributes:
        shapes: Whether only types and shapes count, and not what is in them.
        seeded: What random numbers begin anew from at each sample of a map-style dataset; None to
            leave them as they are.
        compare: The author's own ``compare(a, b)``, or None.
        pickled_samples: The reference's samples, for it.
    """

    shapes: bool = False
    seeded: int | None = None
    compare: Callable[[Any, Any], Any] | None = None
    pickled_samples: tuple[tuple[Any, str], ...] = ()

    @property
    def description(self) -> str:
        """What is compared, for people, and to tell fingerprints that mean different things."""
        what = "compare" if self.compare else "shapes" if self.shapes else "bytes"
        return what if self.seeded is None else f"{what}, seeded from {self.seeded}"


EXACT = Comparison()
SHAPES = Comparison(shapes=True)
"""What random samples are compared by when their randomness is looked at."""


def comparisons_for(contract: Contract, seed: int) -> tuple[Comparison, ...]:
    """The comparisons that *contract* allows, the most exact first; *seed*: of random samples."""
    if contract.deterministic:
        return (Comparison(compare=contract.compare),)
    return Comparison(seeded=seed, compare=contract.compare), SHAPES


def nondeterminism_message(index: Any, contract: Contract) -> str:
    """What to say where sample *index* was not the same twice in any comparison of *contract*."""
    if not contract.deterministic:
        same = "types and shapes, let alone bytes, when it was read twice"
        advice = "Say what is the same: Contract(deterministic=False, compare=...)"
        return f"sample {index!r} did not have the same {same}. {advice}"
    return (
        f"the samples are not deterministic: sample {index!r} was different when it was read a"
        " second time in the same process, so a corrupted one could not be told. Seed it by its"
        " index, turn augmentation off in the test, or say Contract(deterministic=False)"
    )
