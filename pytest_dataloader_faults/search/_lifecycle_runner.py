"""Hypothesis at work on the life of a loader: programs of steps, lived through and judged."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from pytest_dataloader_faults._trial import run_lifecycle
from pytest_dataloader_faults.battery._survey import Survey
from pytest_dataloader_faults.exceptions import CheckFailedError
from pytest_dataloader_faults.lifecycle import Arm, Iterate, StartEpoch, Step
from pytest_dataloader_faults.outcomes import Contract, Judgement, Outcome, Verdict
from pytest_dataloader_faults.outcomes._judge._lifecycle import judge_life
from pytest_dataloader_faults.outcomes._judge._report import explain
from pytest_dataloader_faults.outcomes._text import code
from pytest_dataloader_faults.search._assertion import (
    VIOLATIONS,
    faults_of,
    name_of,
    not_exercised,
    promised,
    stand_ins,
    to_paste,
)
from pytest_dataloader_faults.search._lifecycle_strategy import sensible
from pytest_dataloader_faults.search._runner import Search

Steps = tuple[Step, ...]


def lived(
    make_dataset: Callable[[], Any], steps: Steps, found: Survey, **how: Any
) -> tuple[Outcome, Judgement]:
    """Live through *steps*: the verdict, and what had happened up to where it was come to."""
    life = run_lifecycle(make_dataset, steps, comparison=found.comparison, **how)
    reference = found.reference_for(life.outcome)
    judgement, outcome = judge_life(life, reference, found.contract)
    return outcome, judgement


def violation_in(
    steps: Steps,
    outcome: Outcome,
    judgement: Judgement,
    make_dataset: Callable[[], Any],
    contract: Contract | None,
) -> CheckFailedError:
    """The error to raise: the verdict's own explanation, and a test that lives through it again."""
    again = "\n".join(["", *_again(steps, outcome, make_dataset, contract)])
    return VIOLATIONS[judgement.verdict](explain(outcome, judgement, again))


def _again(
    steps: Steps, outcome: Outcome, make_dataset: Callable[[], Any], contract: Contract | None
) -> list[str]:
    imports, promise = promised(contract)
    imports += stand_ins(outcome.loader)
    options = [*promise]
    options += [f"loader={code(outcome.loader)}"] if outcome.loader else []
    options += [f"deadline={outcome.deadline}", f"seed={outcome.seed}"]
    options += ["engine='python'"] if outcome.engine == "python" else []
    names = ", ".join(sorted({type(step).__name__ for step in steps}))
    imports += faults_of(step.fault for step in steps if isinstance(step, Arm))
    imports += [
        f"from pytest_dataloader_faults.lifecycle import {names}",
        "from pytest_dataloader_faults.search import replay_life",
    ]
    arguments = [name_of(make_dataset), *map(repr, steps), *options]
    lines = "".join(f"        {each},\n" for each in arguments)
    return to_paste(imports, f"replay_life(\n{lines}    )", make_dataset)


class LifeSearch(Search):
    """A search for steps that convict a dataset."""

    def __init__(
        self,
        make_dataset: Callable[[], Any],
        survey: Survey,
        *,
        deadline: float,
        engine: str,
        loader: Mapping[str, Any] | None,
    ) -> None:
        super().__init__(make_dataset, survey, deadline=deadline, engine=engine)
        self._how |= {"loader": loader, "seed": 0}
        self._unfired: tuple[Outcome, Judgement] | None = None

    def _trial(self, case: Steps) -> tuple[Outcome, Judgement]:
        return lived(self._make_dataset, case, self._survey, **self._how)

    def _count(self, outcome: Outcome, judgement: Judgement) -> None:
        super()._count(outcome, judgement)
        if judgement.verdict is Verdict.NOT_EXERCISED and outcome.schedule:
            self._unfired = outcome, judgement

    def unexercised(self) -> str | None:
        """A life without a fault may survive: what is armed has to happen all the same."""
        if self._unfired is None or self.fired.total():
            return super().unexercised()
        return f"in none of {self.trials} lives: {not_exercised(*self._unfired)}"

    def _confirmed(self) -> str:
        self._shorten()
        return super()._confirmed()

    def _shorten(self) -> None:
        """Leave out what can be: Hypothesis takes out choices, and a few steps may be one of these.

        It has tried most of that already, so few lives are lived for it.
        """
        assert self.convicted is not None
        steps, _, judgement = self.convicted
        candidates = _simpler(steps)
        while (fewer := next(candidates, None)) is not None:
            name = repr(fewer)
            if name not in self._known:
                self.trials += 1
                self._known[name] = self._trial(fewer)
            if self._known[name][1].verdict is judgement.verdict:
                self.convicted = fewer, *self._known[name]
                candidates = _simpler(fewer)

    def _violation(self, case: Steps, outcome: Outcome, judgement: Judgement) -> CheckFailedError:
        return violation_in(case, outcome, judgement, self._make_dataset, self._survey.contract)


def _simpler(steps: Steps) -> Iterator[Steps]:
    """*steps* with one less, then with an epoch that is only begun in place of one gone through."""
    for place in range(1, len(steps)):
        yield tuple(sensible((*steps[:place], *steps[place + 1 :])))
    for place in reversed(range(1, len(steps))):
        if isinstance(steps[place], Iterate):
            yield (*steps[:place], StartEpoch(), *steps[place + 1 :])
