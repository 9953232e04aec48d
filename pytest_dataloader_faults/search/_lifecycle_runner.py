"""Hypothesis draws the steps of a loader; each list is run and judged, and shrunk if it fails."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Iterator

from hypothesis import strategies as st

from pytest_dataloader_faults import lifecycle, strategies
from pytest_dataloader_faults.battery._survey import Survey
from pytest_dataloader_faults.faults import Fault, has_files
from pytest_dataloader_faults.outcomes import Verdict
from pytest_dataloader_faults.search._assertion import not_exercised
from pytest_dataloader_faults.search._lifecycle import Steps, run_and_judge
from pytest_dataloader_faults.search._runner import Search, Trial

LIFECYCLE_KINDS = [kind for kind in strategies.DEFAULT_KINDS if has_files(kind())]
_WORKERS = 2
_EPOCHS: tuple[Steps, ...] = (
    (lifecycle.Iterate(),),
    (lifecycle.Iterate(1),),
    (lifecycle.Iterate(2),),
    (lifecycle.Disarm(), lifecycle.Iterate()),
    (lifecycle.Iterate(), lifecycle.Iterate()),
    (lifecycle.Iterate(), lifecycle.Disarm(), lifecycle.Iterate()),
    (lifecycle.Iterate(1), lifecycle.Disarm(), lifecycle.Iterate()),
)
_EVENTS: tuple[Steps, ...] = (
    (lifecycle.StartEpoch(),),
    (lifecycle.BreakEpoch(),),
    (lifecycle.Disarm(),),
    (lifecycle.KillWorker(),),
    (lifecycle.PickleDataset(),),
    (lifecycle.PickleDataset(), lifecycle.Iterate()),
    (lifecycle.DeleteLoader(),),
    (lifecycle.NewLoader(persistent_workers=True),),
)


class LifecycleSearch(Search):
    """A search for steps that fail. Its trials take a *loader*, too."""

    _unfired: Trial | None = None

    def check_first_epoch(self) -> str | None:
        """What is wrong with it, if its workers came to no data file: they may not have started.

        A dataset that reads files and fails without a fault is shown by the lifecycles.
        """
        if self._found.files.opens or self._found.files.reads:
            return None
        return self.check_without_fault((lifecycle.NewLoader(), lifecycle.Iterate()))

    def unexercised(self) -> str | None:
        """What to say if no fault fired, even where lifecycles without a fault survived."""
        if self._unfired is None or self.fired.total():
            return super().unexercised()
        error = not_exercised(self._unfired.outcome, self._unfired.judgement)
        return f"in none of {self.trials} lifecycles: {error}"

    def _run(self, case: Steps) -> Trial:
        return Trial(case, *run_and_judge(self._found, case, **self._how))

    def _count(self, trial: Trial) -> None:
        super()._count(trial)
        if trial.judgement.verdict is Verdict.NOT_EXERCISED and trial.outcome.schedule:
            self._unfired = trial

    def _confirmed(self) -> str:
        """Leave out single steps first: Hypothesis takes out choices, which may be several steps.

        Hypothesis has tried most of these lists already, so this takes few trials.
        """
        assert self.failed is not None
        verdict = self.failed.judgement.verdict
        candidates = _simpler(self.failed.case)
        while (fewer := next(candidates, None)) is not None:
            name = repr(fewer)
            if name not in self._known:
                self.trials += 1
                self._known[name] = self._run(fewer)
            if self._known[name].judgement.verdict is verdict:
                self.failed = self._known[name]
                candidates = _simpler(fewer)
        return super()._confirmed()


def _simpler(steps: Steps) -> Iterator[Steps]:
    """*steps* with one less, then with ``StartEpoch()`` in place of one ``Iterate``."""
    for place in range(1, len(steps)):
        yield tuple(without_no_ops((*steps[:place], *steps[place + 1 :])))
    for place in reversed(range(1, len(steps))):
        if isinstance(steps[place], lifecycle.Iterate):
            yield (*steps[:place], lifecycle.StartEpoch(), *steps[place + 1 :])


def programs(
    files: Survey,
    kinds: Iterable[type[Fault]],
    steps: Collection[type[lifecycle.Step]],
    max_steps: int,
) -> st.SearchStrategy[Steps]:
    """Steps that can follow each other, of the classes *steps*; the first one makes a loader.

    Hypothesis draws items of one step, or of a few that often come together. Each item takes few
    choices, so that shrinking can take it out. A list of Hypothesis has about five items, however
    many it may have: so there are two lists.
    """
    lists = (_EPOCHS, _EVENTS)
    known = ([each for each in some if {*map(type, each)} <= {*steps}] for some in lists)
    choices: list[st.SearchStrategy[Steps]] = [st.sampled_from(each) for each in known if each]
    if lifecycle.Arm in steps:
        faults = strategies.faults(files=files, kinds=kinds, max_workers=_WORKERS)
        choices.append(faults.map(lambda fault: (lifecycle.Arm(fault),)))
    some = st.lists(st.one_of(choices), max_size=max_steps)

    def program(first: lifecycle.NewLoader, one: list[Steps], two: list[Steps]) -> Steps:
        drawn = itertools.chain((first,), *one, *two)
        return tuple(itertools.islice(without_no_ops(drawn), max_steps))

    loaders = st.builds(
        lifecycle.NewLoader,
        persistent_workers=st.sampled_from((False, True, True)),
        num_workers=st.integers(1, _WORKERS),
        batch_size=st.sampled_from((4, 1, 2)),
    )
    return st.builds(program, loaders, some, some)


def without_no_ops(steps: Iterable[lifecycle.Step]) -> Iterator[lifecycle.Step]:
    """*steps* without those that have no effect, such as a loader that is replaced unused."""
    state = LoaderState()
    loader: lifecycle.Step | None = None
    for step in steps:
        if not state.has_effect(step):
            continue
        state.apply(step)
        if loader and not isinstance(step, lifecycle.NewLoader):
            yield loader
        loader = step if isinstance(step, lifecycle.NewLoader) else None
        if loader is None:
            yield step
    if loader:
        yield loader


class LoaderState:
    """What the next step can use: a loader, its workers, an epoch, a fault."""

    def __init__(self) -> None:
        self._loader = self._workers = self._epoch = self._armed = self._stays = False

    def has_effect(self, step: lifecycle.Step) -> bool:
        """Whether *step* would change anything."""
        if isinstance(step, lifecycle.BreakEpoch):
            return self._epoch
        if isinstance(step, lifecycle.KillWorker):
            return self._workers
        if isinstance(step, lifecycle.Disarm):
            return self._armed
        needs = (lifecycle.Iterate, lifecycle.StartEpoch, lifecycle.DeleteLoader)
        return self._loader or not isinstance(step, needs)

    def apply(self, step: lifecycle.Step) -> None:
        """Remember that *step* was done."""
        if isinstance(step, (lifecycle.Arm, lifecycle.Disarm)):
            self._armed = isinstance(step, lifecycle.Arm)
        elif isinstance(step, lifecycle.NewLoader):
            self._loader, self._stays = True, step.persistent_workers
        elif isinstance(step, lifecycle.DeleteLoader):
            self._loader = False
        if isinstance(step, (lifecycle.NewLoader, lifecycle.DeleteLoader, lifecycle.PickleDataset)):
            self._workers = self._epoch = False
        elif isinstance(step, (lifecycle.Iterate, lifecycle.StartEpoch)):
            self._epoch = step != lifecycle.Iterate()
            self._workers = self._epoch or self._stays
        elif isinstance(step, lifecycle.BreakEpoch):
            self._epoch, self._workers = False, self._stays
        elif isinstance(step, lifecycle.KillWorker):
            self._workers = False
