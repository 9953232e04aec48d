"""The check of threads and processes: none can be started, or no second one. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from pytest_dataloader_faults.battery.checks._base import Scenario, check
from pytest_dataloader_faults.battery.checks._epochs import FAULTS_IN_EPOCH_1
from pytest_dataloader_faults.battery.workload import NotApplicable, Workload, require_real_files
from pytest_dataloader_faults.faults import ThreadExhaustion
from pytest_dataloader_faults.outcomes import Outcome

_NO_START = "its workers start no thread or process while they make batches"
_NO_SECOND = "its workers start a second thread or process in some passes only"
_REFUSED = (
    "Threads and processes could not be started (EAGAIN), as at the process limit of a user or a"
    " container"
)
_RAISE_ERROR = (
    "Let the error of start(), submit() or subprocess.run() reach the loader. If a pool is kept"
    " for later samples, assign it only after its threads have started"
)


@check(
    "thread-exhaustion",
    "handles a thread or a process that cannot be started",
    preface=_REFUSED,
    advice=_RAISE_ERROR,
)
def thread_exhaustion(workload: Workload) -> Iterator[Scenario]:
    """Several ways, because code may handle a pool without a thread, but not one that lacks some.

    First in workers that continue after the error, since a queue or a pool may be kept there. The
    error of the first start would hide what a dataset returns in place of one result.
    """
    require_real_files()
    start_count = workload.count_busiest("starts")
    if not start_count:
        raise NotApplicable(_NO_START)
    faults = (ThreadExhaustion(),)
    yield replace(FAULTS_IN_EPOCH_1, faults=faults, title="in the first of two epochs")
    yield Scenario(faults=faults, title="from the first start on")
    if start_count > 1:
        from_second, second = ThreadExhaustion(nth=2), ThreadExhaustion(nth=2, times=1)
        yield _later("from the second start on", from_second)
        yield _later("the second start alone", second)


def _later(title: str, fault: ThreadExhaustion) -> Scenario:
    return Scenario(faults=(fault,), title=title, require_effect=_require_second_start)


def _require_second_start(_: Workload, outcome: Outcome) -> None:
    """How many threads a pool starts may depend on how fast the first one is."""
    if not outcome.fired:
        raise NotApplicable(_NO_SECOND)
