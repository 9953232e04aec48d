"""The check of allocations that fail. Pure."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from pytest_dataloader_faults.battery.checks._base import Scenario, check
from pytest_dataloader_faults.battery.workload import NotApplicable, Workload, require_real_files
from pytest_dataloader_faults.faults import MemoryExhaustion
from pytest_dataloader_faults.outcomes import Outcome, Reference
from pytest_dataloader_faults.outcomes.contract import Cause, Finding, Verdict
from pytest_dataloader_faults.outcomes.text import format_size

_NO_NUMBERS = "its indices are not integers, so no sample can be chosen"
_SIZE = format_size(MemoryExhaustion().min_bytes)
_SMALL = f"for two of its samples, the workers allocate less than {_SIZE} at once"
_ABORTS = Cause(
    "crashes when an allocation fails",
    "Code in C or C++ ended the worker: it does not check the result of malloc(3), or does not"
    " catch std::bad_alloc. If the worker printed a stack, it shows which library was called. Read"
    " less at once (a tile, a part of a file), or use another library",
    overrides=True,
    fix="read less at once, or use another library",
)


def _middle_and_last_sample(workload: Workload) -> list[int]:
    """Two samples of different batches: their indices, or their numbers in each worker.

    One if there is only one batch: the error of the second would hide the placeholder of the first.
    """
    run = workload.fault_free
    batches = [batch.keys for batch in run.delivered if batch.keys]
    if run.kind != "map":
        worker = next((each.worker for each in run.delivered), None)
        sizes = [len(each.samples) for each in run.delivered if each.worker == worker]
        ends = [*itertools.accumulate(sizes)] or [1]
        batches = [(end - 1,) for end in ends]
    samples = [batch[len(batch) // 2] for batch in batches]
    chosen = [samples[len(samples) // 2 - 1], samples[-1]] if samples[1:] else samples
    if not chosen or not all(type(each) is int for each in chosen):
        raise NotApplicable(_NO_NUMBERS)
    return chosen


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


@check(
    "memory-exhaustion",
    "handles an allocation that fails",
    rule=_find_crash,
    preface=f"An allocation of {_SIZE} or more failed for one sample, and all of them for another",
    advice=(
        "Let MemoryError reach the loader, or free memory, try again a limited number of times and"
        " then raise it. Catch the exceptions that you expect instead of Exception, and get the"
        " results of threads, as future.result() does, which raises their errors"
    ),
)
def memory_exhaustion(workload: Workload) -> Iterator[Scenario]:
    """An allocation fails once, which a second attempt survives, and leaves room for zeros.

    For a sample of a later batch every allocation fails, which a dataset may try again forever.
    One that raises the first error does not get there, and need not.
    """
    require_real_files()
    once, *always = _middle_and_last_sample(workload)
    yield Scenario(
        faults=(
            MemoryExhaustion(times=1, sample=once),
            *(MemoryExhaustion(sample=sample) for sample in always),
        ),
        require_effect=_require_allocation,
    )
