"""Pinned memory: bugs, and twins without them."""

from __future__ import annotations

from support.corpus.cases import Case

CASES: tuple[Case, ...] = ()
BEHAVIOURS: dict[str, str] = {}
EXCUSED: dict[str, str] = {
    entry: f"{why}: needs an accelerator, and this machine has none"
    for entry, why in {
        "L1": "without one torch starts no pin-memory thread whose error could be masked",
        "L2": "without one torch starts no pin-memory thread that could die",
        "L3": "without one nothing calls pin_memory() of a batch, which would hang",
        "L4": "without one no batch is pinned at all",
        "L5": "without one no batch is pinned, and none changes its type by that",
        "L6": "without one nothing calls pin_memory() of a batch, which would give None",
        "L7": "a forked worker is refused by CUDA only where the loader's process has used it",
        "L8": "the tensors that are lost lie in an accelerator's memory",
        "L9": "the descriptors that workers inherit are those of an accelerator",
    }.items()
}
