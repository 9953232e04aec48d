"""Checks of memory: what workers add to that of the main process, and allocations that fail. Pure.

The step that measures is here. What that does in a trial is in ``measure``, which is imported there
only.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pytest_dataloader_faults.battery.checks._base import Scenario, check
from pytest_dataloader_faults.battery.checks.memory.exhaustion import memory_exhaustion
from pytest_dataloader_faults.battery.checks.memory.rules import (
    describe,
    find_growth,
    note,
    require_measurement,
    require_samples,
)
from pytest_dataloader_faults.battery.workload import NotApplicable, Workload
from pytest_dataloader_faults.steps import Epoch, OwnStep, arm_workers

if TYPE_CHECKING:
    from pytest_dataloader_faults._trial.run import TrialProcess

CALLS_USER_CODE = True

_STREAM = "a stream has no length by which the memory of a whole epoch could be computed"
_OWN_SAMPLER = "its sampler draws indices other than integers from 0 to the length of the dataset"
_NOT_FORKED = (
    "its workers are not forked, so each has a separate copy of the dataset from the start"
)
_READS_IN_A_ROW = (
    "A forked worker shares the memory of the main process, page by page, until one of them writes"
    " to a page. Python counts the references to an object in the object itself, so reading an"
    " object writes to its page. The check reads samples in a row in one worker, and counts the"
    " pages that the worker no longer shares"
)


@dataclass(frozen=True)
class MeasureMemory(OwnStep):
    """Read a row of new samples in one worker, and measure its memory in between."""

    def run(self, process: TrialProcess) -> None:
        """Measure it, if there is a loader."""
        from pytest_dataloader_faults.battery.checks.memory.measure import measure

        if process.loader is not None:
            measure(process, process.loader)


@check(
    "copy-on-write",
    "reading samples does not copy the dataset into every worker",
    scenario=Scenario(
        processes=arm_workers(Epoch(), before=(MeasureMemory(),)),
        require_effect=require_measurement,
    ),
    rule=find_growth,
    describe=describe,
    note=note,
    preface=_READS_IN_A_ROW,
)
def copy_on_write(workload: Workload) -> Iterator[Scenario]:
    """Most datasets are so short that their memory needs no trial."""
    run = workload.fault_free
    if run.kind != "map":
        raise NotApplicable(_STREAM)
    length = _count_readable(workload)
    if length is None:
        raise NotApplicable(_OWN_SAMPLER)
    require_samples(length, "it has")
    if run.loader.start_method != "fork":
        raise NotApplicable(_NOT_FORKED)
    yield Scenario()


def _count_readable(workload: Workload) -> int | None:
    """How many samples can be read by their numbers at most; None if that is unknown.

    A sampler that is not torch's, or draws for one rank, does not draw them all: how many it draws
    shows in the trial. But what it draws shows whether the samples have numbers.
    """
    length = workload.fault_free.epochs[0].length
    if length is not None or workload.length is None:
        return length
    readable = range(workload.length)
    drawn = [index for indices in workload.fault_free.epochs[0].drawn for index in indices]
    is_numbered = all(type(index) is int and index in readable for index in drawn)
    return workload.length if drawn and is_numbered else None


MEMORY = (copy_on_write, memory_exhaustion)
