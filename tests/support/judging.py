"""The verdict on one trial, for tests that have its facts and a reference."""

from pytest_dataloader_faults import Contract, Outcome
from pytest_dataloader_faults.outcomes import Finding, Reference
from pytest_dataloader_faults.outcomes.judge import judge


def judge_trial(
    outcome: Outcome, reference: Reference, contract: Contract | None = None
) -> Finding:
    return judge(outcome, reference, contract or Contract())
