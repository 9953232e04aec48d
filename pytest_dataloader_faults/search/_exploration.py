"""The result of a search, and what follows from it for the caller."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from pytest_dataloader_faults.exceptions import CheckFailedError, FaultNotFiredError
from pytest_dataloader_faults.outcomes import Outcome, Verdict
from pytest_dataloader_faults.outcomes.contract import EXACT, Comparison
from pytest_dataloader_faults.outcomes.results import Shown
from pytest_dataloader_faults.outcomes.text import counted


@dataclass(frozen=True, repr=False)
class Exploration(Shown):
    """What a search has found.

    Attributes:
        trials: How many trials ran, with those of shrinking.
        examples: How many trials it took to find the first failure; None if there was none.
        verdicts: How many trials had each verdict, before any shrinking.
        attempted: In how many trials there was a fault of each kind.
        fired: In how many of these trials it happened.
        failure: The explanation of the shrunk failure, or None.
        outcome: The facts of the shrunk failure, or None.
        verdict: The verdict of the shrunk failure. Without a failure ``failed_cleanly`` if any
            trial failed, else ``survived``, or ``not_exercised`` if no fault of any trial fired.
        comparison: What of samples was compared, as in an ``Outcome``.

    """

    trials: int
    examples: int | None
    verdicts: Counter[str] = field(default_factory=Counter)
    attempted: Counter[str] = field(default_factory=Counter)
    fired: Counter[str] = field(default_factory=Counter)
    failure: str | None = None
    outcome: Outcome | None = None
    verdict: Verdict = Verdict.SURVIVED
    comparison: Comparison = EXACT

    def describe(self) -> str:
        """The statistics, for people."""
        total = sum(self.verdicts.values())
        shown = total - self.verdicts[Verdict.NOT_EXERCISED.value]
        found = "" if self.examples is None else f", {self.trials - total} more to shrink one"
        lines = [f"{counted(total, 'example')} tried{found}; {shown} of them showed something"]
        lines += [f"  {verdict}: {count}" for verdict, count in self.verdicts.most_common()]
        if self.comparison != EXACT:
            lines.append(f"  samples were compared by {self.comparison}")
        kinds = sorted(self.attempted.items())
        lines += [f"  {kind}: fired in {self.fired[kind]} of {count}" for kind, count in kinds]
        return "\n".join(lines)

    def _facts(self) -> Iterator[tuple[str, object]]:
        yield "verdict", self.verdict
        yield "trials", self.trials
        yield "verdicts", dict(self.verdicts)
        if self.failure:
            yield "examples", self.examples
        if self.outcome:
            yield from self.outcome._facts()

    def _texts(self) -> Iterator[tuple[str, str]]:
        yield "statistics", self.describe()
        if self.failure:
            yield "failure", self.failure


def conclude(
    result: Exploration,
    unexercised: str | None,
    on_fail: str | None,
    report: Callable[[str], object] | None,
) -> Exploration:
    """Report *result*. Raise what it and *on_fail* ask for, or warn, or return it.

    *unexercised*: what to say where no trial has shown anything.
    """
    __tracebackhide__ = True
    if report is not None:
        report(result.describe())
    if unexercised and not result.failure:
        raise FaultNotFiredError(unexercised)
    if result.failure and on_fail == "raise":
        raise CheckFailedError(f"{result.failure}\n\n{result.describe()}")
    if result.failure and on_fail == "warn":
        warnings.warn(result.failure, stacklevel=3)
    return result
