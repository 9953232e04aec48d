"""Faults of writing: how a system call by which a worker writes to a file fails, or falls short."""

from __future__ import annotations

import errno as _errno
from dataclasses import dataclass
from typing import ClassVar

from pytest_dataloader_faults.faults._base import (
    Fault,
    FileFault,
    ShortCall,
    Triggered,
    errno_numbers,
)

# What write(2), fsync(2) and fallocate(2) document, and what network and FUSE file systems add: a
# server that is gone, a stale handle, an expired key.
WRITE_ERRNOS = errno_numbers(
    "EACCES EAGAIN EBADF ECONNREFUSED ECONNRESET EDQUOT EFAULT EFBIG EHOSTDOWN EHOSTUNREACH EINTR"
    " EINVAL EIO EKEYEXPIRED ENETUNREACH ENODEV ENOMEM ENOSPC ENOTCONN ENXIO EPERM EREMOTEIO EROFS"
    " ESHUTDOWN ESTALE ETIMEDOUT EUCLEAN"
)


@dataclass(frozen=True, slots=True, repr=False)
class WriteError(Triggered, FileFault):
    """write(2), fallocate(2), fsync(2) and their like fail with *errno*; no byte is written.

    A file that was open before the worker began never fails, since it may be the user's own. Nor
    does one that has no name any more.
    """

    errnos: ClassVar = WRITE_ERRNOS
    of_connections: ClassVar = "ConnectionReset"
    errno: int = _errno.ENOSPC
    nth: int = 1
    times: int | None = None


@dataclass(frozen=True, slots=True, repr=False)
class ShortWrite(ShortCall):
    """write(2), pwrite(2), writev(2), pwritev(2) take *max_bytes* at most, and return how many.

    *max_bytes* is a count of bytes (int), or a fraction below 1 of what each write gives (float).
    Writes of no more than that do not count.
    """

    of_connections: ClassVar = "ConnectionReset"


def is_of_writing(fault: Fault) -> bool:
    """Whether *fault* happens in a write."""
    return isinstance(fault, (WriteError, ShortWrite)) or bool(getattr(fault, "writing", None))
