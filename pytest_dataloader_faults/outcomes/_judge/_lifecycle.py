"""The judge of a life: after which step something was not as it has to be. Pure.

Some facts about what may be held against a dataset. What a fault did to a worker may stay with it
for as long as it lives: a file that was opened while it was cut off stays so, and a reader may be
of no use after an error. So errors are allowed in workers that a fault happened to, and in no
others; wrong samples are allowed nowhere. A process may open a file late, or keep a few of them, so
one more descriptor is no leak: it is one if the same file is open once more epoch after epoch.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from pytest_dataloader_faults.outcomes._error_text import messages, tells_any
from pytest_dataloader_faults.outcomes._judge import judge
from pytest_dataloader_faults.outcomes._judge._deaths import last_words
from pytest_dataloader_faults.outcomes._lifecycle import LifecycleOutcome, StepOutcome
from pytest_dataloader_faults.outcomes._reference import Reference
from pytest_dataloader_faults.outcomes._verdicts import Contract, Judgement, Verdict

if TYPE_CHECKING:
    from pytest_dataloader_faults.outcomes._outcome import Outcome

_MOST = 200
_RISES = 2
"""How often a count must have risen to be one that goes on rising."""
_LOADER = "the loader's process"

Finding = tuple[Verdict, str]


def judge_life(
    life: LifecycleOutcome, reference: Reference, contract: Contract
) -> tuple[Judgement, Outcome]:
    """The verdict on *life*, and what had happened up to where it was come to."""
    for number, moment in enumerate(life.moments, start=1):
        found = _wrong(life.moments[:number], reference, contract, life.outcome.stderr)
        if found is not None:
            verdict, sentence = found
            return Judgement(verdict, _said(life, number, sentence), False), moment.outcome
    end = judge(life.outcome, reference, contract)
    if life.outcome.timed_out or end.verdict is Verdict.CRASHED:
        number = min(len(life.moments) + 1, len(life.steps))
        return Judgement(end.verdict, _said(life, number, end.sentence), False), life.outcome
    return _of_a_whole_life(life.outcome), life.outcome


def _said(life: LifecycleOutcome, number: int, sentence: str) -> str:
    return f"in step {number}, {life.steps[number - 1]!r}: {sentence}"


def _of_a_whole_life(outcome: Outcome) -> Judgement:
    if any(one.exception for one in outcome.passes):
        sentence = "each error came of what had happened to its worker, told so, and was the last"
        return Judgement(Verdict.FAILED_CLEANLY, sentence, passed=True)
    if outcome.schedule and not outcome.fired:
        return Judgement(Verdict.NOT_EXERCISED, "no fault fired, so nothing was shown", False)
    if not outcome.passes:
        return Judgement(Verdict.NOT_EXERCISED, "no epoch was begun, so nothing was shown", False)
    return Judgement(Verdict.SURVIVED, "every sample that came was right", passed=True)


def _wrong(
    so_far: Sequence[StepOutcome], reference: Reference, contract: Contract, printed: str
) -> Finding | None:
    """What is wrong at the last of these moments; *printed* by whom, in the whole life."""
    judgement = judge(so_far[-1].outcome, reference, contract)
    return (
        _corrupted(so_far, judgement)
        or _groundless(so_far)
        or _unclear(so_far[-1].outcome, judgement, printed)
        or _broken_promise(so_far, contract)
        or _left(so_far[-1])
        or _piled_up(so_far)
    )


def _corrupted(so_far: Sequence[StepOutcome], judgement: Judgement) -> Finding | None:
    if judgement.verdict is not Verdict.CORRUPTED:
        return None
    outcome = so_far[-1].outcome
    epoch = [each for each in so_far if len(each.outcome.passes) == len(outcome.passes)]
    if outcome.fired and not any(each.armed for each in epoch):
        return Verdict.POISONED, f"although the fault was gone, {judgement.sentence}"
    return judgement.verdict, judgement.sentence


def _unclear(outcome: Outcome, judgement: Judgement, printed: str) -> Finding | None:
    if judgement.verdict is not Verdict.FAILED_UNCLEARLY or _is_lost_by_torch(outcome, printed):
        return None
    return judgement.verdict, judgement.sentence


def _is_lost_by_torch(outcome: Outcome, printed: str) -> bool:
    """Whether a worker died of an error that it *printed*, and that tells what happened to it.

    A worker that is to begin another epoch makes its iterator outside of any ``try``
    (torch/utils/data/_utils/worker.py, ``_ResumeIteration``).
    """
    fired = [(each.fault, one) for each in outcome.faults for one in each.firings]
    told = tells_any(printed, ((fault, one.path, one.call) for fault, one in fired))
    return told and bool(last_words(replace(outcome, stderr=printed)))


def _groundless(so_far: Sequence[StepOutcome]) -> Finding | None:
    """An error in workers that no fault has happened to."""
    now = so_far[-1]
    raised = now.outcome.exception
    before = [each.outcome.fired for each in so_far if each.loaders < now.loaders]
    if raised is None or now.outcome.fired > max(before, default=0):
        return None
    told = messages(raised.message).splitlines()[-1:] or ["no message"]
    sentence = f"{raised.type} came, and no fault had happened to these workers: {told[0][:_MOST]}"
    if now.outcome.fired:
        return Verdict.POISONED, f"although the fault was gone, {sentence}"
    return Verdict.FAILED_CLEANLY, sentence


def _broken_promise(so_far: Sequence[StepOutcome], contract: Contract) -> Finding | None:
    raised = so_far[-1].outcome.exception
    if raised is None or not contract.survives:
        return None
    return Verdict.FAILED_CLEANLY, f"{raised.type} came, but the contract promises that it survives"


def _left(now: StepOutcome) -> Finding | None:
    """What workers have left that are gone."""
    if now.processes:
        command = next(iter(now.processes.values()))
        return Verdict.LEAKED, f"{len(now.processes)} processes were left running ({command})"
    if now.left:
        return Verdict.LEAKED, f"{len(now.left)} files were left in shared memory ({now.left[0]})"
    return None


def _piled_up(so_far: Sequence[StepOutcome]) -> Finding | None:
    """A file that a process has open once more, epoch after epoch."""
    for process, files in so_far[-1].opened.items():
        for path, count in files.items():
            counts = list(_counts(so_far, process, path))
            if _rises(counts) >= _RISES and count == max(counts):
                sentence = f"{path} is open {count} times in {process}, each time once more"
                return Verdict.LEAKED, sentence
    return None


def _counts(so_far: Sequence[StepOutcome], process: str, path: str) -> Iterator[int]:
    """How often *process* had *path* open: after each step, or after each epoch of a worker."""
    now = so_far[-1]
    if process == _LOADER:
        yield from (each.opened[process].get(path, 0) for each in so_far)
        return
    same = [each for each in so_far if each.loaders == now.loaders and process in each.opened]
    epochs = {len(each.outcome.passes): each.opened[process].get(path, 0) for each in same}
    yield from epochs.values()


def _rises(counts: Sequence[int]) -> int:
    """How often there was more than ever before."""
    return sum(count > max(counts[:place]) for place, count in enumerate(counts) if place)
