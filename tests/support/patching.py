"""Python's file access with faults, in this very process."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator

from pytest_dataloader_faults._engine.policy import FaultPolicy
from pytest_dataloader_faults._engine.python.descriptors import Clock, DescriptorTable
from pytest_dataloader_faults._engine.python.install import install, replace_everywhere


class SystemClock:
    """Time passes as it does, and what hangs hangs for good."""

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)

    def hang(self) -> None:
        threading.Event().wait()


@contextlib.contextmanager
def patched(policy: FaultPolicy, clock: Clock | None = None) -> Iterator[DescriptorTable]:
    """While it lasts, file access by Python code is as *policy* says."""
    files, pairs = install(policy, clock or SystemClock())
    try:
        yield files
    finally:
        replace_everywhere([(new, old) for old, new in pairs])
