"""Run checks on a dataset and explain their results; works without pytest."""

from __future__ import annotations

import contextlib
import os
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from pytest_dataloader_faults import exceptions
from pytest_dataloader_faults._settings import SAMPLES, Files, Settings, check
from pytest_dataloader_faults._trial.factory import DatasetFactory
from pytest_dataloader_faults._trial.process import fork_server
from pytest_dataloader_faults.battery._battery import Battery
from pytest_dataloader_faults.battery.checks import (
    CAUSE_RULES,
    CHECKS,
    describe_start,
    names_of_checks,
    note_on_connections,
    require_checks,
)
from pytest_dataloader_faults.battery.fault_free_run import FaultFreeRun
from pytest_dataloader_faults.battery.targets import note_on_workers
from pytest_dataloader_faults.battery.workload import NotApplicable
from pytest_dataloader_faults.faults import LockError, has_files
from pytest_dataloader_faults.outcomes import (
    CheckResult,
    Contract,
    FaultFacts,
    Finding,
    Outcome,
    Verdict,
)
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


def prepare(names: Iterable[str]) -> None:
    """Start the fork server, if one of the checks *names* needs it, before the first of them."""
    contexts = [CHECKS[name].scenario.loader.get("multiprocessing_context") for name in names]
    if "forkserver" in contexts:
        fork_server.begin()


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


def select_checks(
    only: str | Iterable[str] | None = None,
    exclude: str | Iterable[str] = (),
    expected_failures: Mapping[str, str] | None = None,
) -> list[str]:
    """The names of the checks to run, in the battery's order; each passed name must be one.

    Raises:
        InvalidArgumentError: A name is not a check, an argument has the wrong type, or no check
            is left.
    """
    check(expected_failures=expected_failures)
    names = set(CHECKS) if only is None else names_of_checks("only", only)
    names -= names_of_checks("exclude", exclude)
    require_checks("expected_failures", expected_failures or ())
    if not names:
        message = f"only={only!r} and exclude={exclude!r} leave no check to run. Keep at least one"
        raise exceptions.InvalidArgumentError(message)
    return [name for name in CHECKS if name in names]


def check_dataset(
    make_dataset: DatasetFactory,
    *,
    files: Files | None = None,
    loader: Mapping[str, Any] | None = None,
    contract: Contract | None = None,
    copy: str | os.PathLike[str] | None = None,
    only: str | Iterable[str] | None = None,
    exclude: str | Iterable[str] = (),
    expected_failures: Mapping[str, str] | None = None,
    deadline: float | str | None = None,
    seed: int = 0,
    samples: int | str | None = SAMPLES,
    ranks: int | None = None,
    on_fail: str | None = "raise",
    flaky: str = "warn",
) -> list[CheckResult]:
    """Run every check of the battery on the dataset that *make_dataset* returns.

    Args:
        make_dataset: Returns a map-style or iterable dataset, or a ready ``DataLoader``; or it is
            such an object. For one of several, pass ``part_of(make_dataset, name)``. If it is a
            function with one required parameter whose name contains folder, dir, path, cache, tmp
            or root, or that is annotated as ``Path``, as in ``lambda folder: MyDataset(data,
            cache=folder)``, each trial passes it an empty folder, a ``pathlib.Path``, and removes
            the folder afterwards.
        files: Globs of the files that faults may hit; by default all that the workers read.
        loader: Options of the ``DataLoader``; by default ``num_workers=2, batch_size=4``. A ready
            ``DataLoader`` has its own.
        contract: What the dataset promises, if it differs from the default ``Contract()``.
        copy: A folder with data. Each trial copies it before any fault is armed, and passes the
            copy to *make_dataset* in place of an empty folder: for a dataset with a cache next
            to its data. Nothing is written to the folder itself.
        only: Names of the checks to run: a list or a comma-separated string. By default, all.
        exclude: Names of checks to leave out, in the same form.
        expected_failures: ``{check: reason}``. If one of these checks passes, that is a failure.
        deadline: Seconds for each epoch of a trial, and for its recovery pass. None or ``"auto"``
            is 10 to 30, depending on how long an epoch takes without a fault. A trial that is still
            making progress, or sleeps, gets up to 120 more.
        seed: Seed of the samplers, the workers, and the faults with a ``probability``.
        samples: Approximate number of samples of a map-style dataset to check; ``"all"`` or None
            for all. They are spread over the dataset, and the same in each check. A sampler of
            your own supplies its first batches. Each worker makes at least two batches. If reading
            the default 64 would take longer than a few seconds, 32, 16 or fewer are checked.
        ranks: How many processes train on the dataset together, 2 to 8, as under torchrun. Also
            runs the rank checks. In all other checks the dataset has a single rank.
        on_fail: ``"raise"`` at the first failure, ``"warn"`` of each, or None. An error of a
            library that hides its cause is an ``UnclearErrorWarning`` in each case.
        flaky: What to do if one trial fails and two repeats pass: ``"warn"``, or ``"fail"`` to
            treat it as *on_fail* says.

    Returns:
        One result per check, including checks that do not apply.

    Raises:
        CheckFailedError: A check failed and *on_fail* is ``"raise"``.
        InvalidArgumentError, UnusableDatasetError, EngineUnavailableError: See ``run_trial``.
    """
    settings = Settings.of(locals(), may_be_auto=True)
    check(ranks=settings.ranks)
    check(on_fail=on_fail, flaky=flaky)
    names = select_checks(only, exclude, expected_failures)
    battery = Battery(make_dataset, settings)
    with progress_bar("check_dataset", len(names)) as advance:
        results = _run_checks(battery, names, expected_failures, flaky, advance)
        return list(_report_results(results, on_fail, flaky))


def _run_checks(
    battery: Battery,
    names: list[str],
    expected_failures: Mapping[str, str] | None,
    flaky: str,
    advance: Callable[[], object],
) -> Iterator[CheckResult]:
    """The result of each check; calls *advance* after each."""
    prepare(names)
    for name in names:
        expected = (expected_failures or {}).get(name)
        again = battery.reproduce(
            "check_dataset",
            only=name,
            expected_failures={name: expected} if expected else None,
            flaky=None if flaky == "warn" else flaky,
        )
        yield run_check(battery, name, expected=expected, reproduce=again)
        advance()


def _report_results(
    results: Iterable[CheckResult], on_fail: str | None, flaky: str
) -> Iterator[CheckResult]:
    """Raise or warn of failures, as *on_fail* and *flaky* say, at our caller's line."""
    for result in results:
        text = f"{result.check}: {result.explanation}"
        if (not result.reproduced and flaky == "warn") or result.warns:
            warn(result, text, stacklevel=4)
        elif result.failed or not (result.reproduced or result.finding.library):
            report(text, on_fail)
        yield result


def warn(result: CheckResult, text: str, stacklevel: int) -> None:
    """Warn, in this *text*, of a *result* that is flaky or an unclear error."""
    kind = exceptions.UnclearErrorWarning if result.reproduced else exceptions.FlakyCheckWarning
    warnings.warn(exceptions._escape_for_log(text), kind, stacklevel=stacklevel)


def report(text: str, on_fail: str | None) -> None:
    """Raise or warn of a failure as *on_fail* says, at the line that called our caller's caller."""
    if on_fail == "raise":
        raise exceptions.CheckFailedError(text)
    if on_fail == "warn":
        warnings.warn(exceptions._escape_for_log(text), stacklevel=4)


@contextlib.contextmanager
def progress_bar(title: str, total: int | None = None) -> Iterator[Callable[[], object]]:
    """Show a bar of tqdm if it is installed, in a terminal and outside pytest.

    Yields the function that counts a step of *total*.
    """
    try:
        from tqdm import tqdm  # type: ignore[import-untyped]
    except ImportError:
        yield lambda: None
        return

    class Bar(tqdm):  # type: ignore[misc]
        # A monitor thread would be running at each fork of a trial. And tqdm's own lock settles the
        # default start method of multiprocessing, which the user may want to set later.
        monitor_interval = 0
        _lock = threading.RLock()

    is_off = True if "PYTEST_CURRENT_TEST" in os.environ else None  # None: unless in a terminal.
    with Bar(desc=title, total=total, disable=is_off) as shown:
        yield shown.update
