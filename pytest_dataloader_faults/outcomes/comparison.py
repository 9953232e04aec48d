"""What counts as the same sample. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from pytest_dataloader_faults.outcomes.text import join_some, pluralize


class Compared(str, Enum):
    """Which aspect of samples is compared."""

    BYTES = "bytes"
    """The complete content."""
    SHAPES = "shapes"
    """Types and shapes, without the content."""
    TYPES = "types"
    """Types only, whatever the shapes and lengths."""
    NOTHING = "nothing"
    """Not even the type, for one part."""


@dataclass(frozen=True)
class Comparison:
    """What counts as the same sample. Its ``str`` is meant for people.

    Attributes:
        level: What is compared of each sample.
        seeded: The seed that random numbers start from at each sample of a map-style dataset; None
            if they are not seeded.
        varying: The parts that differed between two reads, by path, and what of each is compared.
        in_workers: Whether samples are compared with those of workers in a fault-free run, instead
            of those that the main process reads.
        limit: After how many samples of each worker an endless stream is stopped.
        differs_per_worker: Whether the stream would end there, and each worker returns different
            random samples.
    """

    level: Compared = Compared.BYTES
    seeded: int | None = None
    varying: tuple[tuple[str, Compared], ...] = ()
    in_workers: bool = False
    limit: int | None = None
    differs_per_worker: bool = False

    @property
    def compares_content(self) -> bool:
        """Whether the content of samples is compared."""
        return self.level is Compared.BYTES

    @property
    def allows_for_randomness(self) -> bool:
        """Whether random samples can count as the same."""
        return self.seeded is not None or bool(self.varying) or not self.compares_content

    def __str__(self) -> str:
        text = self.level.value
        if self.in_workers:
            text += " of workers"
        if self.varying:
            text += f" without {join_some(path or 'all' for path, _ in self.varying)}"
        if self.differs_per_worker:
            return f"{text}, {pluralize(self.limit or 0, 'different sample')} per worker"
        if self.limit is not None:
            return f"{text}, the first {self.limit} of each worker"
        return text if self.seeded is None else f"{text}, seeded from {self.seeded}"


EXACT = Comparison()
SHAPES, TYPES = Comparison(Compared.SHAPES), Comparison(Compared.TYPES)
"""The comparisons for random samples that differ under the same seed."""
