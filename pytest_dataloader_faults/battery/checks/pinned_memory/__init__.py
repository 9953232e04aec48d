"""The check of batches in pinned memory, which a training job copies to its accelerator. Pure."""

from __future__ import annotations

from pytest_dataloader_faults.battery.checks._base import (
    REPEATED,
    Check,
    Scenario,
    measure_epochs,
    no_fault,
)
from pytest_dataloader_faults.steps import UseAccelerator, arm_workers

_PINNED = (
    "The main process used the accelerator first, like a training job. One of its threads pinned"
    " each batch, and the process copied the batch to the device. A custom batch class needs a"
    " pin_memory() method that returns the batch. Workers must leave samples on the CPU"
)

PINNING = (
    Check(
        "pin-memory",
        "pinned batches hold the same samples on the device, and no epoch leaks their memory",
        no_fault,
        scenario=Scenario(
            loader={"pin_memory": True},
            processes=arm_workers(measure_epochs(REPEATED), before=(UseAccelerator(),)),
        ),
        advice=_PINNED,
        is_about_errors=True,
    ),
)
