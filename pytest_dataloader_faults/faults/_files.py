"""Faults of files: how a system call of a worker fails, or what it gives."""

from __future__ import annotations

import errno as _errno
from dataclasses import dataclass
from typing import ClassVar

from pytest_dataloader_faults.faults._base import (
    FileFault,
    InWorkers,
    ShortCall,
    Trigger,
    Triggered,
    errno_numbers,
)

# What open(2) documents, and what network and FUSE file systems add: a server that is gone, a stale
# handle, an expired key, a missing object.
OPEN_ERRNOS = errno_numbers(
    "EACCES EAGAIN EBADMSG EBUSY ECONNREFUSED ECONNRESET EDQUOT EFAULT EFBIG EHOSTDOWN EHOSTUNREACH"
    " EINTR EINVAL EIO EISDIR EKEYEXPIRED ELOOP EMFILE ENAMETOOLONG ENETUNREACH ENFILE ENODATA"
    " ENODEV ENOENT ENOMEM ENOSPC ENOTCONN ENOTDIR ENXIO EOVERFLOW EPERM EREMOTEIO EROFS ESHUTDOWN"
    " ESTALE ETIMEDOUT ETXTBSY EUCLEAN"
)
# What read(2) documents, and the same additions.
READ_ERRNOS = errno_numbers(
    "EACCES EAGAIN EBADF EBADMSG ECONNREFUSED ECONNRESET EDQUOT EFAULT EHOSTDOWN EHOSTUNREACH EINTR"
    " EINVAL EIO EISDIR EKEYEXPIRED ENETUNREACH ENODATA ENODEV ENOMEM ENOTCONN ENXIO EOVERFLOW"
    " EPERM EREMOTEIO ESHUTDOWN ESTALE ETIMEDOUT EUCLEAN"
)


@dataclass(frozen=True, slots=True, repr=False)
class OpenError(Triggered, FileFault):
    """open(2), openat(2) and openat2(2) of a matching file fail with *errno*."""

    errnos: ClassVar = OPEN_ERRNOS
    of_connections: ClassVar = "ConnectError"
    errno: int = _errno.EIO
    nth: int = 1
    times: int | None = None


@dataclass(frozen=True, slots=True, repr=False)
class ReadError(Triggered, FileFault):
    """read(2), pread(2), readv(2), preadv(2) fail with *errno*; a mapping raises SIGBUS on access.

    Mapping a file counts as one read of it. With *offset*, only reads fail that touch bytes at or
    after that position; in a mapping, the pages that lie wholly after it.
    """

    errnos: ClassVar = READ_ERRNOS
    of_connections: ClassVar = "ConnectionReset"
    errno: int = _errno.EIO
    nth: int = 1
    times: int | None = None
    offset: int | None = None


@dataclass(frozen=True, slots=True, repr=False)
class ShortRead(ShortCall):
    """read(2), pread(2), readv(2), preadv(2) give the right bytes, but at most *max_bytes*.

    *max_bytes* is a count of bytes (int), or a fraction below 1 of what each read would give
    (float). By a count, a reader that reads on needs one call for each *max_bytes* of the file: for
    large files, take a fraction. Reads that would not give more do not count. A mapping cannot be
    short.
    """

    of_connections: ClassVar = "ConnectionClosed"


@dataclass(frozen=True, slots=True, repr=False)
class TruncatedFile(InWorkers, FileFault):
    """A matching file is shorter, for read, fstat, lseek and mmap alike.

    *keep* is what is left: a fraction below 1 (float) or a count of bytes (int). The file itself
    stays as it is: the worker gets a truncated copy instead, also in place of the descriptors and
    mappings that it inherited.
    """

    content: ClassVar[bool] = True
    of_connections: ClassVar = "ConnectionClosed"
    keep: float = 0.5

    def kept(self, size: int) -> int:
        """How many of *size* bytes are left."""
        return int(size * self.keep) if isinstance(self.keep, float) else min(size, self.keep)


@dataclass(frozen=True, slots=True, repr=False)
class CorruptedFile(InWorkers, FileFault):
    """*flips* bytes of a matching file differ. *seed* and the file's name decide which, and how.

    The file itself stays as it is: the worker gets a damaged copy instead, as with
    ``TruncatedFile``. An empty file has no bytes to damage.
    """

    content: ClassVar[bool] = True
    of_connections: ClassVar = "ConnectionClosed: TCP notices damaged bytes"
    flips: int = 1
    seed: int = 0


@dataclass(frozen=True, slots=True, repr=False)
class ClosedDescriptor(Triggered, FileFault):
    """The descriptor that the dataset uses is closed by another part of the program.

    Descriptors that the worker inherited are closed before its first fetch. Those that it opens
    itself are closed by the time open(2) returns. Every later call on the number fails with EBADF,
    from the kernel. With *reuse* the number belongs to another file of the same length by then. An
    inherited descriptor that allows writing only stays open: it is a log, as in ``pytest >log``.

    With *sample*, all matching descriptors that the worker has open are closed when it begins the
    sample of that index (iterable datasets: the worker's own sample of that number, from 0).
    """

    errno = _errno.EBADF
    of_connections: ClassVar = "ConnectionReset"
    reuse: bool = False
    nth: int = 1
    times: int | None = None
    sample: int | None = None

    def _check_together(self) -> None:
        alone = self.sample is None or self.trigger == Trigger()
        self._require("sample", alone, "the only trigger beside workers")


@dataclass(frozen=True, slots=True, repr=False)
class SlowRead(Triggered, FileFault):
    """read(2), pread(2), readv(2), preadv(2), mmap(2) are answered *seconds* late.

    With a *path* such as ``"tcp://*"``, answers of a peer come so late. See ``ConnectionReset`` for
    what an answer is.
    """

    meets_connections: ClassVar[bool] = True
    seconds: float = 0.5
    nth: int = 1
    times: int | None = None


@dataclass(frozen=True, slots=True, repr=False)
class HungRead(InWorkers, FileFault):
    """The *nth* read of a matching file, and each after it, never returns, as on a dead NFS server.

    Only SIGKILL ends the wait of the reading thread. At the end of the scope the read goes on.

    With a *path* such as ``"tcp://*"``, the *nth* answer of a peer never comes, and none after it.
    A time limit of the reader's own ends that wait. See ``ConnectionReset`` for what an answer is.
    """

    meets_connections: ClassVar[bool] = True
    nth: int = 1
