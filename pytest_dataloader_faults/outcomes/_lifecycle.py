"""What was found after each step in the lifecycle of a loader. Plain data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pytest_dataloader_faults.lifecycle import Step

if TYPE_CHECKING:
    from pytest_dataloader_faults.outcomes._outcome import Outcome


@dataclass(frozen=True)
class StepOutcome:
    """What was found at the end of one step.

    Attributes:
        outcome: All that had happened up to here: a pass per epoch begun, faults, workers.
        armed: How many faults could happen.
        iterators_started: How many iterators have started workers so far.
        running: Whether there were workers, or should have been.
        open_files: How often each process has each file open, by the name of the process.
        processes: Descendants that are no worker, by pid. Empty while workers run.
        leftover_files: Files in /dev/shm that workers made. Empty while workers run.

    """

    outcome: Outcome
    armed: int
    iterators_started: int
    running: bool
    open_files: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    processes: Mapping[str, str] = field(default_factory=dict)
    leftover_files: tuple[str, ...] = ()


@dataclass(frozen=True)
class LifecycleOutcome:
    """What was found in one lifecycle.

    Attributes:
        steps: The steps to do.
        step_outcomes: What was found after each step that ended.
        outcome: All that had happened at the end, as of ``run_trial``.

    """

    steps: tuple[Step, ...]
    step_outcomes: tuple[StepOutcome, ...]
    outcome: Outcome
