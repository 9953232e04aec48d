"""What several trials show of one check. Pure."""

from __future__ import annotations

import glob
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

from pytest_dataloader_faults.outcomes.contract import Finding, Verdict
from pytest_dataloader_faults.outcomes.error_text import blames_machine
from pytest_dataloader_faults.outcomes.fault_facts import shared_offset_files
from pytest_dataloader_faults.outcomes.judge.causes import FAILS_INTERMITTENTLY
from pytest_dataloader_faults.outcomes.judge.hangs import dataset_lines
from pytest_dataloader_faults.outcomes.records import Outcome
from pytest_dataloader_faults.outcomes.results import CheckResult
from pytest_dataloader_faults.outcomes.text import pluralize

# Some facts about a trial that fails once. A fault fires at the same operation in each trial, but
# two workers are two processes, and either may be first. So a race in the dataset may show in one
# trial and not in the next, and so may a problem of this machine. A failed trial is therefore
# repeated before its check fails. If the second one passes, a third decides: a dataset that fails
# in two of three trials fails the check. One that fails in one of three passes, unless its workers
# read a file through a shared offset, which is known to be a race in the dataset.
#
# Some facts about waits. To provoke races, calls wait until another worker makes such a call as
# well. If it waits for a lock that the first one holds, it never does, and fails if its timeout is
# shorter, though the dataset is healthy. So a trial that fails after waits in vain is repeated
# without them. All others remain, because they may provoke a race elsewhere that the failure hid.
#
# Some facts about orders. If several workers change one file, a race may show only if they open it
# at once, or only if the second one empties what the first one has written. So there is a trial of
# each.


_MOST_FOR_WAITS = 3
"""The last repeat has no waits at all: each of many files may have one in vain."""
_OF_DATASET = (Verdict.CORRUPTED, Verdict.POISONED, Verdict.FAILS_WITHOUT_FAULT)
"""The verdicts on wrong samples and errors. A busy machine may cause the others."""
_FORK_LINE = re.compile(r"^.*\bfork(?:ed|ing|s|\(\))?\b.*$", re.IGNORECASE | re.MULTILINE)


class JudgedTrial(NamedTuple):
    """The facts of one trial of a check, and the finding on them."""

    outcome: Outcome
    finding: Finding


def deciding_trial(result: CheckResult) -> JudgedTrial:
    """The trial that decided about *result*: the first that failed, if any."""
    assert result.outcome is not None  # A check without a trial is not concluded.
    return JudgedTrial(result.outcome, result.finding)


def is_worst(result: CheckResult) -> bool:
    """Whether no other result can be more severe."""
    is_most_severe = result.verdict.severity == max(each.severity for each in Verdict)
    return is_confirmed(result) and is_most_severe


def is_confirmed(result: CheckResult) -> bool:
    """Whether it is a failure that was repeated."""
    return result.reproduced and not result.passed


def hangs_or_dies(trial: JudgedTrial) -> bool:
    """Whether it failed in a way that may also occur without a fault, intermittently."""
    outcome = trial.outcome
    deaths = (*outcome.deaths, *(outcome.recovery.deaths if outcome.recovery else ()))
    return not trial.finding.passed and bool(outcome.timed_out or outcome.died or deaths)


def run_without_vain_waits(
    run: Callable[[tuple[str, ...]], Outcome], has_failed: Callable[[Outcome], bool]
) -> Outcome:
    """The outcome of *run*, repeated while it *has_failed*, maybe because of waits in vain.

    It gets globs of what workers use without waiting for each other: at first none, then each time
    those of where they waited so.
    """
    unprovoked: tuple[str, ...] = ()
    outcome = run(unprovoked)
    for number in range(1, _MOST_FOR_WAITS + 1):
        if not outcome.vain_waits or not has_failed(outcome):
            break
        names = ["*"]
        if number < _MOST_FOR_WAITS:  # With any numbers: a process id differs in the next trial.
            waits = sorted(outcome.vain_waits)
            names = [re.sub(r"\d+", "[0-9]*", glob.escape(each)) for each in waits]
        unprovoked = (*unprovoked, *names)
        outcome = run(unprovoked)
    return outcome


def was_killed(outcome: Outcome) -> bool:
    """Whether a process of the trial died as if another program had killed it."""
    jobs = outcome.jobs
    deaths = (death for job in jobs for each in job.epochs for death in each.deaths)
    return any(job.end.exitcode for job in jobs) or any(each.exitcode < 0 for each in deaths)


def fails_intermittently(trials: Sequence[JudgedTrial]) -> bool:
    """Whether a pass without a fault did something wrong in some of the *trials* only."""
    failed = [each for each in trials if not each.finding.passed]
    return len(failed) < len(trials) and any(map(_is_without_fault, failed))


def _is_without_fault(trial: JudgedTrial) -> bool:
    """Whether its dataset returned wrong samples or raised an error without a fault.

    Neither a pass that the deadline or another program ended counts, nor an error about the state
    of the machine.
    """
    outcome, verdict = trial.outcome, trial.finding.verdict
    if verdict not in _OF_DATASET or outcome.timed_out or outcome.died or was_killed(outcome):
        return False
    is_recovery = verdict is Verdict.POISONED
    if not is_recovery and any(job.fired for job in outcome.jobs):
        return False
    errors = (
        job.recovery.exception if is_recovery and job.recovery else job.exception
        for job in outcome.jobs
    )
    return not any(blames_machine(f"{each.type}: {each.message}") for each in errors if each)


def describe_fault_free_failure(trial: JudgedTrial) -> str:
    """The failure of a *trial* without a fault, as a sentence."""
    lines = {line for _, line in dataset_lines(trial.outcome)} if trial.outcome.timed_out else set()
    where = f", at {' and at '.join(sorted(lines))}" if lines else ""
    printed = _FORK_LINE.search(trial.outcome.stderr)
    output = f". It printed: {printed[0].strip()}" if printed else ""
    verdict = f"{trial.finding.verdict}: {trial.finding.sentence}"
    showed = f"as a fault-free trial just showed ({verdict}{where})"
    return f"it also fails without a fault, {showed}{output}"


def needs_another_trial(trials: Sequence[JudgedTrial], *, should_fail: bool) -> bool:
    """Whether the first trial was unexpected and nothing has confirmed or refuted it yet."""
    as_expected = [each.finding.passed != should_fail for each in trials]
    return not trials or as_expected in ([False], [False, True])


def conclude(check: str, trials: Sequence[JudgedTrial], fault_free: Outcome) -> CheckResult:
    """What *trials* of the *check* show together; *fault_free* is an epoch without faults."""
    failed = [each for each in trials if not each.finding.passed]
    # A warning must not hide a failure.
    outcome, finding = min(failed or trials[:1], key=lambda trial: bool(trial.finding.library))
    outcomes = tuple(each.outcome for each in trials)
    result = CheckResult(check, finding, outcome=outcome, trials=outcomes)
    if len(trials) == 1 or trials[0].finding.passed:  # In the second case, it should have failed.
        return result
    if len(failed) == len(trials):
        return replace(result, notes=(_confirmation(failed),))
    details = [f"trial {number}: {_describe(each)}" for number, each in enumerate(trials, start=1)]
    count = f"{len(failed)} of {pluralize(len(trials), 'trial')} failed"
    if fails_intermittently(trials):
        cause = finding.cause or FAILS_INTERMITTENTLY
        result = replace(result, finding=replace(finding, cause=cause))
    if len(failed) > 1:
        return replace(result, notes=(count, *details))
    shared = shared_offset_files((*fault_free.workers, *outcome.workers))
    if shared:
        path = next(iter(shared))
        why = f"{count}: a race, because the workers share the file offset of {path}"
        return replace(result, notes=(why, *details))
    return replace(result, reproduced=False, notes=(f"flaky: {count}", *details))


def combine(results: Sequence[tuple[str, CheckResult]], *, need_fire: bool = False) -> CheckResult:
    """The most severe of the *results* of a check's scenarios, each with the scenario's title.

    Faults that did not fire, as of locks with a new name each time, count only if no other did, or
    if all *need* to. The last note lists the scenarios, if they have titles.
    """
    counted = [each for _, each in results if each.verdict is not Verdict.NOT_EXERCISED]
    if need_fire or not counted:
        counted = [each for _, each in results]
    decides = min(counted, key=_priority)
    trials = tuple(trial for _, result in results for trial in result.trials)
    titles = [f"{title} ({result.verdict})" for title, result in results if title]
    notes = (*decides.notes, f"tried: {'; '.join(titles)}") if titles else decides.notes
    return replace(decides, notes=notes, trials=trials)


def _priority(result: CheckResult) -> tuple[int, int]:
    """Sort failures: confirmed, flaky, warnings. Then passes, errors first.

    Of several failures, the most severe comes first.
    """
    if result.passed:
        return 4 if result.verdict is Verdict.SURVIVED else 3, 0
    place = 2 if result.finding.library else int(not result.reproduced)
    return place, -result.verdict.severity


def _confirmation(failed: Sequence[JudgedTrial]) -> str:
    text = f"confirmed: {len(failed)} of {pluralize(len(failed), 'trial')} failed"
    if len({each.finding.verdict for each in failed}) == 1:
        return text
    return f"{text}, the second one with {_describe(failed[1])}"


def _describe(trial: JudgedTrial) -> str:
    return f"{trial.finding.verdict}: {trial.finding.sentence}"
