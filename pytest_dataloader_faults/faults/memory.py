"""The fault of memory: an allocation fails."""

from __future__ import annotations

import errno as _errno
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from pytest_dataloader_faults import _arguments as allow
from pytest_dataloader_faults.faults.base import FEW, Effect, Place, Triggered, kind

_DEFAULT_BYTES = 1 << 16
_MOST_BYTES = (1 << 63) - 1
MIN_ALLOCATION = 1 << 15
"""Bytes. CPython's own stack of frames grows by half of it."""


_OUT_OF_MEMORY = (
    r"\bMemoryError\b|bad_alloc|out of memory|(insufficient|not enough|no) memory"
    r"|(fail|unable|can'?t|cannot|could not|couldn't).{0,40}\balloc|alloc.{0,40}\bfail"
)


@kind
@dataclass(frozen=True, slots=True, repr=False)
class MemoryExhaustion(Triggered):
    """Allocating ``min_bytes`` or more fails while a worker makes samples.

    Applies to mmap(2), mremap(2) and brk(2), which fail with ENOMEM: Python and NumPy raise
    MemoryError, C++ throws std::bad_alloc, and malloc(3) returns NULL.

    With *sample*, only allocations for the sample with that index fail (iterable datasets: each
    worker's own sample with that number, from 0).

    Smaller allocations, thread stacks, files that are mapped, shared libraries, and what torch
    allocates to send a batch do not fail. What the C library tries instead of an allocation that
    failed belongs to that allocation.
    """

    _rules: ClassVar = {
        **Triggered._rules,
        "min_bytes": allow.ints(
            MIN_ALLOCATION,
            _MOST_BYTES,
            f"an int from {MIN_ALLOCATION} to 2**63 - 1 bytes (the interpreter itself needs smaller"
            " allocations, for example to raise MemoryError)",
        ),
    }
    happens_in: ClassVar = Place.MEMORY | Place.FETCH
    effects: ClassVar = Effect.ERROR
    needs_worker: ClassVar = True
    unseen_in_fake_files: ClassVar = "libraries allocate memory in C"
    drawn: ClassVar = {"times": (None, *FEW)}
    errno = _errno.ENOMEM
    min_bytes: int = _DEFAULT_BYTES
    nth: int = 1
    times: int | None = None
    sample: int | None = field(default=None, kw_only=True)

    def explain_unmatched(self, counts: Mapping[str, int]) -> str:  # noqa: ARG002
        """Other allocations are too small."""
        sample = "a sample" if self.sample is None else f"sample {self.sample}"
        return f"no allocation of a worker for {sample} reached min_bytes={self.min_bytes}"

    def message_patterns(self, _call: str) -> tuple[str, ...]:
        """What a message contains if it says that memory ran out."""
        return (_OUT_OF_MEMORY,)
