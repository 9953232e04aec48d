"""Pinned memory: bugs, and twins without them. Without an accelerator, by a stand-in."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch.utils.data import DataLoader

from support.batches import Batch, ForgetsItself
from support.corpus.cases import Case
from support.datasets import Records


def forgets_to_return_itself(folder: Path) -> DataLoader[Any]:
    return DataLoader(Records(folder), batch_size=4, num_workers=2, collate_fn=ForgetsItself)


def returns_itself(folder: Path) -> DataLoader[Any]:
    return DataLoader(Records(folder), batch_size=4, num_workers=2, collate_fn=Batch)


CASES: tuple[Case, ...] = (
    Case("L6", forgets_to_return_itself, "pin-memory", "corrupted: batch 0", twin=returns_itself),
)
BEHAVIOURS: dict[str, str] = {
    "L1": "torch reports that the thread exited, up to 5 s later, and prints why, which a trial"
    " keeps"
    " (pinning/test_pinned.py::test_thread_that_ends_is_reported_without_the_cause)",
    "L2": "with a timeout torch does not look for the thread, and reports the timeout"
    " (pinning/test_pinned.py::test_thread_that_ends_within_the_timeout_is_reported_as_a_timeout)",
    "L3": "torch waits for the thread without a limit; the trial's own deadline ends it"
    " (pinning/test_pinned.py::test_pinning_that_hangs_blocks_the_loader_s_end)",
    "L4": "torch passes it on as it is; its samples are right"
    " (pinning/test_pinned.py::test_what_torch_makes_of_a_batch_of_another_class)",
    "L5": "torch makes a dict or a list of what it cannot make again; the samples in it are right"
    " (pinning/test_pinned.py::test_what_torch_makes_of_a_batch_of_another_class)",
}
EXCUSED: dict[str, str] = {
    entry: f"needs an accelerator: {why}"
    for entry, why in {
        "L7": "a forked worker is refused by CUDA only where the loader's process has used it",
        "L8": "the tensors that are lost lie in an accelerator's memory",
        "L9": "the descriptors that workers inherit are those of an accelerator",
    }.items()
}
