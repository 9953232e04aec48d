"""The judge: facts in, verdict out. Pure.

The rules are ordered by severity, and the first one that is violated decides. They hold even if no
fault fired. But without a fault that fired, a trial is never a pass. If a change of a file was
refused, that alone decides, because all else may follow from it.
"""

from __future__ import annotations

from dataclasses import replace

from pytest_dataloader_faults._arguments import errno_name
from pytest_dataloader_faults.exceptions import InvalidArgumentError
from pytest_dataloader_faults.faults import Fault
from pytest_dataloader_faults.outcomes.contract import Cause, Contract, Finding, Verdict
from pytest_dataloader_faults.outcomes.judge import ranks
from pytest_dataloader_faults.outcomes.judge.at_rest import AtRestJudge
from pytest_dataloader_faults.outcomes.judge.rules import Judge
from pytest_dataloader_faults.outcomes.records import Outcome
from pytest_dataloader_faults.outcomes.reference import Reference
from pytest_dataloader_faults.outcomes.stages import Refusal, describe_change

DESTROYS = Cause(
    "deletes or overwrites a file that it cannot read",
    "An error of the storage says nothing about the file, which may be intact at the next attempt."
    " Raise the error, and leave it to a person to remove the file",
    fix="raise the error, and keep the file",
)
REMEDY = (
    "Pass copy=FOLDER with the data: each trial then gets a copy, which it may change. Or give"
    " make_dataset a parameter for a folder, and let it write its cache there"
)


def judge(outcome: Outcome, reference: Reference, contract: Contract) -> Finding:
    """The verdict on *outcome*, compared with the *reference*, the fault-free run.

    Raises:
        InvalidArgumentError: The samples of the reference were compared in a different way.
    """
    if outcome.comparison != reference.comparison:
        message = (
            f"the trial compared samples by '{outcome.comparison}', but the reference by"
            f" '{reference.comparison}'. Pass a reference that was compared in the same way"
        )
        raise InvalidArgumentError(message)
    finding = find_refusal(outcome) or _judge(outcome, reference, contract)
    return replace(finding, library="") if contract.names_file else finding


def _judge(outcome: Outcome, reference: Reference, contract: Contract) -> Finding:
    """The verdict on a trial, of one process or of several ranks."""
    if outcome.ranks:
        outcome, reference = ranks.align(outcome, reference)
        findings = [
            _judge(rank, ranks.reference_for(number, outcome, reference), contract)
            for number, rank in enumerate(outcome.ranks)
        ]
        return ranks.judge_together(outcome, findings, reference, contract)
    kind = AtRestJudge if outcome.before_init else Judge
    return kind(outcome, reference, contract).judge()


def find_refusal(outcome: Outcome) -> Finding | None:
    """What the first refusal that counts shows; None if nothing was refused.

    A dataset may replace a file that is damaged or missing. So only what it does to its data after
    a fault of another kind is a defect. After a refusal, nothing else in the trial counts.
    """
    if not outcome.refusals:
        return None
    sentence = _describe_refusal(outcome)
    is_at_rest = any(fault.is_at_rest for fault in _fired_faults(outcome))
    if _deciding_refusal(outcome).is_read and not is_at_rest:
        return Finding(
            Verdict.POISONED, f"{sentence}; the file may be intact at the next attempt", DESTROYS
        )
    return Finding(Verdict.NOT_EXERCISED, f"{sentence}. {REMEDY}")


def explain_refusal(outcome: Outcome) -> tuple[str, str, None, str]:
    """Why a check does not apply after a refusal: the arguments of ``NotApplicable``."""
    return _describe_refusal(outcome), "it would delete or overwrite files", None, REMEDY


def _describe_refusal(outcome: Outcome) -> str:
    faults = " and ".join(dict.fromkeys(map(_describe, _fired_faults(outcome))))
    change = describe_change(_deciding_refusal(outcome))
    return f"it would {change} after {faults or 'the end of a process'}"


def _deciding_refusal(outcome: Outcome) -> Refusal:
    return next((each for each in outcome.refusals if each.is_read), outcome.refusals[0])


def _fired_faults(outcome: Outcome) -> list[Fault]:
    return [fault for job in outcome.jobs for fault in job.fired_faults]


def _describe(fault: Fault) -> str:
    name = type(fault).__name__
    return f"{name} ({errno_name(fault.errno)})" if fault.errno else name
