"""The check of what workers write. Pure.

The recovery pass, which follows each trial, finds what a fault left in a file: it reads the same
files, and must deliver the correct samples.
"""

from __future__ import annotations

import errno
import re
from collections.abc import Iterator

from pytest_dataloader_faults import faults
from pytest_dataloader_faults.battery.checks._base import Scenario, check
from pytest_dataloader_faults.battery.workload import Workload
from pytest_dataloader_faults.faults.base import Place
from pytest_dataloader_faults.outcomes.contract import Cause, Verdict
from pytest_dataloader_faults.outcomes.records import TrialFacts

PARTIAL_FILE = Cause(
    "leaves a partially written file behind",
    "A later read accepted a file that was incomplete, because a write had failed or not ended."
    " Write to a temporary name in the same folder, and rename the file with os.replace() once it"
    " is complete. Some writers ignore write errors (np.save, for the data), so check the size"
    " before you rename",
    overrides=True,
    fix="write to a temporary name, and rename the file with os.replace()",
)
_STREAM_ERROR = re.compile(r"iostream error|unexpected pos \d+ vs \d+")
HIDDEN_BY_STREAM = Cause(
    "passes torch.save a path and so hides why a write failed",
    "When torch.save gets a path, it writes through a C++ stream that drops the errno. Pass it a"
    " file opened with open() instead, whose errors get through",
    overrides=True,
    fix="pass torch.save a file opened with open()",
)


@check("write-error", "handles files that cannot be written, because the disk fills up")
def write_error(workload: Workload) -> Iterator[Scenario]:
    """Twice: the header and the data of a file may be written separately, and one error ignored."""
    half = workload.writes // 2 + 1
    path = workload.written.path
    for nth in (half, half + 1):
        if nth <= workload.writes:
            fault = faults.WriteError(path, errno.ENOSPC, nth=nth)
            yield Scenario(faults=(fault,), title=f"from write {nth} on")


def find_cause(outcome: TrialFacts, verdict: Verdict, fault_free: TrialFacts) -> Cause | None:
    """The cause after a failed write, or after another fault in a worker that writes files."""
    failed = any(Place.WRITE in each.places for each in outcome.fired_faults)
    hangs = outcome.timed_out  # It waits for something that an error left undone in memory.
    if verdict is Verdict.POISONED and not hangs and (failed or _writes_files(fault_free)):
        return PARTIAL_FILE
    if failed and verdict is Verdict.CORRUPTED:
        return PARTIAL_FILE
    text = outcome.exception.text if outcome.exception else ""
    is_hidden = failed and verdict is Verdict.FAILED_UNCLEARLY and _STREAM_ERROR.search(text)
    return HIDDEN_BY_STREAM if is_hidden else None


def _writes_files(fault_free: TrialFacts) -> bool:
    return any(each.writes for worker in fault_free.workers for each in worker.files.values())
