"""The judge: facts in, verdict out. Pure.

The rules are asked in order of gravity and the first that objects decides. A fault that did not
fire excuses nothing that was seen to go wrong; but without a fault that fired, nothing good was
shown.
"""

from __future__ import annotations

from pytest_dataloader_faults.exceptions import InvalidArgumentError
from pytest_dataloader_faults.outcomes._error_text import (
    how_told,
    is_told_by_torch,
    messages,
    names,
    tells_any,
)
from pytest_dataloader_faults.outcomes._facts import TrialFacts
from pytest_dataloader_faults.outcomes._judge._deaths import (
    dropped,
    last_words,
    unclear_death,
)
from pytest_dataloader_faults.outcomes._judge._leaks import grown, leaked
from pytest_dataloader_faults.outcomes._judge._samples import corrupted, skipped, wrong_in
from pytest_dataloader_faults.outcomes._judge._tolerance import Tolerance, may_be_damaged
from pytest_dataloader_faults.outcomes._reference import Reference
from pytest_dataloader_faults.outcomes._verdicts import Contract, Judgement, Verdict

_MOST = 200
_SEEDED = (
    ". Random numbers are seeded by the sample here: one that draws more of them in a second"
    " attempt differs by that, which the contract's compare= can allow"
)


def judge(outcome: TrialFacts, reference: Reference, contract: Contract) -> Judgement:
    """The verdict on *outcome*, given what the dataset gives when nothing is wrong.

    Raises:
        ValueError: The reference does not know a batch that was delivered.
        InvalidArgumentError: It is of samples that were compared otherwise.

    """
    if outcome.comparison != reference.comparison:
        message = (
            f"the outcome's samples were compared by {outcome.comparison!r} and the reference's by"
            f" {reference.comparison!r}: run the trial by the survey's own run_trial(...)"
        )
        raise InvalidArgumentError(message)
    if lacking := reference.lacks(outcome):
        message = f"the reference does not know batch {list(lacking[0])}: take it of these indices"
        raise ValueError(message)
    verdict, sentence = _verdict(outcome, reference, contract)
    may_fail = outcome.schedule and not contract.survives
    if verdict is Verdict.FAILED_CLEANLY and contract.survives:
        sentence += "; but the contract promises that it survives"
    accepted = (Verdict.SURVIVED, Verdict.FAILED_CLEANLY) if may_fail else (Verdict.SURVIVED,)
    return Judgement(verdict, sentence, verdict in accepted)


def _verdict(outcome: TrialFacts, reference: Reference, contract: Contract) -> tuple[Verdict, str]:
    found = (
        _hung(outcome)
        or _crashed(outcome)
        or _corrupted(outcome, reference, contract)
        or _unclear(outcome, contract)
        or leaked(outcome)
        or grown(outcome)
        or _poisoned(outcome, reference, contract)
    )
    if found:
        return found
    if outcome.schedule and not outcome.fired:
        return Verdict.NOT_EXERCISED, "no fault fired, so nothing was shown"
    if outcome.exception is None:
        return Verdict.SURVIVED, _how_it_survived(outcome, reference, contract)
    kind = outcome.exception.type
    if not outcome.schedule:
        told = messages(outcome.exception.message).splitlines()[-1:] or ["no message"]
        sentence = f"{kind} came although there was no fault: {told[0][:_MOST]}"
        return Verdict.FAILED_CLEANLY, sentence + (dropped(outcome) or last_words(outcome))
    if outcome.deaths:
        died = " and ".join(map(str, outcome.deaths))
        return Verdict.FAILED_CLEANLY, f"{died}; an error came in time and left nothing behind"
    return Verdict.FAILED_CLEANLY, f"{kind} came in time, told its cause, and left nothing behind"


def _how_it_survived(outcome: TrialFacts, reference: Reference, contract: Contract) -> str:
    if contract.may_skip and (count := skipped(outcome, reference)):
        return f"{count} samples that faults hit are missing; every other one came and was right"
    if any(wrong_in(one, reference) for one in outcome.passes):
        return (
            "every sample came; what their bytes on the disk were damaged to is in some, and the"
            " contract does not promise that this is noticed (detects_corruption=True)"
        )
    if "shapes" in outcome.comparison:
        return "every sample came and had the right types and shapes; no more was compared"
    return "every sample came and was right"


def _hung(outcome: TrialFacts) -> tuple[Verdict, str] | None:
    if not outcome.timed_out:
        return None
    if outcome.phase == "recovery":
        after = "although the fault was gone, a fresh pass over the same dataset object hung"
        return Verdict.POISONED, f"{after} for {outcome.deadline:g} s"
    waited = f"neither an error nor an end within {outcome.deadline:g} s"
    return Verdict.HUNG, waited + dropped(outcome)


def _crashed(outcome: TrialFacts) -> tuple[Verdict, str] | None:
    if outcome.died is None and outcome.phase == "done":
        return None
    how = how_told(outcome.died or f"it ended in phase {outcome.phase!r}, without a word")
    return Verdict.CRASHED, f"the process that drives the loader died: {how}"


def _corrupted(
    outcome: TrialFacts, reference: Reference, contract: Contract
) -> tuple[Verdict, str] | None:
    found = corrupted(outcome, reference, contract)
    if found and outcome.fired and "seeded" in outcome.comparison:
        return found[0], found[1] + _SEEDED
    return found


def _unclear(outcome: TrialFacts, contract: Contract) -> tuple[Verdict, str] | None:
    raised = outcome.exception
    if raised is None or not outcome.fired or may_be_damaged(outcome, contract):
        return None
    if death := unclear_death(outcome):
        return Verdict.FAILED_UNCLEARLY, death + last_words(outcome)
    fired = [(each.fault, one) for each in outcome.faults for one in each.firings]
    met = ((fault, one.path, one.call) for fault, one in fired)
    if not (outcome.deaths or tells_any(raised.text, met)):
        kinds = ", ".join(sorted({type(fault).__name__ for fault, _ in fired}))
        hidden = f"{raised.type} hides that its cause is {kinds}"
        return Verdict.FAILED_UNCLEARLY, hidden + (dropped(outcome) or last_words(outcome))
    paths = [one.path for fault, one in fired if one.path and not is_told_by_torch(fault)]
    said = messages(raised.text)
    if contract.names_file and paths and not any(names(said, path) for path in paths):
        return Verdict.FAILED_UNCLEARLY, f"{raised.type} does not name the file, as promised"
    return None


def _poisoned(
    outcome: TrialFacts, reference: Reference, contract: Contract
) -> tuple[Verdict, str] | None:
    recovery = outcome.recovery
    if recovery is None:
        return None
    after = "although the fault was gone, a fresh pass over the same dataset object"
    if recovery.exception is not None:
        kind, message = recovery.exception.type, messages(recovery.exception.message)
        return Verdict.POISONED, f"{after} raised {kind}: {message[-200:]}"
    # Who need not notice damage may have kept a copy of it.
    wrong = wrong_in(recovery, reference, Tolerance(content=may_be_damaged(outcome, contract)))
    return (Verdict.POISONED, f"{after} was not right: {wrong}") if wrong else None
