"""What came of one check, for its reader: the result, its cause, and what to do."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from pytest_dataloader_faults._trial.process import fork_server
from pytest_dataloader_faults.battery._battery import Battery
from pytest_dataloader_faults.battery._workload import NotApplicable
from pytest_dataloader_faults.battery.checks import CHECKS
from pytest_dataloader_faults.faults import has_files
from pytest_dataloader_faults.outcomes import CheckResult, FaultFacts, Verdict
from pytest_dataloader_faults.outcomes.contract import Cause, Wrong
from pytest_dataloader_faults.outcomes.judge.advice import advised
from pytest_dataloader_faults.outcomes.judge.causes import ALONE, Clues, likely_cause
from pytest_dataloader_faults.outcomes.judge.hangs import gave_up, waits_for_thread
from pytest_dataloader_faults.outcomes.judge.repeats import Conclusion, Trial
from pytest_dataloader_faults.outcomes.judge.report import explain
from pytest_dataloader_faults.outcomes.text import headline, listed, printable, printable_lines

_OTHER_FILES = (
    "The workers opened none of the files that they opened in the run without a fault: {files}."
    " make_dataset must use the same files on every call: create them outside it"
)
_UNSEEN = (
    "{name}: the loader's timeout, which the check sets, ended the wait before the dataset's own"
    " time limit, so that limit was not tested"
)
_NOT_RUN = (
    "{} was not run: it needs this run without a fault, in which a process was killed twice. Find"
    " out what kills processes on this machine, then run the check again"
)
_SMALL_BATCHES = (
    "its batches had fewer samples than the {size} of the loader's, because whole batches take too"
    " long here. If the failure depends on that, pass a loader with smaller batches"
)
_UNEXPECTED = "passes, although it was expected to fail"


def prepare(names: Iterable[str]) -> None:
    """Begin what takes long and the checks *names* need, while the first of them are asked."""
    contexts = [CHECKS[name].changes.get("multiprocessing_context") for name in names]
    if "forkserver" in contexts:
        fork_server.begin()


def ask(
    battery: Battery, name: str, *, expected: str | None = None, reproduce: str | None = None
) -> CheckResult:
    """Run the check *name*, and say what came of it.

    *expected*: why it is expected to fail. *reproduce*: the command that repeats it, if there is a
    better one than a call of ``check_dataset``.
    """
    found = battery.check(name, should_fail=bool(expected))
    reproduce = reproduce or battery.reproduce("check_dataset", only=name)
    if isinstance(found, NotApplicable):
        return _unasked(name, found, reproduce, expected)
    outcome = found.trial.outcome
    cause = _cause(battery, name, found.trial) or Cause("")
    if found.alone:
        cause, found = advised(outcome, ALONE), replace(found, notes=(found.alone, *found.notes))
    of_files = any(has_files(each) for each in outcome.schedule)
    about_files = battery.notes_on_files(from_start=outcome.from_start) if of_files else ()
    notes = (*battery.notes_on(outcome), *about_files)
    unseen = (*_unseen(name, found.trial), *_small_batches(found.trial))
    told = (*_advice(name, found.trial, cause), *unseen, *found.notes, *notes)
    result = _result(name, replace(found, notes=told), reproduce, expected)
    # What reads files has hardly ever a limit of its own: no summary needs to say that.
    notes = notes if of_files else (*notes, *unseen)
    if result.cause:
        return replace(result, notes=notes)
    return replace(result, notes=notes, cause=cause.phrase, fix=cause.fix)


def _unasked(name: str, found: NotApplicable, reproduce: str, expected: str | None) -> CheckResult:
    """Why no trial of the check *name* was made; it fails where that shows nothing about it."""
    if found.fatal is not None:
        judgement = replace(found.fatal.judgement, sentence=found.reason)
        trial = replace(found.fatal, judgement=judgement)
        fatal = Conclusion(trial, notes=(_NOT_RUN.format(name),), trials=(trial,))
        return _result(name, fatal, reproduce, expected)
    shown = printable_lines(found.full_reason)  # It may quote names of files.
    text = f"{name} does not apply to this dataset: {shown}"
    result = CheckResult(name, Verdict.NOT_EXERCISED, False, headline(text), text)
    notes = (found.full_reason,) if found.remedy else ()
    return replace(result, applies=False, expected=expected, cause=found.group, notes=notes)


def _cause(battery: Battery, name: str, trial: Trial) -> Cause | None:
    copies = trial.outcome.from_start and not trial.judgement.passed and battery.copies_sources
    clues = Clues(
        is_caught=battery.catches_errors(trial),
        waits_for_thread=waits_for_thread(trial.outcome),
        copies_sources=copies,
        was_used_before=CHECKS[name].options.touch,
    )
    return likely_cause(trial.outcome, trial.judgement, battery.baseline.fault_free, clues)


def _result(name: str, found: Conclusion, reproduce: str, expected: str | None) -> CheckResult:
    outcome, judgement = found.trial.outcome, found.trial.judgement
    text = explain(outcome, judgement, reproduce, found.notes)
    sentence = f"{judgement.sentence.removesuffix('.')}."
    if judgement.passed and expected:
        sentence = (
            f"expected to fail ({expected}), but it passed. Remove it from expected_failures."
        )
        text = f"{sentence}\n{text}"
    return CheckResult(
        name,
        judgement.verdict,
        judgement.passed,
        sentence,
        text,
        outcome,
        expected=expected,
        reproduced=found.reproduced,
        trials=tuple(each.outcome for each in found.trials),
        cause=_UNEXPECTED if judgement.passed and expected else "",
        reproduce=reproduce,
    )


def _advice(name: str, trial: Trial, cause: Cause) -> tuple[str, ...]:
    """What leads to the fix: by the facts, or else what the check says."""
    if trial.judgement.passed:
        return ()
    of_files = [each for each in trial.outcome.faults if has_files(each.fault)]
    if trial.judgement.verdict is Verdict.NOT_EXERCISED and of_files:
        return () if any(each.reached for each in of_files) else (_other_files(of_files),)
    check = CHECKS[name]
    if _fails_alone(trial) and not check.is_about_errors:
        return (cause.advice,) if cause.advice else ()
    advice = cause.advice if cause.overrides else check.advice or cause.advice
    return (". ".join(filter(None, (check.preface, advice))),) if advice else ()


def _fails_alone(trial: Trial) -> bool:
    """Whether it fails by an error without a fault, which may come in any check."""
    judgement = trial.judgement
    is_broken = judgement.verdict is Verdict.BROKEN
    return is_broken and (not trial.outcome.fired or judgement.kind is Wrong.NOT_TWICE)


def _unseen(name: str, trial: Trial) -> tuple[str, ...]:
    """What a trial did not show that passed because the loader gave up."""
    is_patient = CHECKS[name].options.patience is not None
    is_unseen = is_patient and trial.judgement.passed and gave_up(trial.outcome)
    return (_UNSEEN.format(name=name),) if is_unseen else ()


def _small_batches(trial: Trial) -> tuple[str, ...]:
    """That a failure was not repeated with batches of the loader's own size."""
    size = trial.outcome.reduced_from
    if trial.judgement.passed or size is None or not trial.outcome.schedule:
        return ()
    return (_SMALL_BATCHES.format(size=size),)


def _other_files(unfired: list[FaultFacts]) -> str:
    given: list[Any] = [getattr(each.fault, "path", None) for each in unfired]
    globs = [glob for each in given for glob in ((each,) if isinstance(each, str) else each or ())]
    return _OTHER_FILES.format(files=listed(map(printable, globs)))
