"""Many small choices as one, so that a failing example is shrunk in few trials.

Some facts about shrinking. Hypothesis shrinks the sequence of choices that an example was drawn by:
it makes the sequence shorter, then each choice in it smaller. What goes in one step is a run of at
most five choices, and each step is a trial of a few tenths of a second. A fault that is drawn by
seven choices can thus not be taken out of a list of faults; one that is drawn by four can be, in
one step. So all arguments of a fault but its file and its place in time are one choice, among all
their combinations, those first that differ least from the simplest.

Which file a fault is about, and which of its operations.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeAlias

from hypothesis import strategies as st
from hypothesis.errors import InvalidArgument

from pytest_dataloader_faults._arguments import COUNT
from pytest_dataloader_faults.battery._survey import DataFiles, Survey
from pytest_dataloader_faults.battery._targets import Files as Globs
from pytest_dataloader_faults.battery._targets import parse_globs
from pytest_dataloader_faults.exceptions import InvalidArgumentError
from pytest_dataloader_faults.strategies._arguments import require


def variants(**domains: tuple[Hashable, ...]) -> st.SearchStrategy[dict[str, Any]]:
    """A value for each of *domains*, by name, drawn together; shrinks to the first of each."""
    return st.sampled_from(_combined(tuple(domains.items())))


@lru_cache
def _combined(domains: tuple[tuple[str, tuple[Hashable, ...]], ...]) -> list[dict[str, Any]]:
    names = [name for name, _ in domains]
    places = itertools.product(*(range(len(values)) for _, values in domains))
    simplest_first = sorted(places, key=lambda each: (sum(map(bool, each)), each))
    every = [
        [values[place] for (_, values), place in zip(domains, each, strict=True)]
        for each in simplest_first
    ]
    return [dict(zip(names, values, strict=True)) for values in every]


Files: TypeAlias = DataFiles | Survey | Globs | None
"""What strategies take as ``files``."""

Path: TypeAlias = str | tuple[str, ...]
_NTH = 4


@dataclass(frozen=True)
class Target:
    """A file, or all of them, and how often a worker comes to it: in an epoch, and in its life."""

    path: Path
    in_epoch: int
    in_life: int


def nth_of(victim: Target) -> st.SearchStrategy[int]:
    """Which of its operations: as often the first one of an epoch as any other.

    Of a worker that lives for two, rather the second epoch's: what the first left is met there. In
    turn, so that a place in the list means the same if there are more operations.
    """
    second = victim.in_epoch + 1
    firsts = itertools.cycle([second, second, 1] if second <= victim.in_life else [1])
    later = range(2, victim.in_life + 1)
    return st.sampled_from([1, *(nth for each in later for nth in (each, next(firsts)))])


def data_files(files: Files) -> DataFiles:
    """*files* as what is known of them; of globs that is little."""
    if isinstance(files, Survey):
        return files.files
    if isinstance(files, DataFiles):
        return files
    try:
        globs = parse_globs(files)
    except InvalidArgumentError as error:
        raise InvalidArgument(str(error)) from error
    counts = dict.fromkeys(globs, _NTH)
    return DataFiles(opens=counts, reads=counts, all_files=globs[0] if len(globs) == 1 else globs)


def opened(files: Files, most: int | None = None) -> st.SearchStrategy[Target]:
    """One of the files that are opened, or all; the first one first."""
    known = data_files(files)
    return _victims(known, known.opens, most, "open")


def read(files: Files, most: int | None = None) -> st.SearchStrategy[Target]:
    """One of the files that are read, or all; the first one first."""
    known = data_files(files)
    return _victims(known, known.reads, most, "read")


def held(files: Files, most: int | None = None) -> st.SearchStrategy[Target]:
    """One of the files whose descriptors workers read by, opened there or inherited, or all."""
    known = data_files(files)
    counts = {path: max(1, known.opens.get(path, 0)) for path in known.reads}
    return _victims(known, counts, most, "read")


def _victims(
    known: DataFiles, counts: Mapping[str, int], most: int | None, verb: str
) -> st.SearchStrategy[Target]:
    if most is not None:
        require(COUNT, max_nth=most)
    if not counts:
        message = f"files={known!r} must have a file that workers {verb}; this dataset has none"
        raise InvalidArgument(message)
    named = [known.focus] if known.focus is not None and known.focus in counts else [*counts]
    each = [_victim(path, counts[path], known.epochs, most) for path in named]
    share = math.ceil(sum(counts.values()) / known.workers)
    every = _victim(known.all_files, share, known.epochs, most)
    # Rather one of them than all. In one list: a choice of two strategies, one of which makes a
    # choice of its own, would shrink to the other one.
    once = [*each, *([every] * len(each))] if every.path != each[0].path else each
    return st.sampled_from([*once, *each, *each])


def _victim(path: Path, in_epoch: int, epochs: int, most: int | None) -> Target:
    return Target(path, in_epoch, most or in_epoch * epochs)
