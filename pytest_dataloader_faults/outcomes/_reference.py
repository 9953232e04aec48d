"""What a dataset gives when nothing is wrong. Plain data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pytest_dataloader_faults.outcomes import Outcome


@dataclass(frozen=True)
class Reference:
    """What a dataset gives when nothing is wrong, taken sample by sample in one process.

    Attributes:
        kind: ``"map"`` or ``"iterable"``.
        samples: A digest per index (map) or in order (iterable); empty if batches cannot be split.
        batches: A digest per tuple of indices, where samples cannot be told apart in a batch.
        unstable: The index of a sample that was not the same twice, or None.

    """

    kind: str
    samples: tuple[tuple[Any, str], ...]
    batches: tuple[tuple[tuple[Any, ...], str], ...] = ()
    unstable: Any = None

    def lacks(self, outcome: Outcome) -> list[tuple[Any, ...]]:
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
        samples, batches = (*self.samples, *other.samples), (*self.batches, *other.batches)
        return Reference(self.kind, samples, batches, self.unstable)

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Reference:
        """The inverse of ``asdict``."""
        samples = tuple((index, digest) for index, digest in data["samples"])
        batches = tuple((tuple(indices), digest) for indices, digest in data["batches"])
        return cls(data["kind"], samples, batches, data["unstable"])
