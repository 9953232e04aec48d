"""The fault of file locks: another job holds one, or the file system has none."""

from __future__ import annotations

import errno as _errno
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from pytest_dataloader_faults import _arguments as allow
from pytest_dataloader_faults.faults.base import (
    TIMES,
    Effect,
    FileFault,
    Place,
    Triggered,
    errno_numbers,
    kind,
)

# What flock(2) and fcntl(2) document for requests of a lock, except for mistakes of the caller.
LOCK_ERRNOS = errno_numbers("EACCES EAGAIN EDEADLK EINTR ENOLCK")

WRITE_LOCKS = "write_locks"
"""How notes name the locks that a worker always held, or had requested, as it wrote to a file."""


@kind
@dataclass(frozen=True, slots=True, repr=False)
class LockError(Triggered, FileFault):
    """Locking a matching file fails with EAGAIN, or the errno of your choice.

    Applies to flock(2), and to fcntl(2) with F_SETLK, F_SETLKW, F_OFD_SETLK and F_OFD_SETLKW, which
    fail with *errno*.

    With EAGAIN, another job holds the lock: a call that waits for the lock does not return until
    the scope ends or the loader ends its workers, and any other call fails. With *seconds*, the
    other job releases its locks that long after the first request of a process; from then on, that
    process can lock. A signal that the worker handles interrupts the wait. With ENOLCK, the file
    system has no locks. A file can always be unlocked.
    """

    happens_in: ClassVar = Place.LOCK
    effects: ClassVar = Effect.ERROR | Effect.DELAY
    needs_worker: ClassVar = False
    errnos: ClassVar = LOCK_ERRNOS
    _rules: ClassVar = {
        **FileFault._rules,
        "seconds": allow.optional(
            allow.SECONDS.allows, f"{allow.SECONDS.allowed}, or None until the scope ends"
        ),
    }
    errno: int = _errno.EAGAIN
    nth: int = 1
    times: int | None = None
    seconds: float | None = field(default=None, kw_only=True)

    operation: ClassVar = "locks"
    drawn: ClassVar = {"errno": (_errno.EAGAIN, _errno.ENOLCK), "times": TIMES}
    unseen_in_fake_files: ClassVar = "libraries lock their files in C"

    def explain_unmatched(self, counts: Mapping[str, int]) -> str:
        """Without a lock, nothing can match it."""
        return "" if counts else "no worker locked a file"

    def message_patterns(self, _call: str) -> tuple[str, ...]:
        """What a message contains if it says that a file could not be locked."""
        return (r"\block(s|ed|ing)?\b|acquir",)

    @property
    def is_held(self) -> bool:
        """Whether another job holds the lock, so that it can be waited for."""
        return self.errno == _errno.EAGAIN
