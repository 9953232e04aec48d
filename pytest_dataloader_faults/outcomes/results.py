"""The results of trials and checks, and how they are shown. Plain data."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from pytest_dataloader_faults.outcomes.agreement import EXACT, Comparison
from pytest_dataloader_faults.outcomes.contract import Finding, Verdict
from pytest_dataloader_faults.outcomes.records import Outcome
from pytest_dataloader_faults.outcomes.text import Shown, pluralize, was_or_were


@dataclass(frozen=True, repr=False)
class CheckResult(Shown):
    """The result of one check.

    Attributes:
        check: The name of the check.
        finding: What the trials show together.
        verdict: The verdict of *finding*; ``not_exercised`` is never a pass.
        passed: Whether the verdict is a pass under the contract.
        sentence: What was observed, on one line, without the verdict.
        explanation: The verdict in a sentence, the evidence, and how to reproduce it.
        outcome: The facts; None if the check did not apply.
        applies: False if the check does not apply to this dataset.
        expected: The reason from ``expected_failures``, if the check is listed there.
        reproduced: False if the check is flaky: one trial failed, but two repeats passed.
        notes: Remarks on the run: how many samples were checked, if not all; that a file check read
            a newly created cache, or that every run writes the files; which hosts the workers
            connected to; that a client's timeout was not reached.
        cause: What the dataset is likely to do wrong, in a few words; "" if it passed. For a check
            that does not apply: why, if the dataset has what the check is about.
        fix: What to do about the cause, in one sentence; "" if there is no cause.
        trials: The outcome of each trial: one, or two or three if the first was not as expected;
            those of every scenario, if the check has several.
        reproduce: The command or the code that runs the check again; "" if there was no trial.
    """

    check: str
    finding: Finding
    explanation: str = ""
    outcome: Outcome | None = None
    applies: bool = True
    expected: str | None = None
    reproduced: bool = True
    notes: tuple[str, ...] = ()
    trials: tuple[Outcome, ...] = ()
    reproduce: str = ""

    @property
    def verdict(self) -> Verdict:
        """The verdict of the finding."""
        return self.finding.verdict

    @property
    def passed(self) -> bool:
        """Whether the verdict is a pass."""
        return self.finding.passed

    @property
    def sentence(self) -> str:
        """The sentence of the finding."""
        return self.finding.sentence

    @property
    def cause(self) -> str:
        """The phrase of the likely cause."""
        return self.finding.cause.phrase if self.finding.cause else ""

    @property
    def fix(self) -> str:
        """The fix of the likely cause."""
        return self.finding.cause.fix if self.finding.cause else ""

    @property
    def warns(self) -> bool:
        """Whether the failure is only a warning, about an error that a library raised."""
        return bool(self.finding.library) and self.reproduced and not self.expected

    @property
    def failed(self) -> bool:
        """Whether the dataset fails the check every time, and was not expected to fail it.

        Also true if the dataset passes a check that it was expected to fail.
        """
        if not (self.applies and self.reproduced) or self.warns:
            return False
        return self.passed if self.expected else not self.passed

    def _facts(self) -> Iterator[tuple[str, object]]:
        for name, usual in zip(_SHOWN, _USUAL, strict=True):
            if (value := getattr(self, name)) != usual:
                yield name, value
        if self.outcome:
            yield from self.outcome._facts()

    def _text(self) -> str:
        return self.explanation


_SHOWN = "check verdict passed applies reproduced warns expected cause fix".split()
_USUAL = ("", None, None, True, True, False, None, "", "")
"""What the ``repr`` shows of a result, unless it has these values."""


@dataclass(frozen=True, repr=False)
class Exploration(Shown):
    """The result of a search.

    Attributes:
        trials: How many trials ran, including those of shrinking.
        examples: How many trials it took to find the first failure; None if there was none.
        verdicts: How many trials had each verdict, before any shrinking.
        attempted: How many trials contained a fault of each kind.
        fired: In how many of these trials it fired.
        failure: The explanation of the shrunk failure, or None.
        outcome: The facts of the shrunk failure, or None.
        verdict: The verdict of the shrunk failure. Without a failure, ``failed_cleanly`` if any
            trial failed, ``survived`` if none did, or ``not_exercised`` if no fault fired.
        comparison: How samples were compared, as in an ``Outcome``.
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
        """The statistics, as text."""
        total = sum(self.verdicts.values())
        conclusive = total - self.verdicts[Verdict.NOT_EXERCISED.value]
        is_shrunk = self.examples is not None and self.trials > total
        shrinking = f", {self.trials - total} more to shrink one" if is_shrunk else ""
        tried = f"{pluralize(total, 'example')} tried{shrinking}"
        lines = [f"{tried}; {conclusive} of them {was_or_were(conclusive)} conclusive"]
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

    def _text(self) -> str:
        return "\n".join(filter(None, [self.describe(), self.failure]))
