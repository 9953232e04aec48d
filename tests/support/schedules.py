"""What the portable engine decides in this very process, and what it has counted by then."""

from __future__ import annotations

from typing import Any

from pytest_dataloader_faults._engine.plan import Plan, Tallies
from pytest_dataloader_faults._engine.python.schedule import Schedule


def schedule(*faults: Any, watch: bool = False, **options: Any) -> Schedule:
    """What worker 0 decides."""
    return Schedule(Tallies(Plan(faults, watch), 0), 0, **options)


def counted(decide: Schedule) -> dict[str, Any]:
    """Its counters, and those of its faults."""
    faults = [each.to_dict() for each in decide._tallies.all]
    return {
        "files": dict(decide._files),
        "unreached": dict(+decide._unreached),
        "faults": faults,
    }
