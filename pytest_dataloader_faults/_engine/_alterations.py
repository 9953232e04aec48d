"""Which faults change what is in a file. Pure."""

from __future__ import annotations

from typing import Any, NamedTuple

from pytest_dataloader_faults._engine._plan import Tallies, Tally
from pytest_dataloader_faults._engine._substitute import Alteration
from pytest_dataloader_faults.faults import CorruptedFile, TruncatedFile


class Altered(NamedTuple):
    """A file whose content is to be another: whose doing it is, and how it differs."""

    tallies: list[Tally[Any]]
    alteration: Alteration


def altered(tallies: Tallies, path: str, size: int) -> Altered | None:
    """The faults that change what is in *path*, of *size* bytes; they have been reached by that."""
    cuts = [*tallies.about(TruncatedFile, path)]
    flips = [*tallies.about(CorruptedFile, path)]
    both: list[Tally[Any]] = [*cuts, *flips]
    for tally in both:
        tally.reached += 1
    cuts = [each for each in cuts if each.fault.kept(size) < size]
    if not size or not (cuts or flips):
        return None
    kept = min((each.fault.kept(size) for each in cuts), default=None)
    spots = tuple((each.fault.flips, each.fault.seed) for each in flips)
    return Altered([*cuts, *flips], Alteration(kept, spots))
