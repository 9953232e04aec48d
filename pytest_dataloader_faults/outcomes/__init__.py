"""What a trial found, and what that shows: facts, verdicts, results. Plain data."""

from __future__ import annotations

from pytest_dataloader_faults.outcomes._at_deadline import Activity, AtDeadline
from pytest_dataloader_faults.outcomes._records import (
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
from pytest_dataloader_faults.outcomes._reference import Reference, Share
from pytest_dataloader_faults.outcomes._results import (
    CheckResult,
    Outcome,
    SweepResult,
    SweepStep,
)
from pytest_dataloader_faults.outcomes._verdicts import Contract, Judgement, Verdict, Wrong

__all__ = (
    "Activity",
    "AtDeadline",
    "CheckResult",
    "Contract",
    "Delivery",
    "Event",
    "FaultFacts",
    "FileCounts",
    "Firing",
    "Footprint",
    "Judgement",
    "Outcome",
    "Pass",
    "Raised",
    "Reference",
    "Resources",
    "Share",
    "SweepResult",
    "SweepStep",
    "Verdict",
    "WorkerDeath",
    "WorkerFacts",
    "Wrong",
)
