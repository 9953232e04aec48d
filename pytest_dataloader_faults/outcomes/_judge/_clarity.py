"""Does the exception that reached the loop name its cause? Pure."""

from __future__ import annotations

from pytest_dataloader_faults.outcomes._error_text import (
    Occurrence,
    ends_in_torch_error,
    exception_lines,
    explains_fault,
    mentions_path,
)
from pytest_dataloader_faults.outcomes._facts import TrialFacts
from pytest_dataloader_faults.outcomes._fault_facts import occurrences
from pytest_dataloader_faults.outcomes._judge._deaths import (
    dropped_batch_cause,
    last_error_printed,
    unclear_death,
)
from pytest_dataloader_faults.outcomes._judge._tolerance import may_be_damaged
from pytest_dataloader_faults.outcomes._records import Raised
from pytest_dataloader_faults.outcomes._verdicts import Contract, Finding, Verdict

_ADVICE = (
    ". Raise it from the original exception (raise ... from error), or put the file's path in its"
    " message"
)


def unclear(outcome: TrialFacts, contract: Contract) -> Finding | None:
    """The exception of *outcome*, if it does not name its cause as it has to."""
    raised = outcome.exception
    if raised is None or not outcome.fired or may_be_damaged(outcome, contract):
        return None
    if death := unclear_death(outcome):
        return Verdict.FAILED_UNCLEARLY, death + last_error_printed(outcome)
    happened = occurrences(outcome.faults)
    if not (outcome.deaths or explains_fault(raised.text, happened)):
        kinds = ", ".join(sorted({type(each.fault).__name__ for each in happened}))
        printed = dropped_batch_cause(outcome) or last_error_printed(outcome)
        sentence = f"{raised.type} does not say that its cause is {kinds}"
        return Verdict.FAILED_UNCLEARLY, sentence + (printed or _ADVICE)
    if contract.names_file and not _names_file(raised, happened):
        sentence = f"{raised.type} does not name the file, as the contract promises (names_file)"
        return Verdict.FAILED_UNCLEARLY, sentence
    return None


def _names_file(raised: Raised, happened: list[Occurrence]) -> bool:
    """Whether *raised* names one of the files; also where there is none that it could name."""
    lines = exception_lines(raised.text)
    paths = [each.path for each in happened if each.path and not ends_in_torch_error(each.fault)]
    return not paths or any(mentions_path(lines, path) for path in paths)
