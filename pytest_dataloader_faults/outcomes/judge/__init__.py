"""The judge: facts in, verdict out. Pure.

The rules stand in order of gravity, and the first one that is violated decides. A fault that did
not fire excuses nothing that went wrong. But without a fault that fired, the trial shows nothing
good.
"""

from __future__ import annotations

from pytest_dataloader_faults.exceptions import InvalidArgumentError
from pytest_dataloader_faults.outcomes import chains, error_text
from pytest_dataloader_faults.outcomes.contract import (
    Compared,
    Contract,
    Finding,
    Judgement,
    Verdict,
    Wrong,
)
from pytest_dataloader_faults.outcomes.judge import (
    at_rest,
    draws,
    errors,
    hangs,
    ranks,
    resume,
    samples,
)
from pytest_dataloader_faults.outcomes.judge.leaks import judge_growth, leaked
from pytest_dataloader_faults.outcomes.records import Raised, TrialFacts, makes_dataset
from pytest_dataloader_faults.outcomes.reference import Reference, is_resized
from pytest_dataloader_faults.outcomes.stages import DONE, RECOVERY, Phase, Stage
from pytest_dataloader_faults.outcomes.text import are, counted, were

_AFTER = "after the fault was gone, a fresh pass over the same dataset object"
_AFTER_FROM_START = "after the fault was gone, a dataset that a new process made of the same files"
_AGAIN = "with no fault, make_dataset, called again with the same folder by a new process,"
_SEEDED = (
    ". Random numbers are seeded once per sample here, so a retry that draws more of them gives"
    " another sample. Contract(compare=...) can allow that"
)


def judge(outcome: TrialFacts, reference: Reference, contract: Contract) -> Judgement:
    """The verdict on *outcome*, given what the dataset gives when nothing is wrong.

    Raises:
        ValueError: The reference does not know a batch that was delivered.
        InvalidArgumentError: The reference's samples were compared in another way.
    """
    _require_same_comparison(outcome, reference)
    if outcome.ranks:
        every = enumerate(outcome.ranks)
        ones = [
            _judged(each, ranks.reference_of(n, outcome, reference), contract) for n, each in every
        ]
        return _judgement(ranks.judged(outcome, ones, reference, contract))
    return _judgement(_judged(outcome, reference, contract))


def _judgement(found: Finding) -> Judgement:
    passed = found.verdict in (Verdict.SURVIVED, Verdict.FAILED_CLEANLY)
    return Judgement(found.verdict, found.sentence, passed, found.kind)


def _judged(outcome: TrialFacts, reference: Reference, contract: Contract) -> Finding:
    if unknown := reference.unknown_batches(outcome):
        message = (
            f"the reference does not know batch {list(unknown[0])}. Take a reference of the batches"
            " that the trial delivered"
        )
        raise ValueError(message)
    violation = _violation(outcome, reference, contract)
    if violation and violation.verdict is Verdict.POISONED and _is_without_faults(outcome):
        return Finding(Verdict.BROKEN, violation.sentence, Wrong.NOT_TWICE)
    return violation or _without_violation(outcome, reference, contract)


def _is_without_faults(outcome: TrialFacts) -> bool:
    """Whether the dataset was made twice in one folder, and nothing was wrong with its files."""
    return outcome.from_start and not outcome.schedule


def _require_same_comparison(outcome: TrialFacts, reference: Reference) -> None:
    if outcome.comparison != reference.comparison:
        message = (
            f"the trial compared samples by '{outcome.comparison}', the reference by"
            f" '{reference.comparison}'. Run the trial by the survey's own run_trial(...)"
        )
        raise InvalidArgumentError(message)


def _violation(outcome: TrialFacts, reference: Reference, contract: Contract) -> Finding | None:
    return (
        _hung(outcome)
        or _crashed(outcome)
        or _corrupted(outcome, reference, contract)
        or resume.judged(outcome, reference)
        or _poisoned(outcome, reference, contract)
        or _unclear(outcome, contract)
        or leaked(outcome)
        or judge_growth(outcome)
    )


def _without_violation(outcome: TrialFacts, reference: Reference, contract: Contract) -> Finding:
    if outcome.schedule and not outcome.fired:
        return Finding(Verdict.NOT_EXERCISED, "no fault fired, so the trial shows nothing")
    raised = outcome.exception
    if raised is None:
        return Finding(Verdict.SURVIVED, _how_it_survived(outcome, reference, contract))
    if not outcome.schedule:
        return Finding(Verdict.BROKEN, _how_it_fails_alone(outcome, raised))
    sentence = _in_epoch(outcome) + _how_it_failed(outcome, raised, contract)
    if outcome.resumed:
        sentence += f"; {resume.survived(outcome)}"
    if contract.survives:
        return Finding(Verdict.BROKEN, f"{sentence}; but the contract promises survives=True")
    return Finding(Verdict.FAILED_CLEANLY, sentence)


def _how_it_fails_alone(outcome: TrialFacts, raised: Raised) -> str:
    if ended := errors.ends_that_explain(outcome):
        sender = error_text.likely_sender(*(each.exitcode for each in ended))
        died = " and ".join(map(str, ended)) + sender
        return f"fails without any fault: {died}{errors.last_error_printed(outcome)}"
    last_line = chains.last_exception_line(raised.message)
    printed = errors.dropped_batch_cause(outcome) or errors.last_error_printed(outcome)
    which = "" if last_line.startswith(f"{raised.type}: ") else f"{raised.type}: "
    return f"fails without any fault: {which}{last_line}{printed}"


def _how_it_failed(outcome: TrialFacts, raised: Raised, contract: Contract) -> str:
    if outcome.deaths:
        died = " and ".join(map(str, outcome.deaths))
        return f"{died}; an exception was raised before the deadline, and nothing leaked"
    if samples.may_be_damaged(outcome, contract):
        return (
            f"{raised.type} was raised before the deadline and leaked nothing. Whether it names its"
            " cause was not asked: the contract does not promise that the dataset notices damage"
            " (detects_corruption=True)"
        )
    return f"{raised.type} was raised before the deadline, names its cause, and leaked nothing"


def _how_it_survived(outcome: TrialFacts, reference: Reference, contract: Contract) -> str:
    skipped = _count_skipped(outcome, reference) if contract.may_skip else 0
    replaced = samples.count_substituted(outcome, reference) if contract.may_substitute else 0
    counts = {f"{are(skipped)} missing": skipped, f"{were(replaced)} replaced": replaced}
    told = [
        f"{counted(count, 'sample')} that faults hit {what}"
        for what, count in counts.items()
        if count
    ]
    if told:
        return f"{' and '.join(told)}; every other one matches the reference"
    if what := _other_samples(outcome, reference):
        not_promised = "the contract does not promise that the dataset notices"
        return f"{what}, and {not_promised} (detects_corruption=True)"
    if outcome.resumed:
        return resume.survived(outcome)
    if not outcome.comparison.is_of_content:
        is_of_shapes = outcome.comparison.what is Compared.SHAPES
        right = "types and shapes" if is_of_shapes else "types"
        return f"every sample was delivered with the right {right}; no more was compared"
    if outcome.comparison.varying:
        return (
            "every sample was delivered and matches the reference in all parts that were compared"
        )
    return "every sample was delivered and matches the reference"


def _count_skipped(outcome: TrialFacts, reference: Reference) -> int:
    return samples.count_skipped(outcome, reference) + at_rest.skipped(outcome, reference)


def _is_resized(outcome: TrialFacts, reference: Reference) -> bool:
    return any(is_resized(each, outcome, reference) for each in outcome.passes)


def _other_samples(outcome: TrialFacts, reference: Reference) -> str:
    """What is unlike the reference although the contract allows it; empty if nothing is."""
    if outcome.fired and _is_resized(outcome, reference):
        return at_rest.samples_of_bad_files(outcome, reference)
    if any(samples.first_mismatch(one, reference) for one in outcome.passes):
        return "every sample was delivered; some hold the damaged bytes of their file"
    return ""


def _after(outcome: TrialFacts) -> str:
    """Of what a recovery is, as the beginning of a sentence."""
    if _is_without_faults(outcome):
        return _AGAIN
    return _AFTER_FROM_START if outcome.from_start else _AFTER


def _hung(outcome: TrialFacts) -> Finding | None:
    if not outcome.timed_out:
        return None
    if outcome.phase == RECOVERY:
        how_long = f"{_after(outcome)} was not over within {hangs.seconds(outcome)}"
        if not hangs.goes_on(outcome):
            how_long = f"{_after(outcome)} hung for {hangs.seconds(outcome)}"
        return Finding(Verdict.POISONED, how_long + hangs.in_words(outcome))
    if outcome.exception and outcome.phase == Phase(Stage.EPOCH, len(outcome.passes)):
        raised = f"{outcome.exception.type} was raised, but then the loader's workers did not end"
        return Finding(Verdict.LEAKED, f"{raised} within {hangs.seconds(outcome)}")
    what = "make_dataset()" if makes_dataset(outcome) else "the epoch"
    waited = (
        f"{resume.latest(outcome)}no exception and no end of {what} within {hangs.seconds(outcome)}"
    )
    why = errors.dropped_batch_cause(outcome) or hangs.in_words(outcome)
    return Finding(Verdict.HUNG, waited + why)


def _crashed(outcome: TrialFacts) -> Finding | None:
    if outcome.died is None and outcome.phase == DONE:
        return None
    how = outcome.died or f"it exited during phase '{outcome.phase}' without reporting"
    sender = error_text.likely_sender(outcome.exitcode)
    why = sender + at_rest.how_it_died(outcome)
    where = resume.latest(outcome)
    return Finding(Verdict.CRASHED, f"{where}{at_rest.process_in_words(outcome)} died: {how}{why}")


def _corrupted(outcome: TrialFacts, reference: Reference, contract: Contract) -> Finding | None:
    if _is_resized(outcome, reference):
        return at_rest.wrong_size(outcome, reference, contract)
    found = samples.corruption(outcome, reference, contract)
    if found and outcome.fired and outcome.comparison.seeded is not None:
        return found._replace(sentence=found.sentence + _SEEDED)
    return found or draws.too_few(outcome, reference)


def _unclear(outcome: TrialFacts, contract: Contract) -> Finding | None:
    found = errors.unclear(outcome, contract)
    return found and found._replace(sentence=_in_epoch(outcome) + found.sentence)


def _in_epoch(outcome: TrialFacts) -> str:
    """Where the error came, as the beginning of a sentence; empty where there was one epoch."""
    return f"in epoch {len(outcome.passes)}, " if len(outcome.passes) > 1 else ""


def _poisoned(outcome: TrialFacts, reference: Reference, contract: Contract) -> Finding | None:
    recovery = outcome.recovery
    if recovery is None:
        return None
    if recovery.exception is not None:
        error = chains.error_line(recovery.exception)
        return Finding(Verdict.POISONED, f"{_after(outcome)} raised {error}")
    # A dataset that need not notice damage may have kept a copy of the damaged bytes.
    may = samples.Tolerance(content=samples.may_be_damaged(outcome, contract))
    if is_resized(recovery, outcome, reference):
        if may.content:
            return None
        sentence = f"{_after(outcome)} {at_rest.has_samples(recovery, reference)}"
        return Finding(Verdict.POISONED, sentence, Wrong.MISSING)
    wrong = samples.first_mismatch(recovery, reference, may)
    if wrong is None:
        return None
    sentence = f"{_after(outcome)} gave wrong samples: {wrong.sentence}"
    return Finding(Verdict.POISONED, sentence, wrong.kind)
