"""What is known of a dataset without faults, for another baseline of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypedDict

from pytest_dataloader_faults.battery._targets import Files
from pytest_dataloader_faults.outcomes import Contract, Outcome, Reference
from pytest_dataloader_faults.outcomes.reference import EXACT, Comparison

_TIMES, _LEAST_BYTES = 4, 8_000_000
"""A retry reads the same again, and a worker that starts reads modules."""


class OutdatedBaselineError(Exception):
    """The dataset gives other samples than the ones that are known."""


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
    cached: tuple[str, ...] = ()


def most_bytes_of(observed: Outcome | None) -> int | None:
    """How many bytes a pass may read before it reads the same again and again.

    *observed*: a pass without a fault. None if that does not say it.
    """
    if observed is None or observed.engine != "kernel" or observed.unobserved:
        return None
    files = [counts for worker in observed.workers for counts in worker.files.values()]
    return max(_LEAST_BYTES, _TIMES * sum(each.bytes for each in files))
