"""What is known of a dataset without faults, for another baseline of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypedDict

from pytest_dataloader_faults.battery._baseline.caches import NOTHING_MADE, CacheFacts
from pytest_dataloader_faults.battery._targets import Files
from pytest_dataloader_faults.outcomes import Contract, Outcome, Reference
from pytest_dataloader_faults.outcomes._reference import EXACT, Comparison


class OutdatedBaselineError(Exception):
    """The dataset gives other samples than the ones that are known.

    Attributes:
        read_since: When they were read, in ns since the epoch.
    """

    def __init__(self, read_since: int) -> None:
        super().__init__(read_since)
        self.read_since = read_since


class Settings(TypedDict, total=False):
    """What holds for all trials of a dataset: arguments of ``check_dataset``."""

    files: Files | None
    loader: Mapping[str, Any] | None
    contract: Contract | None
    deadline: float | str | None
    seed: int
    engine: str
    samples: int | str | None


@dataclass(frozen=True)
class GoldenRun:
    """What another baseline of the same dataset may begin with. Plain data."""

    reference: Reference
    control: Outcome
    observed: Outcome
    changes: Mapping[str, Any]
    comparison: Comparison = EXACT
    caches: CacheFacts = NOTHING_MADE
