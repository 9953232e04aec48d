"""Report that a machine has no accelerator."""

from __future__ import annotations

import sys

import pytest

GPU_MARKER = (
    "gpu: the test needs an accelerator. With dataloader_faults beside it, it is skipped"
    " where torch finds none, or fails with --dataloader-faults-require-gpu"
)


def require_accelerator(item: pytest.Item) -> None:
    """Skip or fail *item* if it needs an accelerator and there is none.

    ``gpu`` without ``dataloader_faults`` may be a marker of the suite's own, with another meaning.
    On other systems than Linux our fixtures skip, whatever the machine has.
    """
    names = {mark.name for mark in item.iter_markers()}
    if not {"gpu", "dataloader_faults"} <= names or sys.platform != "linux":
        return
    from pytest_dataloader_faults._trial.accelerator import missing_accelerator

    reason = missing_accelerator()
    if reason and item.config.getoption("dataloader_faults_require_gpu"):
        pytest.fail(f"--dataloader-faults-require-gpu: {reason}", pytrace=False)
    if reason:
        pytest.skip(reason)
