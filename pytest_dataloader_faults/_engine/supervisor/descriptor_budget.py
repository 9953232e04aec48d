"""The supervisor's own descriptors, and the errors of a run [runs in the supervisor].

Some facts about whose error EMFILE is. The supervisor opens what workers open, and keeps a
duplicate of it. Its limit (RLIMIT_NOFILE) is one process's, theirs is that of each, and the filter
does not notify of close(2): so it runs short long before any of them does, of descriptors of files
that no worker has open any more. The worker's own call would not have got that EMFILE. To find out
what it can close, the supervisor must list folders of /proc, which also takes descriptors.

So it counts them from time to time, well before none is left. If a call still fails because none is
free, that is an error of the run.
"""

from __future__ import annotations

import errno
import os
import resource
import traceback
from collections.abc import Callable
from typing import TypeGuard

from pytest_dataloader_faults._engine.system.proc import own_descriptors

_RESERVE = 24
"""Enough to list folders of /proc, or for one answer that takes more than expected."""
PER_EVENT = 4
"""What one answer makes: a copy, a description of it, and what they are made of."""
_SHORTAGES = (errno.EMFILE, errno.ENFILE)


class DescriptorBudget:
    """How many more descriptors this process can have. *close_some*: called in order for more."""

    def __init__(self, *close_some: Callable[[], None]) -> None:
        self._close_some = close_some
        self._left = 0

    def ensure(self, count: int = PER_EVENT) -> None:
        """Free *count* descriptors, as far as possible."""
        self._left -= count
        if self._left >= 0:
            return
        for close_some in (lambda: None, *self._close_some):
            close_some()
            soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
            self._left = soft - own_descriptors() - _RESERVE - count
            if self._left >= 0:
                return


class RunErrors:
    """The errors of the run: what could not be injected, and why."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    def add(self, where: str, error: BaseException) -> None:
        """Record *error*; a shortage only once, because everything that follows may hit it."""
        if not is_shortage(error):
            text = "".join(traceback.format_exception(error, limit=-3))
            self.texts.append(f"{where}: {text}")
        elif (text := _describe(error)) not in self.texts:
            self.texts.append(text)


def is_shortage(error: BaseException) -> TypeGuard[OSError]:
    """Whether *error* says that all descriptors are in use."""
    return isinstance(error, OSError) and error.errno in _SHORTAGES


def _describe(error: OSError) -> str:
    name = errno.errorcode[error.errno or 0]
    if error.errno == errno.ENFILE:
        limit, remedy = "the limit of the whole system", "Raise it (sysctl fs.file-max)"
    else:
        _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        limit = f"its limit of {hard}"
        remedy = "Raise the hard limit (ulimit -Hn, LimitNOFILE=), or use fewer workers"
    return (
        f"the supervisor (pid {os.getpid()}) has no file descriptor left [{name}, {limit}]. It"
        " needs one for each file under faults that a worker has open, so some faults may not have"
        f" fired. {remedy}"
    )
