"""Skip items that need an accelerator, with the reason, where torch finds none."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from pytest_dataloader_faults._trial.accelerator import missing_accelerator

if TYPE_CHECKING:
    from collections.abc import Iterable


MARKER = "gpu"
MARKER_LINE = (
    f"{MARKER}: the test needs an accelerator. With dataloader_faults beside it, it is skipped"
    " where torch finds none, or fails with --dataloader-faults-require-gpu"
)


def needs_one(marks: Iterable[str]) -> bool:
    """Whether an item with *marks* needs an accelerator.

    ``gpu`` without ``dataloader_faults`` may be a marker of the suite's own, with another meaning.
    """
    return {MARKER, "dataloader_faults"} <= set(marks)


def require(item: pytest.Item) -> None:
    """Skip or fail *item* if it needs an accelerator and there is none."""
    if not needs_one(mark.name for mark in item.iter_markers()):
        return
    reason = missing_accelerator()
    if reason and item.config.getoption("dataloader_faults_require_gpu"):
        pytest.fail(f"--dataloader-faults-require-gpu: {reason}", pytrace=False)
    if reason:
        pytest.skip(reason)
