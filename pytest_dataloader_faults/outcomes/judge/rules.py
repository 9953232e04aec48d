"""The rules for one trial, in the order of their severity. Pure."""

from __future__ import annotations

import os
import signal
from dataclasses import replace
from http import HTTPStatus

from pytest_dataloader_faults.faults import HttpError, ReadError, TruncatedFile
from pytest_dataloader_faults.outcomes import chains, error_text
from pytest_dataloader_faults.outcomes.contract import Cause, Contract, Finding, Verdict
from pytest_dataloader_faults.outcomes.judge import errors, hangs, sharing
from pytest_dataloader_faults.outcomes.judge.compare import (
    Allowed,
    allowed_in,
    count_missing,
    count_replaced,
    find_mismatch,
    has_unknown_sample,
    may_be_damaged,
)
from pytest_dataloader_faults.outcomes.leaks import find_leak, judge_growth
from pytest_dataloader_faults.outcomes.records import Outcome, Pass
from pytest_dataloader_faults.outcomes.reference import Reference
from pytest_dataloader_faults.outcomes.stages import (
    DONE,
    RECOVERY,
    START,
    JobKilled,
    Phase,
    Stage,
    describe_phase,
)
from pytest_dataloader_faults.outcomes.text import describe_end, is_or_are, pluralize, was_or_were

_SEEDED = (
    ". Random numbers are seeded once per sample in a trial, so a retry that draws more of them"
    " produces a different sample. Contract(key=...) can allow that"
)
_MISSING = (HTTPStatus.NOT_FOUND, HTTPStatus.GONE)
_ANSWERED = "nothing but samples of the reference was delivered; a missing object may be skipped"
_SECOND_PROCESS = (
    "after the fault was removed, a dataset that a new process created from the same files"
)
_SECOND_CALL = (
    "without a fault, a second call of make_dataset with the same folder, in a new process,"
)
_NEXT_JOB = "after all processes of a job were killed, the next job"
_MAPPED_BEYOND_END = (
    ". It accessed a mapped file beyond the point where it was truncated. Check the size of a file"
    " before you map it"
)
_MAPPED_UNREADABLE = (
    ". It accessed a page of a mapped file that the disk could not deliver. The kernel can report"
    " that only with a signal (mmap(2)). If you read the file instead of mapping it, you get an"
    " OSError"
)


class Judge:
    """The rules for one trial."""

    def __init__(self, outcome: Outcome, reference: Reference, contract: Contract) -> None:
        self.outcome = outcome
        self.reference = reference
        # A server that has no such object answers so: the dataset may go on without it.
        self.has_missing_objects = bool(outcome.fired_faults) and all(
            isinstance(each, HttpError) and each.status in _MISSING for each in outcome.fired_faults
        )
        self.contract = replace(contract, may_skip=True) if self.has_missing_objects else contract
        self.has_dataset = not (outcome.before_init and outcome.phase == START)

    @property
    def recovery_name(self) -> str:
        """What the recovery pass is, as the subject of a sentence."""
        if self.outcome.of(JobKilled):
            return _NEXT_JOB
        if not self.outcome.before_init:
            return "after the fault was removed, a new pass over the same dataset object"
        return _SECOND_PROCESS if self.outcome.schedule else _SECOND_CALL

    def judge(self) -> Finding:
        """The verdict: what the first rule finds that is violated."""
        return (
            self._find_hang()
            or self._find_crash()
            or sharing.find_shared_connection(self.outcome)
            or self.find_corruption()
            or self._find_failed_recovery()
            or self.find_unclear_error()
            or find_leak(self.outcome)
            or judge_growth(self.outcome)
            or self._judge_without_violation()
        )

    def _judge_without_violation(self) -> Finding:
        outcome, raised = self.outcome, self.outcome.exception
        if outcome.schedule and not outcome.fired:
            return Finding(Verdict.NOT_EXERCISED, "no fault fired, so the trial proves nothing")
        if raised is None:
            survival = Finding(Verdict.SURVIVED, self._describe_survival())
            return self._find_earlier_error() or survival
        if not outcome.schedule:
            sentence = _describe_fault_free_failure(outcome, raised)
            return Finding(Verdict.FAILS_WITHOUT_FAULT, sentence)
        sentence = _epoch_prefix(outcome) + self._describe_failure(raised)
        return self._break_promise(sentence) or Finding(Verdict.FAILED_CLEANLY, sentence)

    def _find_earlier_error(self) -> Finding | None:
        """An error of an epoch before the last one, if the dataset promises to survive."""
        for number, epoch in enumerate(self.outcome.epochs[:-1], start=1):
            if epoch.exception is not None:
                error = chains.error_line(epoch.exception)
                return self._break_promise(f"in epoch {number}, the loader raised {error}")
        return None

    def _break_promise(self, sentence: str) -> Finding | None:
        """The finding on an error that *sentence* describes, if the dataset promises to survive."""
        if not self.contract.survives:
            return None
        text = f"{sentence}, but the contract promises survives=True"
        return Finding(Verdict.CONTRACT_BROKEN, text)

    def _describe_failure(self, raised: chains.Raised) -> str:
        in_time = "raised before the deadline"
        if self.outcome.deaths:
            died = " and ".join(map(str, self.outcome.deaths))
            return f"{died}; an exception was {in_time}, and nothing leaked"
        if self.has_missing_objects:
            return f"{raised.type} was {in_time}; nothing leaked"
        if may_be_damaged(self.outcome, self.contract):
            return (
                f"{raised.type} was {in_time}, and nothing leaked. Whether the error names its"
                " cause was not checked: the contract does not promise that the dataset detects"
                " damage (detects_corruption=True)"
            )
        return f"{raised.type} was {in_time} and names its cause; nothing leaked"

    def _describe_survival(self) -> str:
        outcome, contract = self.outcome, self.contract
        if self.has_missing_objects and self._has_mismatch:
            return _ANSWERED
        skipped = self.count_skipped() if contract.may_skip else 0
        epochs = outcome.epochs if contract.may_substitute else ()
        replaced = sum(count_replaced(each, self.reference) for each in epochs)
        counts = {
            f"{is_or_are(skipped)} missing": skipped,
            f"{was_or_were(replaced)} replaced": replaced,
        }
        parts = [
            f"{pluralize(count, 'sample')} hit by a fault {change}"
            for change, count in counts.items()
            if count
        ]
        if parts:
            return f"{' and '.join(parts)}; all other samples match the reference"
        if allowed_in(1, outcome, self.reference, contract).other_order and self._has_mismatch:
            return "every sample was delivered, some under another index, as the contract allows"
        if differences := self.describe_tolerated():
            return differences
        if outcome.comparison.by_form:
            return (
                f"every sample was delivered with the right {outcome.comparison.form}; the contents"
                " were not compared"
            )
        matches = "every sample was delivered and matches the reference"
        is_partial = bool(outcome.comparison.mask)
        return f"{matches} in all parts that were compared" if is_partial else matches

    def count_skipped(self) -> int:
        """How many samples are missing in complete epochs."""
        epochs = (each for each in self.outcome.epochs if each.complete)
        return sum(count_missing(each, self.reference) for each in epochs)

    def describe_tolerated(self) -> str:
        """Differences from the reference that the contract allows; empty if there are none."""
        if self._has_mismatch:
            return not_promised(
                "every sample was delivered; some contain the damaged bytes of their file"
            )
        return ""

    @property
    def _has_mismatch(self) -> bool:
        """Whether a sample differs from the reference."""
        return any(find_mismatch(each, self.reference) for each in self.outcome.epochs)

    def _find_hang(self) -> Finding | None:
        outcome = self.outcome
        if not outcome.timed_out:
            return None
        deadline = hangs.describe_deadline(outcome)
        activity = hangs.describe_activity(outcome, has_dataset=self.has_dataset)
        if outcome.phase == RECOVERY:
            is_slow = hangs.makes_progress(outcome)
            end = f"did not finish within {deadline}" if is_slow else f"hung for {deadline}"
            sentence = f"{self.recovery_name} {end}{activity}"
            if (path := sharing.find_stale_lock(outcome)) is None:
                return Finding(Verdict.POISONED, sentence)
            sentence += f". {os.path.basename(path)}, the lock file of a worker that died, is left"
            return Finding(Verdict.POISONED, sentence, sharing.STALE_LOCK)
        if outcome.exception and outcome.phase == Phase(Stage.EPOCH, len(outcome.epochs)):
            raised = (
                f"{outcome.exception.type} was raised, but then the loader's workers did not exit"
            )
            return Finding(Verdict.LEAKED, f"{raised} within {deadline}")
        cause = errors.dropped_batch_cause(outcome) or activity
        part = "the epoch" if self.has_dataset else "make_dataset()"
        sentence = f"{part} neither finished nor raised an exception within {deadline}{cause}"
        return Finding(Verdict.HUNG, sentence)

    def _find_crash(self) -> Finding | None:
        outcome = self.outcome
        if outcome.died is None and outcome.phase == DONE:
            return None
        if outcome.end.exitcode:
            end = describe_end(outcome.end.exitcode)
        else:
            end = f"exited {describe_phase(outcome.phase)} without reporting its results"
        why = error_text.likely_sender(outcome.end.exitcode) + _explain_sigbus(outcome)
        library = "the kernel" if errors.died_of_unreadable_page(outcome) else ""
        process = "the main process"
        if not self.has_dataset:
            process = "the process that calls make_dataset()"
        return Finding(Verdict.CRASHED, f"{process} {end}{why}", library=library)

    def find_corruption(self) -> Finding | None:
        """Samples that are wrong under the faults."""
        outcome = self.outcome
        if self.has_missing_objects and not self._has_unknown_sample(*outcome.epochs):
            return None
        for number, epoch in enumerate(outcome.epochs, start=1):
            allowed = allowed_in(number, outcome, self.reference, self.contract)
            if wrong := find_mismatch(epoch, self.reference, allowed):
                where = f"in epoch {number}, " if len(outcome.epochs) > 1 else ""
                suffix = " before it" if epoch.exception else ""
                is_seeded = outcome.fired and outcome.comparison.seeded is not None
                sentence = f"{where}{wrong.sentence}, and no exception was raised{suffix}"
                return replace(wrong, sentence=sentence + (_SEEDED if is_seeded else ""))
        return find_shortfall(outcome, self.reference)

    def find_unclear_error(self) -> Finding | None:
        """An error under the faults that does not name its cause."""
        if self.has_missing_objects and not self.contract.names_file:
            return None
        finding = errors.find_unclear_error(self.outcome, self.contract)
        prefix = _epoch_prefix(self.outcome)
        return finding and replace(finding, sentence=prefix + finding.sentence)

    def _find_failed_recovery(self) -> Finding | None:
        recovery = self.outcome.recovery
        if recovery is None:
            return None
        if self.has_missing_objects and not self._has_unknown_sample(recovery):
            return None
        if recovery.exception is not None:
            error = chains.error_line(recovery.exception)
            return Finding(Verdict.POISONED, f"{self.recovery_name} raised {error}")
        # A dataset that does not need to notice damage may have kept a copy of the damaged bytes.
        allowed = Allowed(damage=may_be_damaged(self.outcome, self.contract))
        wrong = self.find_wrong_recovery(recovery, allowed)
        if wrong is None:
            return None
        sentence = f"{self.recovery_name} {wrong.sentence}"
        return replace(wrong, verdict=Verdict.POISONED, sentence=sentence)

    def _has_unknown_sample(self, *passes: Pass) -> bool:
        return any(has_unknown_sample(each, self.reference) for each in passes)

    def find_wrong_recovery(self, recovery: Pass, allowed: Allowed) -> Finding | None:
        """Samples that are wrong in the *recovery* pass; its sentence is a predicate."""
        wrong = find_mismatch(recovery, self.reference, allowed)
        return wrong and replace(wrong, sentence=f"returned wrong samples: {wrong.sentence}")


def not_promised(differences: str, what: str = "corruption") -> str:
    """The *differences* from the reference, and the promise that would make them a failure."""
    return (
        f"{differences}; the contract does not promise that the dataset detects this"
        f" (detects_{what}=True)"
    )


def _describe_fault_free_failure(outcome: Outcome, raised: chains.Raised) -> str:
    if ended := errors.find_explaining_deaths(outcome):
        sender = error_text.likely_sender(*(each.exitcode for each in ended))
        died = " and ".join(map(str, ended)) + sender
        return f"{died}{errors.last_printed_error(outcome)}"
    last_line = chains.last_exception_line(raised.message)
    printed = errors.dropped_batch_cause(outcome) or errors.last_printed_error(outcome)
    prefix = "" if last_line.startswith(f"{raised.type}: ") else f"{raised.type}: "
    return f"the loader raised {prefix}{last_line}{printed}"


def _epoch_prefix(outcome: Outcome) -> str:
    """The epoch of the error, as the start of a sentence; empty if there was only one."""
    return f"in epoch {len(outcome.epochs)}, " if len(outcome.epochs) > 1 else ""


def _explain_sigbus(outcome: Outcome) -> str:
    """Why the main process got SIGBUS, as the end of a sentence; empty if it did not."""
    if not outcome.before_init or outcome.end.exitcode != -signal.SIGBUS:
        return ""
    if outcome.has_fired(TruncatedFile):
        return _MAPPED_BEYOND_END
    return _MAPPED_UNREADABLE if outcome.has_fired(ReadError) else ""


# Some facts about samplers that keep their position. A loader calls ``iter(sampler)`` for each
# epoch. A sampler that returns itself, or a generator that is the sampler, continues where it was.
# That has no effect as long as each epoch is completed. But after a ``break`` or an error, the next
# epoch has only the rest: the loop receives every sample that was drawn, and nothing shows which
# were not.
#
# Some facts about samplers whose number of samples varies. Such a sampler usually has no length, or
# one that no epoch reaches. So its length counts only if the fault-free run drew exactly as many
# batches. A sampler that packs samples into batches differently may need fewer batches for the same
# number of samples. So both numbers must be too small.


USED_UP = Cause(
    "returns fewer samples in the second epoch", fix="create iterators and generators in __iter__"
)
CONTINUES = Cause(
    "resumes where an interrupted epoch stopped", fix="start over in every call of __iter__"
)
SAMPLER_CONTINUES = CONTINUES._replace(
    advice="The sampler kept its position from the previous epoch, which was not finished. Start"
    " over in every call of its __iter__: write it as a generator function, and keep no iterator or"
    " position on self"
)


def find_shortfall(outcome: Outcome, reference: Reference) -> Finding | None:
    """The first complete epoch whose sampler drew too few samples."""
    if outcome.kind != "map":
        return None
    for number, epoch in enumerate(outcome.epochs, start=1):
        if shortfall := _describe_shortfall(epoch, reference):
            previous = next(iter(outcome.epochs[: number - 1][::-1]), None)
            where, cause = f"in epoch {number}", USED_UP
            if previous is not None and not previous.complete:
                end = "ended with an error" if previous.exception else "was left early"
                where += f", after one that {end}"
                cause = SAMPLER_CONTINUES if epoch.drawn else USED_UP
            sentence = f"{where}, the sampler drew {shortfall}"
            return Finding(Verdict.CORRUPTED, sentence, cause)
    return None


def count_drawn(fault_free: Outcome | None) -> int | None:
    """How many samples the sampler drew in *fault_free*, if in as many batches as it promised."""
    if fault_free is None:
        return None
    (epoch,) = fault_free.epochs
    has_length = fault_free.kind == "map" and len(epoch.drawn) == epoch.batches
    return sum(map(len, epoch.drawn)) if has_length else None


def _describe_shortfall(epoch: Pass, reference: Reference) -> str:
    """What was drawn in *epoch*, if that is too little; otherwise empty."""
    if not epoch.complete:
        return ""
    if not epoch.drawn:
        return "no indices, so no samples were delivered" if reference.samples else ""
    drawn, expected = sum(map(len, epoch.drawn)), count_drawn(reference.fault_free) or 0
    if drawn >= expected or len(epoch.drawn) >= (epoch.batches or 0):
        return ""
    promised = pluralize(epoch.batches or 0, "batch")
    batches = f"{len(epoch.drawn)} of the {promised} that its length promises"
    return f"{drawn} of the {pluralize(expected, 'sample')} of an epoch, in {batches}"
