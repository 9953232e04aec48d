"""Faults of files that are written.

``Fault`` documents the attributes of each kind.
"""

from __future__ import annotations

import errno as _errno
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from pytest_dataloader_faults.faults.base import (
    TIMES,
    Effect,
    FileFault,
    Place,
    Triggered,
    errno_numbers,
    kind,
)
from pytest_dataloader_faults.faults.kinds import ShortCall

# What write(2), fsync(2) and fallocate(2) document, and what network and FUSE file systems add: a
# server that left, a stale handle, an expired key.
WRITE_ERRNOS = errno_numbers(
    "EACCES EAGAIN EBADF ECONNREFUSED ECONNRESET EDQUOT EFAULT EFBIG EHOSTDOWN EHOSTUNREACH EINTR"
    " EINVAL EIO EKEYEXPIRED ENETUNREACH ENODEV ENOMEM ENOSPC ENOTCONN ENXIO EPERM EREMOTEIO EROFS"
    " ESHUTDOWN ESTALE ETIMEDOUT EUCLEAN"
)
_WRITES_UNSEEN = "pyfakefs itself handles writes to its files"
NOTHING_WRITTEN = "no worker wrote to a data file"
NOT_WRITTEN = (
    r"requested and \d+ written"
    r"|(disk|device|drive|quota).{0,20}\b(full|exceeded)"
    r"|(fail|error|unable|could not|can(not|'t)|while).{0,30}\b(writ(e|ing|ten)|sav(e|ing))\b"
    r"|writ(e|ing) (failed|error)|short write|not (fully|completely) written|no space"
)
"""Words for a failed write: ndarray.tofile() says no more than the first."""


@kind
@dataclass(frozen=True, slots=True, repr=False)
class WriteError(Triggered, FileFault):
    """Writing a matching file fails with ENOSPC, or the errno of your choice; nothing is written.

    Applies to write(2), fallocate(2), fsync(2) and similar calls, which fail with *errno*.

    Writes to a file that was open before the worker started never fail, because it may be the
    user's own file. Writes to a file without a name (an unlinked one) never fail either.
    """

    happens_in: ClassVar = Place.WRITE
    effects: ClassVar = Effect.ERROR
    needs_worker: ClassVar = False
    errnos: ClassVar = WRITE_ERRNOS
    operation: ClassVar = "writes"
    drawn: ClassVar = {"errno": (_errno.ENOSPC, _errno.EIO, _errno.EDQUOT), "times": TIMES}
    is_survivable: ClassVar = True
    unseen_in_fake_files: ClassVar = _WRITES_UNSEEN
    errno: int = _errno.ENOSPC
    nth: int = 1
    times: int | None = None

    def explain_unmatched(self, counts: Mapping[str, int]) -> str:
        """Without a write, nothing can match it."""
        return "" if counts else NOTHING_WRITTEN

    def message_patterns(self, _call: str) -> tuple[str, ...]:
        """What a message contains if it says that a file is incomplete."""
        return (NOT_WRITTEN,)


@kind
@dataclass(frozen=True, slots=True, repr=False)
class ShortWrite(ShortCall):
    """Each write accepts at most ``max_bytes`` and returns the count, as POSIX allows.

    Applies to write(2), pwrite(2), writev(2) and pwritev(2).

    *max_bytes* is a count of bytes (int), or a fraction below 1 of the bytes of each write (float).
    Writes of *max_bytes* or fewer do not count.
    """

    happens_in: ClassVar = Place.WRITE
    needs_worker: ClassVar = False
    in_words: ClassVar = "a write of {} accepted fewer bytes than it was passed"
    call: ClassVar = "write"
    operation: ClassVar = "writes"
    is_survivable: ClassVar = True
    unseen_in_fake_files: ClassVar = _WRITES_UNSEEN

    def message_patterns(self, _call: str) -> tuple[str, ...]:
        """What a message contains if it says that a file is incomplete."""
        return (NOT_WRITTEN,)
