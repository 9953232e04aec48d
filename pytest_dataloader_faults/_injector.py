"""What the fixture ``dataloader_faults`` gives: an injector that answers for its trials, too."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pytest_dataloader_faults.faults import Fault
from pytest_dataloader_faults.injection import FaultInjector, _instead
from pytest_dataloader_faults.outcomes import Outcome


class TestInjector(FaultInjector):
    """A FaultInjector for one test, which fails if a fault never fires, armed or in a trial."""

    __test__ = False

    def __init__(self, *, engine: str = "auto", deadline: float = 30.0, seed: int = 0) -> None:
        super().__init__(engine=engine, deadline=deadline, seed=seed)
        self._outcomes: list[Outcome] = []

    def run(self, make_dataset: Callable[[], Any], *faults: Fault, **loader: Any) -> Outcome:
        """Like ``FaultInjector.run``; each of *faults* has to fire."""
        outcome = super().run(make_dataset, *faults, **loader)
        self._outcomes.append(outcome)
        return outcome

    def unfired(self) -> str | None:
        """Disarm, and tell of the first fault that never happened, if there is one."""
        return super().unfired() or next(filter(None, map(_unfired, self._outcomes)), None)


def _unfired(outcome: Outcome) -> str | None:
    """What was reached in *outcome* in place of a fault; run_trial leaves that to its caller."""
    for each in outcome.faults:
        if not each.fired:
            text = _instead(each, outcome.workers)
            return f"{text}\nIf that is meant, call run_trial() and look at outcome.fired"
    return None
