"""What a check found, in words, and how a failure is reported."""

from __future__ import annotations

import warnings

from pytest_dataloader_faults.battery._battery import Battery
from pytest_dataloader_faults.battery._workload import NotApplicable
from pytest_dataloader_faults.battery.checks import CHECKS
from pytest_dataloader_faults.exceptions import CheckFailedError
from pytest_dataloader_faults.faults import has_files
from pytest_dataloader_faults.outcomes import CheckResult, Verdict
from pytest_dataloader_faults.outcomes._judge._repeats import Conclusion, Trial
from pytest_dataloader_faults.outcomes._judge._report import explain
from pytest_dataloader_faults.outcomes._text import printable

_OTHER_FILES = (
    "The workers opened none of the files that they opened in the run without a fault."
    " make_dataset must use the same files on every call: create them outside it"
)


def ask(
    battery: Battery, name: str, *, expected: str | None = None, reproduce: str | None = None
) -> CheckResult:
    """Run the check *name*, and say what came of it.

    *expected*: why it is expected to fail. *reproduce*: the command that repeats it, if there is a
    better one than a call of ``check_dataset``.
    """
    found = battery.check(name, should_fail=bool(expected))
    if isinstance(found, NotApplicable):
        shown = "\n".join(map(printable, found.reason.split("\n")))  # It may quote names of files.
        text = f"not_exercised: {name} does not apply to this dataset: {shown}"
        return CheckResult(name, Verdict.NOT_EXERCISED, False, text, None, False, expected)
    reproduce = reproduce or battery.reproduce("check_dataset", only=name)
    return _result(name, found, reproduce, expected)


def _result(name: str, found: Conclusion, reproduce: str, expected: str | None) -> CheckResult:
    outcome, judgement = found.trial.outcome, found.trial.judgement
    notes = (*_advice(name, found.trial), *found.notes)
    text = explain(outcome, judgement, reproduce, notes)
    if judgement.passed and expected:
        text = (
            f"expected to fail ({expected}), but it passed. Remove it from expected_failures."
            f"\n{text}"
        )
    return CheckResult(
        name,
        judgement.verdict,
        judgement.passed,
        text,
        outcome,
        expected=expected,
        reproduced=found.reproduced,
        trials=tuple(each.outcome for each in found.trials),
    )


def _advice(name: str, trial: Trial) -> tuple[str, ...]:
    """What to know and to do about a check that failed, if anything."""
    if trial.judgement.passed:
        return ()
    of_files = [each for each in trial.outcome.faults if has_files(each.fault)]
    if trial.judgement.verdict is Verdict.NOT_EXERCISED and of_files:
        return () if any(each.reached for each in of_files) else (_OTHER_FILES,)
    return (CHECKS[name].advice,) if CHECKS[name].advice else ()


def report(text: str, on_fail: str | None) -> None:
    """Raise or warn of a failure as *on_fail* says, at the line that called our caller's caller."""
    if on_fail == "raise":
        raise CheckFailedError(text)
    if on_fail == "warn":
        warnings.warn(text, stacklevel=4)
