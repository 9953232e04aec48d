"""What a disposable process is to do. It is inherited by fork, not pickled."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pytest_dataloader_faults.faults import Fault
from pytest_dataloader_faults.lifecycle import Step
from pytest_dataloader_faults.outcomes._reference import Comparison


@dataclass(frozen=True)
class Job:
    """A trial, the taking of a reference, or the life of a loader."""

    make_dataset: Callable[[], Any]
    faults: tuple[Fault, ...] = ()
    engine: str = "kernel"
    options: Mapping[str, Any] | None = None
    changes: Mapping[str, Any] | None = None
    epochs: int = 1
    seed: int = 0
    watch_files: bool = False
    touch: bool = False
    same_order: bool = False
    footprints: bool = False
    deadline: float = 30.0
    patience: float | None = None
    """Seconds that a pass under faults waits for a batch, once its workers are done or stuck."""
    descriptors: int | None = None
    """How many may be opened besides those that are open."""
    accelerator: bool = False
    """Whether this process uses it first, and copies each batch to it."""
    needs_workers: bool = False
    reference: bool = False
    asked: Sequence[tuple[Any, ...]] | None = None
    telling: Comparison = field(default_factory=Comparison)
    keep_workers: bool = False
    """After an error, the next epoch is the same workers'."""
    steps: tuple[Step, ...] = ()
    """In place of epochs: the life of a loader, with faults of its own."""
