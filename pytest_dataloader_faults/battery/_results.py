"""What a check found, and who is told of it."""

from __future__ import annotations

import warnings

from pytest_dataloader_faults.battery.checks import Check
from pytest_dataloader_faults.exceptions import CheckFailedError
from pytest_dataloader_faults.faults import has_files
from pytest_dataloader_faults.outcomes import CheckResult, Judgement, Outcome, Verdict
from pytest_dataloader_faults.outcomes._judge._repeats import Conclusion, Trial
from pytest_dataloader_faults.outcomes._judge._report import explain
from pytest_dataloader_faults.outcomes._text import printable

_OTHER_FILES = (
    "The workers opened none of the files that they opened when the battery looked: make_dataset"
    " has to use the same files at each call. Make the files before, and only the dataset in it"
)


def not_applicable(name: str, reason: str, expected: str | None) -> CheckResult:
    """The check *name* cannot be asked of this dataset."""
    shown = "\n".join(map(printable, reason.split("\n")))  # It may quote names of files.
    text = f"not_exercised: {name} does not apply to this dataset: {shown}"
    return CheckResult(name, Verdict.NOT_EXERCISED, False, text, None, False, expected)


def result_of(
    check: Check, trials: list[Trial], found: Conclusion, how: str, expected: str | None
) -> CheckResult:
    """What is said of *check*, given what its *trials* show together."""
    outcome, judgement = found.trial.outcome, found.trial.judgement
    advice = "" if judgement.passed else _advice(check, outcome, judgement)
    text = explain(outcome, judgement, how, [*filter(None, [advice]), *found.notes])
    if judgement.passed and expected:
        text = f"expected to fail ({expected}), but it passed. Take it off the list.\n{text}"
    return CheckResult(
        check.name,
        judgement.verdict,
        judgement.passed,
        text,
        outcome,
        expected=expected,
        reproduced=found.reproduced,
        trials=tuple(each.outcome for each in trials),
    )


def _advice(check: Check, outcome: Outcome, judgement: Judgement) -> str:
    """What to know and to do about it, if anything."""
    of_files = [each for each in outcome.faults if has_files(each.fault)]
    if judgement.verdict is Verdict.NOT_EXERCISED and of_files:
        return "" if any(each.reached for each in of_files) else _OTHER_FILES
    return check.advice


def report(text: str, on_fail: str | None) -> None:
    """Tell of a failure as *on_fail* says, at the line that called our caller's caller."""
    if on_fail == "raise":
        raise CheckFailedError(text)
    if on_fail == "warn":
        warnings.warn(text, stacklevel=4)
