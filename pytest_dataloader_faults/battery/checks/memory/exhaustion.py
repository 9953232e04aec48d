"""The check of allocations that fail. Pure.

One trial is enough. An allocation for one sample fails once, which a second attempt survives, and
every allocation for the next sample fails. Most datasets raise the first error. Those that continue
meet the second one.
"""

from __future__ import annotations

from pytest_dataloader_faults.battery.checks._base import Check, Scenario
from pytest_dataloader_faults.battery.workload import NotApplicable, Workload
from pytest_dataloader_faults.faults import Fault, MemoryExhaustion
from pytest_dataloader_faults.outcomes import Outcome, Reference
from pytest_dataloader_faults.outcomes.contract import Cause, Finding, Verdict
from pytest_dataloader_faults.outcomes.text import format_size

_UNSEEN = "the python engine does not see allocations. engine='kernel' does"
_NO_NUMBERS = "its indices are not integers, so no sample can be chosen"
_SIZE = format_size(MemoryExhaustion().min_bytes)
_SMALL = (
    f"for two samples in the middle of the epoch, its workers allocate less than {_SIZE} at once"
)
_ABORTS = Cause(
    "crashes when an allocation fails",
    "Code in C or C++ ended the worker: it does not check the result of malloc(3), or does not"
    " catch std::bad_alloc. The stack that the worker printed shows which library was called. Read"
    " less at once (a tile, a part of a file), or use another library",
    overrides=True,
    fix="read less at once, or use another library",
)


def _plan(workload: Workload) -> tuple[Fault, ...]:
    if workload.is_python_engine:
        raise NotApplicable(_UNSEEN)
    first, second = _middle_samples(workload)
    return MemoryExhaustion(times=1, sample=first), MemoryExhaustion(sample=second)


def _middle_samples(workload: Workload) -> tuple[int, int]:
    """The indices of two samples in the middle of the epoch, or their numbers in each worker."""
    run = workload.fault_free
    indices = [index for batch in run.delivered for index in batch.indices or ()]
    if run.kind != "map":
        count = sum(len(each.rows or ()) for each in run.delivered)
        indices = list(range(max(2, count // max(1, len(run.workers)))))
    chosen = indices[len(indices) // 2 - 1 :][:2]
    if not chosen or not all(type(each) is int for each in chosen):
        raise NotApplicable(_NO_NUMBERS)
    return chosen[0], chosen[-1]


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


EXHAUSTION = Check(
    "memory-exhaustion",
    "handles an allocation that fails",
    _plan,
    scenario=Scenario(require_effect=_require_allocation),
    rule=_find_crash,
    preface=(
        f"One allocation of {_SIZE} or more failed for one sample, and all of them for the next one"
    ),
    advice=(
        "Let MemoryError reach the loader, or free memory, try again a limited number of times and"
        " then raise it. Catch the exceptions that you expect instead of Exception, and get the"
        " results of threads, as future.result() does, which raises their errors"
    ),
)
