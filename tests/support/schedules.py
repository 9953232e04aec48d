"""The python engine in this very process: file access with faults, and what it has counted."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Iterator
from typing import Any

from pytest_dataloader_faults._engine.plan import FaultPlan, WorkerFaults
from pytest_dataloader_faults._engine.policy import FaultPolicy
from pytest_dataloader_faults._engine.python.descriptors import Clock, DescriptorTable
from pytest_dataloader_faults._engine.python.install import install, replace_everywhere


def schedule(*faults: Any, watch: bool = False, **options: Any) -> FaultPolicy:
    """What worker 0 decides."""
    return FaultPolicy(WorkerFaults(FaultPlan(faults, watch), 0), 0, os.getpid(), **options)


def counters_of(policy: FaultPolicy) -> dict[str, Any]:
    """Its counters, and those of its faults."""
    faults = [
        {
            "matched": each.matched,
            "fired": each.fired,
            "firings": [vars(firing) for firing in each.firings],
        }
        for each in policy.faults.all
    ]
    return {
        "files": {path: list(each) for path, each in policy.files.items()},
        "unobserved": dict(+policy.unobserved),
        "faults": faults,
    }


class SystemClock:
    """Time passes as it does, and what hangs hangs for good."""

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)

    def hang(self) -> None:
        threading.Event().wait()


@contextlib.contextmanager
def patched(policy: FaultPolicy, clock: Clock | None = None) -> Iterator[DescriptorTable]:
    """While it lasts, file access by Python code is as *policy* says."""
    files, pairs = install(policy, clock or SystemClock())
    try:
        yield files
    finally:
        replace_everywhere([(new, old) for old, new in pairs])
