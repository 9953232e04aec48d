"""What the portable engine decides in this very process, and what it has counted by then."""

from __future__ import annotations

from typing import Any

from pytest_dataloader_faults._engine.plan import Plan, WorkerFaults
from pytest_dataloader_faults._engine.python.schedule import PlanPolicy


def schedule(*faults: Any, watch: bool = False, **options: Any) -> PlanPolicy:
    """What worker 0 decides."""
    return PlanPolicy(WorkerFaults(Plan(faults, watch), 0), 0, **options)


def counted(decide: PlanPolicy) -> dict[str, Any]:
    """Its counters, and those of its faults."""
    faults = [each.to_dict() for each in decide._tallies.all]
    return {
        "files": dict(decide._files),
        "unobserved": dict(+decide._unobserved),
        "faults": faults,
    }
