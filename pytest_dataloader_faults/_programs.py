"""Lives of loaders, drawn by Hypothesis: what can come after what, the simplest first."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Iterator

from hypothesis import strategies as st

from pytest_dataloader_faults import strategies
from pytest_dataloader_faults.faults import Fault
from pytest_dataloader_faults.lives import (
    Arm,
    Break,
    Delete,
    Disarm,
    Iterate,
    Kill,
    NewLoader,
    Pickle,
    Restart,
    Step,
)
from pytest_dataloader_faults.strategies._variants import variants
from pytest_dataloader_faults.surveys import Survey

_WORKERS = 2
_ITERATIONS = (Iterate(), Iterate(2), Iterate(None))
_EVENTS = (
    Restart(),
    Break(),
    Disarm(),
    Kill(),
    Pickle(),
    Delete(),
    NewLoader(),
    NewLoader(persistent_workers=True),
)
_ORDINARY = (_ITERATIONS, (*_ITERATIONS, Restart(), Disarm()), _EVENTS)
"""A step is taken from each as often: most bugs take a few epochs, and the end of a fault."""


def programs(
    files: Survey, kinds: Iterable[type[Fault]], steps: Collection[type[Step]], max_steps: int
) -> st.SearchStrategy[tuple[Step, ...]]:
    """Steps that can follow each other, of the classes *steps*; the first one makes a loader.

    Each step is a few choices in a list, so that any of them can be taken out. A list has five
    items, as a rule, however many it may have: so there are two of them.
    """
    drawn = ([step for step in known if type(step) in steps] for known in _ORDINARY)
    choices: list[st.SearchStrategy[Step]] = [st.sampled_from(each) for each in drawn if each]
    if Arm in steps:
        faults = strategies.faults(files=files, kinds=kinds, max_workers=_WORKERS)
        choices.append(faults.map(Arm))
    some = st.lists(st.one_of(choices), max_size=max_steps)

    def program(drawn: tuple[NewLoader, list[Step], list[Step]]) -> tuple[Step, ...]:
        first, one, two = drawn
        return (first, *itertools.islice(sensible([first, *one, *two]), 1, max_steps))

    return st.tuples(_loaders(), some, some).map(program)


def _loaders() -> st.SearchStrategy[NewLoader]:
    counts = tuple(range(1, _WORKERS + 1))
    return variants(persistent_workers=(False, True), num_workers=counts, batch_size=(4, 1, 2)).map(
        lambda how: NewLoader(**how)
    )


def sensible(steps: Iterable[Step]) -> Iterator[Step]:
    """*steps* without those that would do nothing where they stand."""
    there = _There()
    for step in steps:
        if there.means(step):
            yield step
            there.follow(step)


class _There:
    """What is there to be used by the next step."""

    def __init__(self) -> None:
        self._loader = self._workers = self._epoch = self._armed = self._stays = False

    def means(self, step: Step) -> bool:
        """Whether *step* would do anything."""
        if isinstance(step, Break):
            return self._epoch
        if isinstance(step, Kill):
            return self._workers
        if isinstance(step, Disarm):
            return self._armed
        return self._loader or not isinstance(step, (Iterate, Restart, Delete))

    def follow(self, step: Step) -> None:
        """*step* was done."""
        if isinstance(step, (Arm, Disarm)):
            self._armed = isinstance(step, Arm)
        elif isinstance(step, NewLoader):
            self._loader, self._stays = True, step.persistent_workers
        elif isinstance(step, Delete):
            self._loader = False
        if isinstance(step, (NewLoader, Delete, Pickle)):
            self._workers = self._epoch = False
        elif isinstance(step, (Iterate, Restart)):
            self._epoch = step != Iterate(None)
            self._workers = self._epoch or self._stays
        elif isinstance(step, Break):
            self._epoch, self._workers = False, self._stays
