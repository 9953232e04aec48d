"""What a trial found, and what that shows: facts, verdicts, results. Plain data."""

from __future__ import annotations

from pytest_dataloader_faults.faults.base import FiringKind
from pytest_dataloader_faults.outcomes.agreement import Comparison, Mask, Part, Sample
from pytest_dataloader_faults.outcomes.chains import Raised
from pytest_dataloader_faults.outcomes.contract import Cause, Contract, Finding, Verdict, Wrong
from pytest_dataloader_faults.outcomes.records import (
    Batch,
    Crash,
    Event,
    Footprint,
    LoaderFacts,
    Outcome,
    Pass,
    Resources,
    TrialEnd,
    TrialRequest,
    WorkerDeath,
)
from pytest_dataloader_faults.outcomes.reference import Reference
from pytest_dataloader_faults.outcomes.results import CheckResult
from pytest_dataloader_faults.outcomes.stages import (
    Absence,
    Activity,
    AtDeadline,
    Change,
    ChangedState,
    EpochsApart,
    LoadedState,
    Phase,
    Position,
    Reason,
    Refusal,
    SavedState,
    SharedConnection,
    Stage,
    StateOf,
)
from pytest_dataloader_faults.wire import FaultFacts, FileCounts, Firing, WorkerFacts

__all__ = (
    "Absence",
    "Activity",
    "AtDeadline",
    "Batch",
    "Cause",
    "Change",
    "ChangedState",
    "CheckResult",
    "Comparison",
    "Contract",
    "Crash",
    "EpochsApart",
    "Event",
    "FaultFacts",
    "FileCounts",
    "Finding",
    "Firing",
    "FiringKind",
    "Footprint",
    "LoadedState",
    "LoaderFacts",
    "Mask",
    "Outcome",
    "Part",
    "Pass",
    "Phase",
    "Position",
    "Raised",
    "Reason",
    "Reference",
    "Refusal",
    "Resources",
    "Sample",
    "SavedState",
    "SharedConnection",
    "Stage",
    "StateOf",
    "TrialEnd",
    "TrialRequest",
    "Verdict",
    "WorkerDeath",
    "WorkerFacts",
    "Wrong",
)
