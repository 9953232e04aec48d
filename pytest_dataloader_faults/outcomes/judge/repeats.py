"""The judgement on several trials of one check. Pure.

Some facts about a trial that fails once. A fault happens at the same operation in each trial, but
two workers are two processes: which of them is first may differ. So a race of the dataset's own may
show in one trial and not in the next, and so may a fault of this machine's. A trial that fails is
therefore repeated before its check fails. Where the second one passes, a third decides: a dataset
that fails twice of three times is not sound. One that fails once of three times is, unless its
workers read a file through one offset: that is a race, and known to be of the dataset's own.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from pytest_dataloader_faults.outcomes.contract import Judgement
from pytest_dataloader_faults.outcomes.fault_facts import shared_offset_files
from pytest_dataloader_faults.outcomes.judge.hangs import lines_of
from pytest_dataloader_faults.outcomes.text import counted

if TYPE_CHECKING:
    from pytest_dataloader_faults.outcomes.results import Outcome

_MOST = 3
_OF_FORKS = re.compile(r"^.*\bfork(?:ed|ing|s|\(\))?\b.*$", re.IGNORECASE | re.MULTILINE)


@dataclass(frozen=True)
class Trial:
    """The facts of one trial of a check, and the judgement on them."""

    outcome: Outcome
    judgement: Judgement


@dataclass(frozen=True)
class Conclusion:
    """The judgement on all trials of a check.

    Attributes:
        trial: The trial that decides: the first that failed, if one did.
        reproduced: False if only one of three failed, and no race of the dataset explains that.
        notes: Sentences about the other trials.
        trials: All trials, in order.
        alone: What the dataset does at times with no fault, if it hangs or dies then, too.
    """

    trial: Trial
    reproduced: bool = True
    notes: tuple[str, ...] = ()
    trials: tuple[Trial, ...] = ()
    alone: str = ""


def hangs_or_dies(trial: Trial) -> bool:
    """Whether it failed in a way that the dataset may have by itself, at times."""
    outcome = trial.outcome
    deaths = (*outcome.deaths, *(outcome.recovery.deaths if outcome.recovery else ()))
    return not trial.judgement.passed and bool(outcome.timed_out or outcome.died or deaths)


def was_killed(outcome: Outcome) -> bool:
    """Whether a process of it, or of one of its ranks, died as if another program had killed it."""
    deaths = (death for each in outcome.passes for death in each.deaths)
    is_own = bool(outcome.exitcode) or any(death.exitcode < 0 for death in deaths)
    return is_own or any(map(was_killed, outcome.ranks))


def told_alone(trial: Trial) -> str:
    """What a *trial* without a fault shows, as a sentence; empty if it went well."""
    if trial.judgement.passed:
        return ""
    lines = {line for _, line in lines_of(trial.outcome)} if trial.outcome.timed_out else set()
    where = f", at {' and at '.join(sorted(lines))}" if lines else ""
    printed = _OF_FORKS.search(trial.outcome.stderr)
    told = f". It printed: {printed[0].strip()}" if printed else ""
    what = f"{trial.judgement.verdict}: {trial.judgement.sentence}"
    return f"it also fails with no fault, as a trial like this one just did ({what}{where}){told}"


def needs_another(trials: Sequence[Trial], *, should_fail: bool) -> bool:
    """Whether one more trial is needed: the first is not as expected, and nothing is sure."""
    if not trials:
        return True
    as_expected = [each.judgement.passed != should_fail for each in trials]
    if as_expected[0] or len(trials) == _MOST:
        return False
    return len(trials) == 1 or as_expected[1]


def conclude(trials: Sequence[Trial], fault_free: Outcome) -> Conclusion:
    """The judgement on *trials*. *fault_free* is an epoch without faults."""
    failed = [each for each in trials if not each.judgement.passed]
    if len(trials) == 1 or not failed:
        return Conclusion(trials[0])
    if trials[0].judgement.passed:
        return Conclusion(failed[0])  # It was expected to fail, and does.
    if len(failed) == len(trials):
        return Conclusion(failed[0], notes=(_confirmed(failed),))
    others = [f"trial {number}: {_in_words(each)}" for number, each in enumerate(trials, start=1)]
    count = f"{len(failed)} of {counted(len(trials), 'trial')} failed"
    if len(failed) > 1:
        return Conclusion(failed[0], notes=(count, *others))
    shared = shared_offset_files((*fault_free.workers, *failed[0].outcome.workers))
    if shared:
        why = f"{count}: workers share the file offset of {next(iter(shared))}, which is a race"
        return Conclusion(failed[0], notes=(why, *others))
    return Conclusion(failed[0], reproduced=False, notes=(f"not reproduced: {count}", *others))


def combine(variants: Sequence[tuple[str, Conclusion]]) -> Conclusion:
    """The conclusion on a check of several *variants*, each with its title: the gravest of theirs.

    Its last note says which variants were tried, if they have titles.
    """
    decides = min((each for _, each in variants), key=_order)
    trials = tuple(trial for _, each in variants for trial in each.trials)
    tried = [f"{name} ({each.trial.judgement.verdict})" for name, each in variants if name]
    notes = (*decides.notes, f"tried: {'; '.join(tried)}") if tried else decides.notes
    return replace(decides, notes=notes, trials=trials)


def _order(found: Conclusion) -> int:
    """First what fails for sure, then what failed once, then what passes."""
    return 2 if found.trial.judgement.passed else int(not found.reproduced)


def _confirmed(failed: Sequence[Trial]) -> str:
    text = f"confirmed: {len(failed)} of {counted(len(failed), 'trial')} failed"
    if len({each.judgement.verdict for each in failed}) == 1:
        return text
    return f"{text}, the second as {_in_words(failed[1])}"


def _in_words(trial: Trial) -> str:
    return f"{trial.judgement.verdict}: {trial.judgement.sentence}"
