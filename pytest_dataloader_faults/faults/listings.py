"""Faults of folders: how their entries are listed, and which are missing."""

from __future__ import annotations

import errno as _errno
from dataclasses import KW_ONLY, dataclass
from typing import ClassVar

from pytest_dataloader_faults.faults.base import (
    Effect,
    FileFault,
    InWorkers,
    Place,
    Triggered,
    errno_numbers,
    kind,
)

# What getdents(2) documents, and what network and FUSE file systems add: a server that left, a
# stale handle, an expired key.
LISTING_ERRNOS = errno_numbers(
    "EACCES EAGAIN EBADF EBADMSG ECONNREFUSED ECONNRESET EHOSTDOWN EHOSTUNREACH EINTR EINVAL EIO"
    " EKEYEXPIRED ENETUNREACH ENODEV ENOENT ENOMEM ENOTCONN ENOTDIR ENXIO EPERM EREMOTEIO ESHUTDOWN"
    " ESTALE ETIMEDOUT EUCLEAN"
)


@kind
@dataclass(frozen=True, slots=True, repr=False)
class ListingOrder(InWorkers, FileFault):
    """The entries of each matching folder are listed in another order, the same one every time.

    Applies to getdents64(2), which os.listdir, os.scandir, glob and pathlib use. The order in which
    a folder is listed depends on the file system and on the machine.

    *path* matches folders. *order* is ``"reversed"``, the opposite of the real order, or
    ``"random"``, an order that *seed* and the folder's name determine.
    """

    happens_in: ClassVar = Place.LISTING
    effects: ClassVar = Effect.ORDER
    needs_worker: ClassVar = False
    in_words: ClassVar = "{} was listed in another order"
    of_connections: ClassVar = "ConnectError"
    order: str = "reversed"
    _: KW_ONLY
    seed: int = 0


@kind
@dataclass(frozen=True, slots=True, repr=False)
class ListingError(Triggered, FileFault):
    """Listing a matching folder fails with EIO, or the errno of your choice.

    Applies to getdents64(2), which fails with *errno*. One listing counts once, however many calls
    it needs. *path* matches folders.
    """

    happens_in: ClassVar = Place.LISTING
    effects: ClassVar = Effect.ERROR
    needs_worker: ClassVar = False
    errnos: ClassVar = LISTING_ERRNOS
    of_connections: ClassVar = "ConnectError"
    errno: int = _errno.EIO
    nth: int = 1
    times: int | None = None


@kind
@dataclass(frozen=True, slots=True, repr=False)
class MissingEntry(InWorkers, FileFault):
    """Matching files are missing: for open(2), stat(2) and access(2), and from their folders.

    The calls that name a file fail with ENOENT, and listings do not contain it.
    """

    happens_in: ClassVar = Place.OPEN | Place.STAT | Place.LISTING
    effects: ClassVar = Effect.ERROR
    needs_worker: ClassVar = False
    errno = _errno.ENOENT
    of_connections: ClassVar = "ConnectError"

    @property
    def hides_file(self) -> bool:
        """Always."""
        return True
