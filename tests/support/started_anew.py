"""Datasets that fail in workers which start as new interpreters, and import this module."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

from torch.utils.data import get_worker_info

from support.datasets import Records


class EndsItsWorker(Records):
    """Ends the process in the middle, if that is a worker."""

    def __init__(self, folder: Path, start_method: str) -> None:
        super().__init__(folder)
        self.how = start_method

    def __getitem__(self, index: int) -> Any:
        if get_worker_info() is not None and index == 9:
            if self.how == "exit":
                os._exit(0)
            if self.how == "exec":
                os.execv("/bin/true", ["true"])  # noqa: S606  # nothing of a shell is needed
            os.kill(os.getpid(), signal.SIGRTMIN + 3)
        return super().__getitem__(index)


class Delegating:
    """Looks for every attribute in one that a new object does not have yet."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


class HoldsDelegating(Records):
    """Has such an object."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.held = Delegating([])


class RaisesAtLoading(Records):
    """Pickles, and cannot be restored."""

    def __setstate__(self, state: Any) -> None:
        message = "handle"
        raise KeyError(message)
