"""What pinning makes of a batch. Needs an accelerator. Pure."""

from __future__ import annotations

from pytest_dataloader_faults._checks._base import MOST_EPOCHS, Check, no_fault

_PINNED = (
    "The loader's process used the accelerator first, as a training job does, had a thread pin each"
    " batch, and copied it to the device. A class of your own for batches needs a pin_memory() that"
    " returns the batch; samples stay on the CPU until they are in that process"
)

PINNING = (
    Check(
        "pinned",
        "pinned batches hold the same samples on the device, and no epoch keeps its memory",
        no_fault,
        {"pin_memory": True},
        trial={
            "accelerator": True,
            "epochs": MOST_EPOCHS,
            "footprints": True,
            "same_order": True,
        },
        advice=_PINNED,
        gpu=True,
    ),
)
