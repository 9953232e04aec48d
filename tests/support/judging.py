"""What the package concludes, for tests that have the facts: verdicts, clear errors, refusals."""

from collections.abc import Callable
from typing import Any

from pytest_dataloader_faults import Contract, Outcome
from pytest_dataloader_faults._settings import Settings
from pytest_dataloader_faults.battery.workload import NotApplicable
from pytest_dataloader_faults.faults import Fault
from pytest_dataloader_faults.outcomes import Finding, Reference
from pytest_dataloader_faults.outcomes.error_text import Occurrence, explains_fault
from pytest_dataloader_faults.outcomes.judge import judge
from pytest_dataloader_faults.search._search import Survey


def judge_trial(
    outcome: Outcome, reference: Reference, contract: Contract | None = None
) -> Finding:
    return judge(outcome, reference, contract or Contract())


def explains(text: str, fault: Fault, path: str | None, call: str) -> bool:
    """Whether a message explains a single fault."""
    return explains_fault(text, [Occurrence(fault, path, call)])


def refusal_of(function: Callable[..., object], *arguments: object) -> NotApplicable | None:
    """What *function* raises, a plan or a rule of a trial, if its check does not apply."""
    try:
        function(*arguments)
    except NotApplicable as refusal:
        return refusal
    return None


def survey(make_dataset: Any, **settings: Any) -> Survey:
    """Run the dataset once without a fault, and list the files that it reads."""
    return Survey(make_dataset, Settings.of(settings), before_init=False)
