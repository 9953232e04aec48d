"""Samples that came in place of others: a neighbour's content, or a dummy. Pure.

Some facts about telling a substitute from damage. Damaged bytes do not make the picture of another
sample, and they do not make two pictures the same. But they may well make another sample's label,
length or mask. So only the large parts of a sample count, all of them together, and only where the
samples of the reference differ in them.
"""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from pytest_dataloader_faults.outcomes._records import MANY, ZEROS, Leaves, Pass
from pytest_dataloader_faults.outcomes._reference import Reference
from pytest_dataloader_faults.outcomes._verdicts import Mismatch, Wrong

_SHOWN = 5
_ROW = 3
"""So many samples are told by the first and the last one, if they lie side by side."""
_DIGEST = 24
"""Digests have this length. What is shorter is the value itself."""
_SHAPE = re.compile(r"\(([\d, ]*)\)")


@dataclass(frozen=True)
class Substitutes:
    """What can be recognised as a substitute in one epoch.

    Attributes:
        digests: Those of all samples in the reference.
        expected: The large parts of each sample in the reference.
        owners: Which sample has these large parts, if one has them and no other.
        repeated: Large parts that came for several samples, which differ in the reference.
    """

    digests: Collection[str] = ()
    expected: Mapping[Any, Leaves] = field(default_factory=dict)
    owners: Mapping[Leaves, Any] = field(default_factory=dict)
    repeated: Mapping[Leaves, list[Any]] = field(default_factory=dict)

    @classmethod
    def among(cls, one: Pass, reference: Reference) -> Substitutes:
        """Those in the map-style epoch *one*; none where less than the content was compared."""
        digests = frozenset(digest for _, digest in reference.samples)
        if not reference.comparison.startswith("bytes"):
            return cls(digests)
        expected = {index: large_parts(parts) for index, parts in reference.leaves}
        counts = Counter(expected.values())
        owners = {parts: index for index, parts in expected.items() if counts[parts] == 1}
        came: dict[Leaves, list[Any]] = defaultdict(list)
        for index, parts in _came(one):
            if parts != expected.get(index):
                came[parts].append(index)
        repeated = {
            parts: indices
            for parts, indices in came.items()
            if len({expected.get(index) for index in indices}) > 1
        }
        return cls(digests, expected, owners, repeated)

    def describe(self, index: Any, place: int, came: Leaves) -> Mismatch | None:
        """What came in place of the sample *index* of the batch at *place*.

        None where it may be what was read.
        """
        parts = large_parts(came)
        if not parts or parts == self.expected.get(index):
            return None
        if parts in self.owners:
            return substituted(index, place, self.owners[parts])
        alike = self.repeated.get(parts, [])
        if len(alike) < 2:  # noqa: PLR2004  # it and another one
            return None
        what = "alike, all zeros" if all(each[2] == ZEROS for each in parts) else "alike"
        return Mismatch(Wrong.ALIKE, f"{_named(alike)} came {what}; in the reference they differ")


def substituted(index: Any, place: int, owner: Any) -> Mismatch:
    """The sample *index* of the batch at *place* has the content of the sample *owner*."""
    sentence = f"{sample_at(index, place)} is wrong: it has the content of sample {owner!r}"
    return Mismatch(Wrong.SUBSTITUTED, sentence)


def sample_at(index: Any, place: int) -> str:
    return f"sample {index!r} (batch {place})"


def _named(indices: list[Any]) -> str:
    """Samples by their *indices*, at least two: many in a row by the first and the last one."""
    if all(isinstance(each, int) for each in indices):
        least, most = min(indices), max(indices)
        if len(indices) >= _ROW and sorted(indices) == list(range(least, most + 1)):
            return f"samples {least} to {most}"
    shown, more = indices[:_SHOWN], len(indices) - _SHOWN
    texts = [*map(repr, shown), *([f"{more} more"] if more > 0 else [])]
    return f"samples {', '.join(texts[:-1])} and {texts[-1]}"


def large_parts(leaves: Leaves) -> Leaves:
    """Those of *leaves* that do not become the same by accident."""
    return tuple(each for each in leaves if _is_large(*each[1:]))


def _is_large(form: str, digest: str) -> bool:
    if len(digest) < _DIGEST and digest != ZEROS:
        return False
    shape = _SHAPE.search(form)
    return shape is None or math.prod(map(int, re.findall(r"\d+", shape[1]))) >= MANY


def _came(one: Pass) -> Iterator[tuple[Any, Leaves]]:
    """The large parts of each sample that came whole, by its index."""
    for delivery in one.delivered:
        if delivery.indices and len(delivery.indices) == len(delivery.leaves):
            yield from zip(delivery.indices, map(large_parts, delivery.leaves), strict=True)
