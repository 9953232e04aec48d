"""Lives of loaders, drawn by Hypothesis: what can come after what, the simplest first."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Iterator

from hypothesis import strategies as st

from pytest_dataloader_faults import strategies
from pytest_dataloader_faults.battery._survey import Survey
from pytest_dataloader_faults.faults import Fault
from pytest_dataloader_faults.lifecycle import (
    Arm,
    BreakEpoch,
    DeleteLoader,
    Disarm,
    Iterate,
    KillWorker,
    NewLoader,
    PickleDataset,
    StartEpoch,
    Step,
)

Steps = tuple[Step, ...]

_WORKERS = 2
_EPOCHS: tuple[Steps, ...] = (
    (Iterate(),),
    (Iterate(1),),
    (Iterate(2),),
    (Disarm(), Iterate()),
    (Iterate(), Iterate()),
    (Iterate(), Disarm(), Iterate()),
    (Iterate(1), Disarm(), Iterate()),
)
_EVENTS: tuple[Steps, ...] = (
    (StartEpoch(),),
    (BreakEpoch(),),
    (Disarm(),),
    (KillWorker(),),
    (PickleDataset(),),
    (PickleDataset(), Iterate()),
    (DeleteLoader(),),
    (NewLoader(persistent_workers=True),),
)
_ORDINARY = (_EPOCHS, _EVENTS)
_BATCHES = (4, 1, 2)


def programs(
    files: Survey, kinds: Iterable[type[Fault]], steps: Collection[type[Step]], max_steps: int
) -> st.SearchStrategy[Steps]:
    """Steps that can follow each other, of the classes *steps*; the first one makes a loader.

    What is drawn are a step or a few that often come together, each in a few choices, so that any
    of them can be taken out. A list has five items, as a rule, however many it may have: so there
    are two of them.
    """
    known = ([each for each in some if {*map(type, each)} <= {*steps}] for some in _ORDINARY)
    choices: list[st.SearchStrategy[Steps]] = [st.sampled_from(each) for each in known if each]
    if Arm in steps:
        faults = strategies.faults(files=files, kinds=kinds, max_workers=_WORKERS)
        choices.append(faults.map(lambda fault: (Arm(fault),)))
    some = st.lists(st.one_of(choices), max_size=max_steps)

    def program(first: NewLoader, one: list[Steps], two: list[Steps]) -> Steps:
        drawn = itertools.chain((first,), *one, *two)
        return tuple(itertools.islice(sensible(drawn), max_steps))

    return st.builds(program, _loaders(), some, some)


def _loaders() -> st.SearchStrategy[NewLoader]:
    return st.builds(
        NewLoader,
        persistent_workers=st.sampled_from((False, True, True)),
        num_workers=st.integers(1, _WORKERS),
        batch_size=st.sampled_from(_BATCHES),
    )


def sensible(steps: Iterable[Step]) -> Iterator[Step]:
    """*steps* without those that do nothing where they stand, as a loader that is replaced."""
    there = LoaderState()
    loader: Step | None = None
    for step in steps:
        if not there.means(step):
            continue
        there.follow(step)
        if loader and not isinstance(step, NewLoader):
            yield loader
        loader = step if isinstance(step, NewLoader) else None
        if loader is None:
            yield step
    if loader:
        yield loader


class LoaderState:
    """What is there to be used by the next step."""

    def __init__(self) -> None:
        self._loader = self._workers = self._epoch = self._armed = self._stays = False

    def means(self, step: Step) -> bool:
        """Whether *step* would do anything."""
        if isinstance(step, BreakEpoch):
            return self._epoch
        if isinstance(step, KillWorker):
            return self._workers
        if isinstance(step, Disarm):
            return self._armed
        return self._loader or not isinstance(step, (Iterate, StartEpoch, DeleteLoader))

    def follow(self, step: Step) -> None:
        """*step* was done."""
        if isinstance(step, (Arm, Disarm)):
            self._armed = isinstance(step, Arm)
        elif isinstance(step, NewLoader):
            self._loader, self._stays = True, step.persistent_workers
        elif isinstance(step, DeleteLoader):
            self._loader = False
        if isinstance(step, (NewLoader, DeleteLoader, PickleDataset)):
            self._workers = self._epoch = False
        elif isinstance(step, (Iterate, StartEpoch)):
            self._epoch = step != Iterate()
            self._workers = self._epoch or self._stays
        elif isinstance(step, BreakEpoch):
            self._epoch, self._workers = False, self._stays
        elif isinstance(step, KillWorker):
            self._workers = False
