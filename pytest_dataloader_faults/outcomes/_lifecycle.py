"""What was found after each step in the life of a loader. Plain data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pytest_dataloader_faults.lifecycle import Step

if TYPE_CHECKING:
    from pytest_dataloader_faults.outcomes._outcome import Outcome


@dataclass(frozen=True)
class StepOutcome:
    """The end of one step: what was found there.

    Attributes:
        outcome: All that had happened up to here: a pass per epoch begun, faults, workers.
        armed: How many faults could happen.
        loaders: How many iterators have had workers of their own so far.
        running: Whether there were workers, or should have been.
        opened: How often each process has each file open, by the process' name.
        processes: Descendants that are no worker, by pid, looked for where no worker is to run.
        left: Files in /dev/shm that workers made, where none of them is to run.

    """

    outcome: Outcome
    armed: int
    loaders: int
    running: bool
    opened: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    processes: Mapping[str, str] = field(default_factory=dict)
    left: tuple[str, ...] = ()


@dataclass(frozen=True)
class LifecycleOutcome:
    """What was found in one life.

    Attributes:
        steps: What was to be done.
        moments: The ends of the steps that came to one.
        outcome: All that had happened at the end, as of ``run_trial``.

    """

    steps: tuple[Step, ...]
    moments: tuple[StepOutcome, ...]
    outcome: Outcome
