"""Run one check, and explain its result: the likely cause, and how to fix it."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import replace

from pytest_dataloader_faults._trial.process import fork_server
from pytest_dataloader_faults.battery._battery import Battery
from pytest_dataloader_faults.battery.checks import (
    CAUSE_RULES,
    CHECKS,
    describe_start,
    note_on_connections,
)
from pytest_dataloader_faults.battery.fault_free_run import FaultFreeRun
from pytest_dataloader_faults.battery.targets import note_on_workers
from pytest_dataloader_faults.battery.workload import NotApplicable
from pytest_dataloader_faults.faults import LockError, has_files
from pytest_dataloader_faults.outcomes import CheckResult, FaultFacts, Finding, Outcome, Verdict
from pytest_dataloader_faults.outcomes.agreement import Comparison
from pytest_dataloader_faults.outcomes.contract import Cause
from pytest_dataloader_faults.outcomes.judge import comparison_notes, explain
from pytest_dataloader_faults.outcomes.judge.causes import FAILS_INTERMITTENTLY, likely_cause
from pytest_dataloader_faults.outcomes.judge.hangs import loader_timed_out
from pytest_dataloader_faults.outcomes.repeats import JudgedTrial, deciding_trial
from pytest_dataloader_faults.outcomes.text import (
    headline,
    join_some,
    pluralize,
    printable,
    printable_lines,
    was_or_were,
)
from pytest_dataloader_faults.steps import Action

_OTHER_FILES = (
    "The workers opened none of the files that they opened in the fault-free run: {files}."
    " make_dataset must use the same files on every call, so create them outside it"
)
_UNSEEN = (
    "{name}: the loader's timeout, which the check sets, ended the wait before the dataset's own"
    " timeout, so that timeout was not tested"
)
_NOT_RUN = (
    "{} was not run: it needs this fault-free run, in which a process was killed twice. Find out"
    " what kills processes on this machine, then run the check again"
)
_WARNING = (
    "By itself, this is only a warning (UnclearErrorWarning), because {} raised the error or ended"
    " the process, not your code"
)
_UNEXPECTED = "passes although it was expected to fail"
_ENOUGH_FOR_HUGE_PAGES = 10


def prepare(names: Collection[str]) -> None:
    """Prepare pytest's process for the checks *names*, before the first of them runs.

    It starts the fork server, if a check needs it, and moves memory into huge pages if many trials
    will be forked.
    """
    contexts = [CHECKS[name].scenario.loader.get("multiprocessing_context") for name in names]
    if "forkserver" in contexts:
        fork_server.begin()
    if len(names) > _ENOUGH_FOR_HUGE_PAGES:
        from pytest_dataloader_faults._engine.loader.huge_pages import collapse_memory

        collapse_memory()


def run_check(
    battery: Battery, name: str, *, expected: str | None = None, reproduce: str | None = None
) -> CheckResult:
    """Run the check *name*, and explain its result.

    *expected*: why it is expected to fail. *reproduce*: the command that repeats it, if there is a
    better one than a call of ``check_dataset``.
    """
    reproduce = reproduce or battery.reproduce("check_dataset", only=name)
    try:
        result = battery.check(name, should_fail=bool(expected))
    except NotApplicable as reason:
        return _skipped_result(name, reason, reproduce, expected)
    trial = deciding_trial(result)
    outcome, cause = trial.outcome, _cause(battery, name, trial)
    of_files = any(has_files(each) for each in outcome.schedule)
    about_files = _notes_on_files(battery.fault_free_run, outcome) if of_files else ()
    noted = CHECKS[name].note_on(result)
    notes = (*noted, *_notes_on_dataset(battery, outcome), *about_files)
    untested = _untested_timeout(name, trial)
    library = trial.finding.library
    why_warned = (_WARNING.format(library),) if library else ()
    advice = (*why_warned, *_advice(name, trial, cause or Cause("")))
    evidence = (*advice, *untested, *result.notes, *notes)
    result = _explain_result(replace(result, notes=evidence), cause, reproduce, expected)
    # Readers of files rarely have a timeout, so summaries do not mention that it was not tested.
    return replace(result, notes=notes if of_files else (*notes, *untested))


def _notes_on_files(run: FaultFreeRun, outcome: Outcome) -> tuple[str, ...]:
    """Remarks on the files of the dataset, for a trial with faults of files."""
    # Locks of files that each run writes can fail as well.
    has_locks = any(isinstance(each, LockError) for each in outcome.schedule)
    if run.followed is None or not outcome.before_init or has_locks:
        return run.notes
    return (*run.notes, *run.followed.notes(run.settings.files))


def _notes_on_dataset(battery: Battery, outcome: Outcome) -> tuple[str, ...]:
    """Remarks on the dataset, for a result with this *outcome*."""
    reference = battery.fault_free_run.reference
    about_loader = (*note_on_workers(reference), *note_on_connections(battery.fault_free_run))
    noted = (*_note_on_comparison(battery, outcome.comparison), *about_loader)
    sample_count = reference.sample_count
    if reference.limit is None or reference.total is None or sample_count >= reference.total:
        return noted
    samples = pluralize(reference.total, "sample", ",")
    return (f"{sample_count:,} of {samples} {was_or_were(sample_count)} checked", *noted)


def _note_on_comparison(battery: Battery, comparison: Comparison) -> Iterator[str]:
    """What a trial did not compare, unless its check never seeds random numbers."""
    is_looser = comparison.by_form and not battery.fault_free_run.comparison.by_form
    return iter(()) if is_looser else comparison_notes(comparison)


def _skipped_result(
    name: str, reason: NotApplicable, reproduce: str, expected: str | None
) -> CheckResult:
    """The result if the check *name* does not apply, or if its fault-free run was killed."""
    if reason.fatal is not None:
        outcome, finding = reason.fatal
        finding = replace(finding, sentence=reason.reason)
        evidence = (_NOT_RUN.format(name),)
        fatal = CheckResult(name, finding, outcome=outcome, notes=evidence, trials=(outcome,))
        return replace(_explain_result(fatal, None, reproduce, expected), notes=())
    reason_text = printable_lines(reason.full_reason)  # It may quote names of files.
    text = f"{name} does not apply to this dataset: {reason_text}"
    finding = Finding(Verdict.NOT_EXERCISED, headline(text), Cause(reason.group))
    notes = (reason.full_reason,) if reason.remedy else ()
    return CheckResult(name, finding, text, applies=False, expected=expected, notes=notes)


def _cause(battery: Battery, name: str, trial: JudgedTrial) -> Cause | None:
    check, outcome, fault_free = CHECKS[name], trial.outcome, battery.fault_free_run.outcome
    after_one = check.scenario.has_step(Action.READ_SAMPLE)
    return likely_cause(outcome, trial.finding, fault_free, CAUSE_RULES, after_one=after_one)


def _explain_result(
    result: CheckResult, cause: Cause | None, reproduce: str, expected: str | None
) -> CheckResult:
    """*result* with its *cause*, and an explanation that includes its notes."""
    text = explain(*deciding_trial(result), reproduce, result.notes)
    sentence = f"{result.sentence.removesuffix('.')}."
    if result.passed and expected:
        sentence = (
            f"expected to fail ({expected}), but passed. Remove it from expected_failures, or from"
            " the baseline."
        )
        text, cause = f"{sentence}\n{text}", Cause(_UNEXPECTED)
    finding = replace(result.finding, sentence=sentence, cause=cause)
    return replace(
        result, finding=finding, explanation=text, expected=expected, reproduce=reproduce
    )


def _advice(name: str, trial: JudgedTrial, cause: Cause) -> tuple[str, ...]:
    """How to fix a failure: by the facts or, if they do not show it, by the check's own advice."""
    if trial.finding.passed:
        return ()
    of_files = [each for each in trial.outcome.faults if has_files(each.fault)]
    check = CHECKS[name]
    if trial.finding.verdict is Verdict.NOT_EXERCISED and of_files and not check.origin:
        return () if any(each.matched for each in of_files) else (_other_files(of_files),)
    if _fails_without_fault(trial, cause) and not (check.is_about_errors or check.origin):
        return (cause.advice,) if cause.advice else ()
    preface = check.preface or describe_start(trial.outcome)
    is_decisive = bool(cause.advice) and not cause.is_general
    advice = cause.advice if is_decisive else check.advice.rstrip(".") or cause.advice
    return (". ".join(filter(None, (preface, advice))),) if advice else ()


def _fails_without_fault(trial: JudgedTrial, cause: Cause) -> bool:
    """Whether it failed in a way that may happen without a fault in any check."""
    is_error = trial.finding.verdict is Verdict.FAILS_WITHOUT_FAULT
    return is_error or cause.phrase == FAILS_INTERMITTENTLY.phrase


def _untested_timeout(name: str, trial: JudgedTrial) -> tuple[str, ...]:
    """What a trial did not test because the loader's timeout ended it."""
    is_patient = CHECKS[name].scenario.patience is not None
    is_unseen = is_patient and trial.finding.passed and loader_timed_out(trial.outcome)
    return (_UNSEEN.format(name=name),) if is_unseen else ()


def _other_files(unfired: list[FaultFacts]) -> str:
    globs = (glob for each in unfired for glob in each.fault.globs)
    return _OTHER_FILES.format(files=join_some(map(printable, globs)))
