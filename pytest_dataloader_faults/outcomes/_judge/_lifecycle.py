"""The judge of a loader's life: the first step after which something is wrong. Pure.

Some facts about what a dataset can be blamed for. What a fault did to a worker may stay with it
for as long as it lives: a file that was opened while it was cut off stays so, and a reader may be
of no use after an error. So errors are allowed in workers that a fault happened to, and in no
others; wrong samples are allowed nowhere. A process may open a file late, or keep a few of them, so
one more descriptor is no leak: it is one if the same file is open once more epoch after epoch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from pytest_dataloader_faults.outcomes._chains import last_exception_line
from pytest_dataloader_faults.outcomes._error_text import explains_fault
from pytest_dataloader_faults.outcomes._fault_facts import occurrences
from pytest_dataloader_faults.outcomes._judge import judge
from pytest_dataloader_faults.outcomes._judge._errors import last_error_printed
from pytest_dataloader_faults.outcomes._records import Raised
from pytest_dataloader_faults.outcomes._reference import Reference
from pytest_dataloader_faults.outcomes._text import counted, were
from pytest_dataloader_faults.outcomes._verdicts import Contract, Finding, Judgement, Verdict

if TYPE_CHECKING:
    from pytest_dataloader_faults.outcomes._results import LifecycleOutcome, Outcome, StepOutcome

_INCREASES = 2
"""A count that was so often higher than each one before is taken to go on increasing."""
_LOADER = "the loader's process"


def judge_lifecycle(
    life: LifecycleOutcome, reference: Reference, contract: Contract
) -> tuple[Judgement, Outcome]:
    """The verdict on *life*, and the outcome up to the step that decides."""
    for number, moment in enumerate(life.step_outcomes, start=1):
        found = _violation(life.step_outcomes[:number], reference, contract, life.outcome.stderr)
        if found is not None:
            sentence = _at_step(life, number, found.sentence)
            return Judgement(found.verdict, sentence, False, found.kind), moment.outcome
    end = judge(life.outcome, reference, contract)
    if life.outcome.timed_out or end.verdict is Verdict.CRASHED:
        number = min(len(life.step_outcomes) + 1, len(life.steps))
        sentence = _at_step(life, number, end.sentence)
        return Judgement(end.verdict, sentence, False, end.kind), life.outcome
    return _without_violation(life.outcome), life.outcome


def _at_step(life: LifecycleOutcome, number: int, sentence: str) -> str:
    return f"in step {number}, {life.steps[number - 1]!r}: {sentence}"


def _without_violation(outcome: Outcome) -> Judgement:
    if any(one.exception for one in outcome.passes):
        sentence = "every exception came from a fault in its worker, names it, and was the last"
        return Judgement(Verdict.FAILED_CLEANLY, sentence, passed=True)
    if outcome.schedule and not outcome.fired:
        return Judgement(Verdict.NOT_EXERCISED, "no fault fired, so the trial shows nothing", False)
    if not outcome.passes:
        sentence = "no epoch was begun, so the trial shows nothing"
        return Judgement(Verdict.NOT_EXERCISED, sentence, passed=False)
    return Judgement(Verdict.SURVIVED, "every delivered sample matches the reference", passed=True)


def _violation(
    so_far: Sequence[StepOutcome], reference: Reference, contract: Contract, printed: str
) -> Finding | None:
    """What is wrong at the last of these steps. *printed* is the stderr of all steps."""
    judgement = judge(so_far[-1].outcome, reference, contract)
    return (
        _corrupted(so_far, judgement)
        or _unexpected_error(so_far)
        or _unclear(so_far[-1].outcome, judgement, printed)
        or _broken_promise(so_far[-1].outcome.exception, contract)
        or _leftovers(so_far[-1])
        or _growing_descriptors(so_far)
    )


def _corrupted(so_far: Sequence[StepOutcome], judgement: Judgement) -> Finding | None:
    if judgement.verdict is not Verdict.CORRUPTED:
        return None
    outcome = so_far[-1].outcome
    epoch = [each for each in so_far if len(each.outcome.passes) == len(outcome.passes)]
    if outcome.fired and not any(each.armed for each in epoch):
        sentence = f"after the fault was gone, {judgement.sentence}"
        return Finding(Verdict.POISONED, sentence, judgement.kind)
    return Finding(judgement.verdict, judgement.sentence, judgement.kind)


def _unclear(outcome: Outcome, judgement: Judgement, printed: str) -> Finding | None:
    if judgement.verdict is not Verdict.FAILED_UNCLEARLY or _is_lost_by_torch(outcome, printed):
        return None
    return Finding(judgement.verdict, judgement.sentence, judgement.kind)


def _is_lost_by_torch(outcome: Outcome, printed: str) -> bool:
    """Whether a worker *printed* the error that ended it, and that error names the fault.

    A worker that is to begin another epoch makes its iterator outside of any ``try``
    (torch/utils/data/_utils/worker.py, ``_ResumeIteration``).
    """
    is_explained = explains_fault(printed, occurrences(outcome.faults))
    return is_explained and bool(last_error_printed(replace(outcome, stderr=printed)))


def _unexpected_error(so_far: Sequence[StepOutcome]) -> Finding | None:
    """An exception while no fault has happened in the current workers."""
    now = so_far[-1]
    raised = now.outcome.exception
    earlier = [each for each in so_far if each.iterators_started < now.iterators_started]
    fired_before = max((each.outcome.fired for each in earlier), default=0)
    if raised is None or now.outcome.fired > fired_before:
        return None
    message = last_exception_line(raised.message)
    sentence = f"{raised.type} was raised, but no fault happened in these workers: {message}"
    if now.outcome.fired:
        return Finding(Verdict.POISONED, f"after the fault was gone, {sentence}")
    return Finding(Verdict.BROKEN, sentence)


def _broken_promise(raised: Raised | None, contract: Contract) -> Finding | None:
    if raised is None or not contract.survives:
        return None
    sentence = f"{raised.type} was raised, but the contract promises survives=True"
    return Finding(Verdict.BROKEN, sentence)


def _leftovers(now: StepOutcome) -> Finding | None:
    if now.processes:
        left, command = len(now.processes), next(iter(now.processes.values()))
        sentence = f"{counted(left, 'process')} {were(left)} left running ({command})"
        return Finding(Verdict.LEAKED, sentence)
    if now.leftover_files:
        count, first = len(now.leftover_files), now.leftover_files[0]
        sentence = f"{counted(count, 'file')} {were(count)} left in shared memory ({first})"
        return Finding(Verdict.LEAKED, sentence)
    return None


def _growing_descriptors(so_far: Sequence[StepOutcome]) -> Finding | None:
    for process, files in so_far[-1].open_files.items():
        for path, count in files.items():
            counts = _counts(so_far, process, path)
            increases = sum(now > max(counts[:at]) for at, now in enumerate(counts) if at)
            if increases >= _INCREASES and count == max(counts):
                sentence = (
                    f"{path} is open {counted(count, 'time')} in {process}, once more each time"
                )
                return Finding(Verdict.LEAKED, sentence)
    return None


def _counts(so_far: Sequence[StepOutcome], process: str, path: str) -> list[int]:
    """How often *process* had *path* open: after each step, or after each epoch of a worker."""
    if process == _LOADER:
        return [each.open_files[process].get(path, 0) for each in so_far]
    iterators = so_far[-1].iterators_started
    same = [each for each in so_far if each.iterators_started == iterators]
    there = [each for each in same if process in each.open_files]
    epochs = {len(each.outcome.passes): each.open_files[process].get(path, 0) for each in there}
    return list(epochs.values())
