"""What the portable engine decides in this very process, and what it has counted by then."""

from __future__ import annotations

import os
from typing import Any

from pytest_dataloader_faults._engine.plan import FaultPlan, WorkerFaults
from pytest_dataloader_faults._engine.policy import FaultPolicy


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
