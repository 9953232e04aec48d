"""The check of threads and processes: none can be started, or no second one. Pure."""

from __future__ import annotations

from dataclasses import replace

from pytest_dataloader_faults.battery.checks._base import Check, Scenario, Scenarios
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


def _refuse_starts(workload: Workload) -> Scenarios:
    """Several ways, because code may handle a pool without a thread, but not one that lacks some.

    First in workers that continue after the error, since a queue or a pool may be kept there.
    """
    require_real_files()
    start_count = workload.count_busiest("starts")
    if not start_count:
        raise NotApplicable(_NO_START)
    faults = (ThreadExhaustion(),)
    kept = replace(FAULTS_IN_EPOCH_1, faults=faults, title="in the first of two epochs")
    first = Scenario(faults=faults, title="from the first start on")
    if start_count == 1:
        return kept, first
    # The error of a later start would hide what a dataset returns in place of one result.
    later = {
        "from the second start on": ThreadExhaustion(nth=2),
        "the second start alone": ThreadExhaustion(nth=2, times=1),
    }
    second = (
        Scenario(faults=(fault,), title=title, require_effect=_require_second_start)
        for title, fault in later.items()
    )
    return (kept, first, *second)


def _require_second_start(_: Workload, outcome: Outcome) -> None:
    """How many threads a pool starts may depend on how fast the first one is."""
    if not outcome.fired:
        raise NotApplicable(_NO_SECOND)


THREADS = (
    Check(
        "thread-exhaustion",
        "handles a thread or a process that cannot be started",
        _refuse_starts,
        preface=_REFUSED,
        advice=_RAISE_ERROR,
    ),
)
