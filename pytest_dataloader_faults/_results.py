"""What a check found, and who is told of it."""

from __future__ import annotations

import warnings
from dataclasses import dataclass

from pytest_dataloader_faults.exceptions import CheckFailedError
from pytest_dataloader_faults.outcomes import Outcome
from pytest_dataloader_faults.verdicts import Verdict


@dataclass(frozen=True)
class CheckResult:
    """What one check found.

    Attributes:
        check: Its name.
        verdict: The verdict; ``not_exercised`` is never a pass.
        passed: Whether the contract allows it.
        explanation: The verdict in a sentence, the evidence, and how to reproduce it.
        outcome: The facts; None if the check did not apply.
        applies: False if recon showed that the check cannot be asked of this dataset.
        expected: The reason given in ``expected_failures``, if it was listed there.

    """

    check: str
    verdict: Verdict
    passed: bool
    explanation: str
    outcome: Outcome | None = None
    applies: bool = True
    expected: str | None = None

    @property
    def failed(self) -> bool:
        """Whether somebody has to be told: it fails, and neither should nor may."""
        return self.applies and (self.passed if self.expected else not self.passed)


def not_applicable(name: str, reason: str, expected: str | None) -> CheckResult:
    """The check *name* cannot be asked of this dataset."""
    text = f"not_exercised: {name} does not apply to this dataset: {reason}"
    return CheckResult(name, Verdict.NOT_EXERCISED, False, text, None, False, expected)


def report(text: str, on_fail: str | None) -> None:
    """Tell of a failure as *on_fail* says, at the line that called our caller's caller."""
    if on_fail == "raise":
        raise CheckFailedError(text)
    if on_fail == "warn":
        warnings.warn(text, stacklevel=4)
