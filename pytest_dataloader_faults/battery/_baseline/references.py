"""The references of a dataset, one for each way to compare samples, taken when they are needed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from pytest_dataloader_faults.battery import _progress
from pytest_dataloader_faults.outcomes import Outcome, Reference
from pytest_dataloader_faults.outcomes.reference import Comparison

SAMPLES = 64
"""How many samples a battery looks at, unless it is asked for more or fewer."""
_ENOUGH_SECONDS = 5.0
"""Where this many would take longer, fewer are looked at."""


class References:
    """What the dataset gives, by comparison.

    *take* makes a reference. *split*: the author's own way to split a batch, or None. *samples*:
    about how many samples are looked at, None for all; the first reference may settle for fewer.
    *learn* is told how long each reference took, in seconds.
    """

    def __init__(
        self,
        take: Callable[..., Reference],
        split: Any,
        samples: int | None,
        learn: Callable[[float], None],
    ) -> None:
        self.samples = samples
        self._take = take
        self._split = split
        self._seconds = _ENOUGH_SECONDS if samples == SAMPLES else None
        self._learn = learn
        self._known: dict[Comparison, Reference] = {}

    def __bool__(self) -> bool:
        """Whether one has been taken."""
        return bool(self._known)

    def put(self, comparison: Comparison, known: Reference) -> None:
        """Take *known* for the reference by *comparison*."""
        self._known[comparison] = known

    def limit(self, samples: int | None) -> None:
        """Look at this many *samples*, and at no fewer."""
        self.samples, self._seconds = samples, None

    def by(self, comparison: Comparison) -> Reference:
        """The reference by *comparison*."""
        if comparison not in self._known:
            asked = replace(comparison, split=self._split)
            _progress.step("without workers")
            found = self._take(comparison=asked, samples=self.samples, seconds=self._seconds)
            self._learn(found.duration)
            self._known[comparison] = found
            self.limit(found.limit)  # From now on the same for all.
        return self._known[comparison]

    def for_outcome(self, outcome: Outcome, otherwise: Comparison) -> Reference:
        """The reference for *outcome*; samples that it does not know yet are taken now.

        *otherwise*: the comparison to take where the outcome's own has no reference.
        """
        same = (each for each in self._known if each.description == outcome.comparison)
        comparison = next(same, otherwise)
        reference = self.by(comparison)
        if unknown := reference.unknown_batches(outcome):
            asked, packed = replace(comparison, split=self._split), dict(outcome.packed_draws)
            batches = [(indices, packed.get(indices)) for indices in unknown]
            reference = reference.merged_with(self._take(comparison=asked, batches=batches))
            self._known[comparison] = reference
        return reference
