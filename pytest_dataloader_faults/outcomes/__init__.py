"""What a trial found, and what that shows: facts, verdicts, results. Plain data."""

from __future__ import annotations

from pytest_dataloader_faults.faults.base import FiringKind
from pytest_dataloader_faults.outcomes.contract import (
    Compared,
    Comparison,
    Contract,
    Judgement,
    Verdict,
    Wrong,
)
from pytest_dataloader_faults.outcomes.records import (
    Delivery,
    Event,
    FaultFacts,
    FileCounts,
    Firing,
    Footprint,
    Pass,
    Raised,
    Resources,
    WorkerDeath,
    WorkerFacts,
)
from pytest_dataloader_faults.outcomes.reference import Reference, Share
from pytest_dataloader_faults.outcomes.results import CheckResult, Outcome, SweepResult, SweepStep
from pytest_dataloader_faults.outcomes.stages import (
    Absence,
    Activity,
    AtDeadline,
    Phase,
    Reason,
    SavedState,
    Stage,
    StateOf,
    Step,
)

__all__ = (
    "Absence",
    "Activity",
    "AtDeadline",
    "CheckResult",
    "Compared",
    "Comparison",
    "Contract",
    "Delivery",
    "Event",
    "FaultFacts",
    "FileCounts",
    "Firing",
    "FiringKind",
    "Footprint",
    "Judgement",
    "Outcome",
    "Pass",
    "Phase",
    "Raised",
    "Reason",
    "Reference",
    "Resources",
    "SavedState",
    "Share",
    "Stage",
    "StateOf",
    "Step",
    "SweepResult",
    "SweepStep",
    "Verdict",
    "WorkerDeath",
    "WorkerFacts",
    "Wrong",
)
