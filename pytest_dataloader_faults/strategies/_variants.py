"""Many small choices as one, so that a failing example is shrunk in few trials.

Some facts about shrinking. Hypothesis shrinks the sequence of choices that an example was drawn by:
it makes the sequence shorter, then each choice in it smaller. What goes in one step is a run of at
most five choices, and each step is a trial of a few tenths of a second. A fault that is drawn by
seven choices can thus not be taken out of a list of faults; one that is drawn by four can be, in
one step. So all arguments of a fault but its file and its place in time are one choice, among all
their combinations, those first that differ least from the simplest.
"""

from __future__ import annotations

import itertools
from collections.abc import Hashable
from functools import lru_cache
from typing import Any

from hypothesis import strategies as st


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
