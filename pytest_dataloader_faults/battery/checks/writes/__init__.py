"""Checks of what workers write. Pure.

The recovery pass, which follows each trial, finds what a fault left in a file: it reads the same
files, and must deliver the correct samples.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator

from pytest_dataloader_faults import faults
from pytest_dataloader_faults.battery.checks._base import Scenario, check
from pytest_dataloader_faults.battery.workload import Workload


@check("write-error", "handles files that cannot be written, because the disk fills up")
def write_error(workload: Workload) -> Iterator[Scenario]:
    """Twice: the header and the data of a file may be written separately, and one error ignored."""
    half = workload.writes // 2 + 1
    path = workload.written.path
    for nth in (half, half + 1):
        if nth <= workload.writes:
            fault = faults.WriteError(path, errno.ENOSPC, nth=nth)
            yield Scenario(faults=(fault,), title=f"from write {nth} on")


WRITES = (write_error,)
