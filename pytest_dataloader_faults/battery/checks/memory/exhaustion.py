"""The check of allocations that fail. Pure.

An allocation fails once, which a second attempt survives, and which leaves room for a placeholder.
In another trial, every allocation for the same sample fails.
"""

from __future__ import annotations

from pytest_dataloader_faults.battery.checks._base import Check, Scenario, Scenarios
from pytest_dataloader_faults.battery.workload import NotApplicable, Workload, require_real_files
from pytest_dataloader_faults.faults import MemoryExhaustion
from pytest_dataloader_faults.outcomes import Outcome, Reference
from pytest_dataloader_faults.outcomes.contract import Cause, Finding, Verdict
from pytest_dataloader_faults.outcomes.judge import Judge
from pytest_dataloader_faults.outcomes.judge.errors import blame_crashed_library
from pytest_dataloader_faults.outcomes.records import TrialFacts
from pytest_dataloader_faults.outcomes.text import format_size

_NO_NUMBERS = "its indices are not integers, so no sample can be chosen"
_SIZE = format_size(MemoryExhaustion().min_bytes)
_SMALL = f"for a sample in the middle of the epoch, its workers allocate less than {_SIZE} at once"
_ABORTS = Cause(
    "crashes when an allocation fails",
    "Code in C or C++ ended the worker: it does not check the result of malloc(3), or does not"
    " catch std::bad_alloc. If the worker printed a stack, it shows which library was called. Read"
    " less at once (a tile, a part of a file), or use another library",
    overrides=True,
    fix="read less at once, or use another library",
)


def _plan(workload: Workload) -> Scenarios:
    require_real_files()
    sample = _middle_sample(workload)
    once, always = MemoryExhaustion(times=1, sample=sample), MemoryExhaustion(sample=sample)
    return (
        Scenario(faults=(once,), title="one allocation"),
        Scenario(faults=(always,), title="every allocation"),
    )


def _middle_sample(workload: Workload) -> int:
    """The index of a sample in the middle of the epoch, or its number in each worker."""
    run = workload.fault_free
    indices = [index for batch in run.delivered for index in batch.keys or ()]
    if run.kind != "map":
        count = sum(len(each.samples) for each in run.delivered)
        indices = list(range(max(1, count // max(1, len(run.workers)))))
    sample = indices[len(indices) // 2] if indices else None
    if type(sample) is not int:
        raise NotApplicable(_NO_NUMBERS)
    return sample


def _require_allocation(_: Workload, outcome: Outcome) -> None:
    if not any(each.matched for each in outcome.faults):
        raise NotApplicable(_SMALL)


def _find_crash(outcome: Outcome, _: Reference) -> Finding | None:
    """A worker that was killed by a signal instead of raising an error."""
    crashes = [each for each in outcome.deaths if each.exitcode < 0]
    if not (outcome.fired and crashes):
        return None
    sentence = f"{crashes[0]} when an allocation failed, but an error was expected"
    return Finding(Verdict.FAILED_UNCLEARLY, sentence, _ABORTS)


class ExhaustionJudge(Judge):
    """The usual rules, and whether a library is to blame for the end of a worker."""

    @classmethod
    def is_for(cls, outcome: TrialFacts) -> bool:
        """Whether an allocation failed."""
        fired = (each.fault for each in outcome.faults if each.fired)
        return any(isinstance(fault, MemoryExhaustion) for fault in fired)

    def judge(self) -> Finding:
        """The usual verdict."""
        return blame_crashed_library(super().judge(), self.outcome)


EXHAUSTION = Check(
    "memory-exhaustion",
    "handles an allocation that fails",
    _plan,
    scenario=Scenario(require_effect=_require_allocation),
    rule=_find_crash,
    preface=(
        f"An allocation of {_SIZE} or more failed for one sample, and in another trial all of them"
    ),
    advice=(
        "Let MemoryError reach the loader, or free memory, try again a limited number of times and"
        " then raise it. Catch the exceptions that you expect instead of Exception, and get the"
        " results of threads, as future.result() does, which raises their errors"
    ),
)
