"""Faults of files, TCP connections and HTTP servers. ``Fault`` documents the attributes.

The number and the phrase of an HTTP status are those of RFC 9110.
"""

from __future__ import annotations

import errno as _errno
import os
from dataclasses import KW_ONLY, dataclass, field
from http import HTTPStatus
from typing import Any, ClassVar

from pytest_dataloader_faults import _arguments as allow
from pytest_dataloader_faults.faults.base import (
    MAX_NAME,
    Effect,
    FailedCall,
    Fault,
    FileFault,
    Globs,
    InWorkers,
    Place,
    Trigger,
    Triggered,
    kind,
)
from pytest_dataloader_faults.faults.globs import is_address


@dataclass(frozen=True, repr=False)
class ShortCall(Triggered, FileFault):
    """A fault by which a call transfers *max_bytes* at most."""

    __slots__ = ()
    effects: ClassVar = Effect.BAD_DATA
    call: ClassVar[str]
    """What the call does with a file."""
    max_bytes: float = 1
    nth: int = 1
    times: int | None = None

    def most(self, length: int) -> int:
        """How many of *length* bytes the call transfers at most."""
        if isinstance(self.max_bytes, int):
            return self.max_bytes
        return max(1, int(length * self.max_bytes))


@kind
@dataclass(frozen=True, slots=True, repr=False)
class OpenError(FailedCall):
    """Opening a matching file fails with EIO, or the errno of your choice.

    Applies to open(2), openat(2) and openat2(2), which fail with *errno*.

    A file for which every open fails with ENOENT is also missing for stat(2) and access(2), and
    from the listing of its folder. With *nth*, *times*, *every* or *probability*, only opens fail.
    """

    happens_in: ClassVar = Place.OPEN | Place.STAT | Place.LISTING
    operation: ClassVar = "opens"

    @property
    def hides_file(self) -> bool:
        """Whether the file is missing for each call that names it."""
        return self.errno == _errno.ENOENT and self.trigger == Trigger()

    @property
    def places(self) -> Place:
        """Where it happens."""
        places: Place = Fault.places.__get__(self)
        return places if self.hides_file else places & Place.OPEN


@kind
@dataclass(frozen=True, slots=True, repr=False)
class ReadError(FailedCall):
    """Reading a matching file fails with EIO, or the errno of your choice.

    read(2), pread(2), readv(2) and preadv(2) fail with *errno*; accessing a mapping raises SIGBUS.
    With ENODEV, mmap(2) fails as well, as on a drive that cannot map a file.

    Mapping a file counts as one read of it. With *offset*, only reads that touch bytes at or after
    that position fail; in a mapping, only the pages that lie entirely after it.
    """

    happens_in: ClassVar = Place.READ
    operation: ClassVar = "reads"
    offset: int | None = None


@kind
@dataclass(frozen=True, slots=True, repr=False)
class ShortRead(ShortCall):
    """Each read of a matching file returns correct data, but at most ``max_bytes`` of it.

    Applies to read(2), pread(2), readv(2) and preadv(2).

    *max_bytes* is a count of bytes (int), or a fraction below 1 of what each read would return
    (float). With a count, a reader that continues after a short read needs one call for every
    *max_bytes* of the file, so pass a fraction for large files. Reads that would not return more do
    not count. A mapping cannot be short.
    """

    happens_in: ClassVar = Place.READ
    call: ClassVar = "read"
    operation: ClassVar = "reads"


@kind
@dataclass(frozen=True, slots=True, repr=False)
class TruncatedFile(InWorkers, FileFault):
    """Matching files appear truncated, consistently for read, fstat, lseek and mmap.

    *keep* is what remains: a fraction below 1 (float) or a count of bytes (int). The file itself
    does not change: the worker gets a truncated copy, which also replaces the descriptors and
    mappings that it inherited.
    """

    happens_in: ClassVar = Place.DESCRIPTOR | Place.STAT
    effects: ClassVar = Effect.BAD_DATA | Effect.LASTING
    is_at_rest: ClassVar = True
    operation: ClassVar = "reads"
    keep: float = 0.5

    def kept(self, size: int) -> int:
        """How many of *size* bytes are left."""
        return int(size * self.keep) if isinstance(self.keep, float) else min(size, self.keep)


@kind
@dataclass(frozen=True, slots=True, repr=False)
class CorruptedFile(InWorkers, FileFault):
    """``flips`` bytes of each matching file are damaged, the same ones every time.

    *seed* and the file's name determine which bytes, and how they change. The file itself does not
    change: the worker gets a damaged copy, as with ``TruncatedFile``. An empty file stays as it is.
    """

    happens_in: ClassVar = Place.DESCRIPTOR
    effects: ClassVar = Effect.BAD_DATA | Effect.LASTING
    is_at_rest: ClassVar = True
    operation: ClassVar = "reads"
    flips: int = 1
    seed: int = 0


@kind
@dataclass(frozen=True, slots=True, repr=False)
class ClosedDescriptor(Triggered, FileFault):
    """The dataset's file descriptor is closed while it is in use (EBADF).

    This is what happens if another part of the program closes it.

    Descriptors that the worker inherited are closed before its first fetch. Those that it opens
    itself are closed by the time open(2) returns. Every later call on the descriptor fails with
    EBADF, from the kernel. An inherited write-only descriptor stays open: it is a log, as in
    ``pytest >log``.

    With *sample*, all matching descriptors that the worker has open are closed when it starts the
    sample with that index (iterable datasets: its own sample with that number, from 0).
    """

    happens_in: ClassVar = Place.DESCRIPTOR
    effects: ClassVar = Effect.LASTING
    needs_worker: ClassVar = True
    operation: ClassVar = "reads"
    errno = _errno.EBADF
    nth: int = 1
    times: int | None = None
    sample: int | None = None

    def _check_together(self) -> None:
        alone = self.sample is None or self.trigger == Trigger()
        self._require("sample", alone, "the only trigger, except for workers")


@kind
@dataclass(frozen=True, slots=True, repr=False)
class SlowRead(Triggered, FileFault):
    """Each read of a matching file takes ``seconds`` longer.

    Applies to read(2), pread(2), readv(2), preadv(2) and mmap(2).

    With a *path* such as ``"tcp://*"``, the responses of a server arrive late. See
    ``ConnectionReset`` for what a response is.
    """

    happens_in: ClassVar = Place.READ | Place.ANSWER
    effects: ClassVar = Effect.DELAY
    operation: ClassVar = "reads"
    seconds: float = 0.5
    nth: int = 1
    times: int | None = None


@kind
@dataclass(frozen=True, slots=True, repr=False)
class HungRead(InWorkers, FileFault):
    """The ``nth`` and all later reads of matching files never return, as on a dead NFS server.

    Only SIGKILL ends the wait of the reading thread. At the end of the scope the read continues.

    With a *path* such as ``"tcp://*"``, the *nth* response of a server and all later ones never
    arrive. A timeout of the reader ends that wait. See ``ConnectionReset`` for what a response is.
    """

    happens_in: ClassVar = Place.READ | Place.ANSWER
    effects: ClassVar = Effect.DELAY
    needs_worker: ClassVar = True
    operation: ClassVar = "reads"
    nth: int = 1


@kind
@dataclass(frozen=True, slots=True, repr=False)
class WriteError(FailedCall):
    """Writing a matching file fails with ENOSPC, or the errno of your choice; nothing is written.

    Applies to write(2), fallocate(2), fsync(2) and similar calls, which fail with *errno*.

    Writes to a file that was open before the worker started never fail, because it may be the
    user's own file. Writes to a file without a name (an unlinked one) never fail either.
    """

    happens_in: ClassVar = Place.WRITE
    operation: ClassVar = "writes"
    errno: int = _errno.ENOSPC


@kind
@dataclass(frozen=True, slots=True, repr=False)
class ShortWrite(ShortCall):
    """Each write accepts at most ``max_bytes`` and returns the count, as POSIX allows.

    Applies to write(2), pwrite(2), writev(2) and pwritev(2).

    *max_bytes* is a count of bytes (int), or a fraction below 1 of the bytes of each write (float).
    Writes of *max_bytes* or fewer do not count.
    """

    happens_in: ClassVar = Place.WRITE
    call: ClassVar = "write"
    operation: ClassVar = "writes"


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
    operation: ClassVar = "listings"
    order: str = "reversed"
    _: KW_ONLY
    seed: int = 0


@kind
@dataclass(frozen=True, slots=True, repr=False)
class ListingError(FailedCall):
    """Listing a matching folder fails with EIO, or the errno of your choice.

    Applies to getdents64(2), which fails with *errno*. One listing counts once, however many calls
    it needs. *path* matches folders.
    """

    happens_in: ClassVar = Place.LISTING
    operation: ClassVar = "listings"


@kind
@dataclass(frozen=True, slots=True, repr=False)
class StrayEntry(InWorkers, FileFault):
    """Each matching folder contains one more file, which no one meant as data.

    Listings contain it. open(2), stat(2) and access(2) treat it as a regular file, whose content
    read(2) returns. The folder itself does not change.

    *path* matches folders. *name* is the name of the file, which is empty. A ``*`` in it stands for
    the name of the first visible file in the folder, in alphabetical order, and the content is the
    first half of that file: ``"*.part"`` is what an interrupted copy leaves. A folder stays as it
    is if it already contains that name, or no file to copy.
    """

    happens_in: ClassVar = Place.OPEN | Place.STAT | Place.LISTING
    effects: ClassVar = Effect.BAD_DATA
    is_at_rest: ClassVar = True
    operation: ClassVar = "listings"
    name: str = ".DS_Store"

    @property
    def is_copy(self) -> bool:
        """Whether it is a copy of another file."""
        return "*" in self.name

    def copy_of(self, name: str) -> str:
        """The name of the file of which *name*, an entry by this fault, is a copy.

        It is "" if *name* cannot be a copy by this fault.
        """
        head, _, tail = self.name.partition("*")
        is_longer = len(name) > len(head) + len(tail)
        if not (is_longer and name.startswith(head) and name.endswith(tail)):
            return ""
        return name[len(head) : len(name) - len(tail)]

    def entry_for(self, original: str) -> str:
        """The name of the entry that is a copy of *original*; "" if it would be too long."""
        entry = self.name.replace("*", original)
        return entry if len(os.fsencode(entry)) <= MAX_NAME else ""


UNLIMITED_WAITS = "unlimited_waits"
"""How tallies name waits of a main thread for a response that hangs, without a timeout."""
TLS_CONNECTION = "TLS connection"
"""How ``Outcome.unobserved`` names a connection whose requests are encrypted."""
PHRASES = {int(status): status.phrase for status in HTTPStatus}


@dataclass(frozen=True, repr=False)
class NetworkFault(Fault):
    """A connection fault: its *path* matches TCP connections, such as ``"tcp://192.0.2.1:443"``."""

    __slots__ = ()
    needs_worker: ClassVar = False
    operation: ClassVar = "connections"
    path: Globs = "tcp://*"

    def _check_together(self) -> None:
        allowed = "a glob of connections, such as 'tcp://*' or 'tcp://192.0.2.1:443'"
        self._require("path", all(map(is_address, self.globs)), allowed)


@kind
@dataclass(frozen=True, slots=True, repr=False)
class ConnectError(Triggered, NetworkFault):
    """Connecting to a matching address fails with ``errno``, by default ECONNREFUSED."""

    happens_in: ClassVar = Place.CONNECT
    errno: int = _errno.ECONNREFUSED
    nth: int = 1
    times: int | None = None


@dataclass(frozen=True, repr=False)
class _TruncatedResponse(Triggered, NetworkFault):
    """The response ends after *after* bytes of it. Shorter ones do not count."""

    __slots__ = ()
    happens_in: ClassVar = Place.ANSWER
    effects: ClassVar = Effect.BAD_DATA
    _rules: ClassVar = {
        **NetworkFault._rules,
        "after": allow.ints(0, allowed="an int, 0 or more bytes of the response"),
    }
    after: int = 0
    nth: int = 1
    times: int | None = None


@kind
@dataclass(frozen=True, slots=True, repr=False)
class ConnectionReset(_TruncatedResponse):
    """The server resets the connection after sending ``after`` bytes of a response (ECONNRESET).

    A response is what the server sends first, or after the worker has sent something. So a
    keep-alive connection has several. Responses of *after* bytes or fewer do not count.
    """

    errno = _errno.ECONNRESET


@kind
@dataclass(frozen=True, slots=True, repr=False)
class ConnectionClosed(_TruncatedResponse):
    """The server closes the connection after ``after`` bytes of a response, as if it were complete.

    A client without a content length treats the truncated response as complete. See
    ``ConnectionReset`` for what a response is.
    """


def _is_status(value: Any) -> bool:
    is_success = value in (HTTPStatus.OK, HTTPStatus.PARTIAL_CONTENT)
    return allow.is_int(value, 200, 599) and (is_success or value >= HTTPStatus.BAD_REQUEST)


@kind
@dataclass(frozen=True, slots=True, repr=False)
class HttpError(Triggered, NetworkFault):
    """A server answers HTTP requests with ``status`` and a page of text instead of the data.

    The server does not receive the request. Each worker counts its own requests: *nth* is the
    first that fails.

    *status* is a number from 400 to 599, or 200: some servers send the page of a login or of an
    exceeded quota as if it were the data. With 206, only requests of a part match, and the server
    receives them without their Range header: it sends the whole file, with status 200.

    *body* is the page; with None, a short one that names the status and the request. *retry_after*
    is the number of seconds in the Retry-After header; with None, the response has no such header.
    Only plain HTTP/1.0 and HTTP/1.1 are affected: requests in TLS (``https://``) are encrypted, so
    they pass, and ``Outcome.unobserved`` counts the connections.
    """

    happens_in: ClassVar = Place.ANSWER
    _rules: ClassVar = {
        **NetworkFault._rules,
        "status": allow.ArgumentRule(_is_status, "200, 206, or an HTTP status from 400 to 599"),
        "body": allow.optional(
            lambda value: isinstance(value, str), "a str, or None for a page with the status"
        ),
        "retry_after": allow.optional(allow.at_least(0), "an int, 0 or more seconds, or None"),
    }
    status: int = 503
    nth: int = 1
    times: int | None = None
    body: str | None = field(default=None, kw_only=True)
    retry_after: int | None = field(default=None, kw_only=True)

    @property
    def reason(self) -> str:
        """The status and its phrase, such as ``503 Service Unavailable``."""
        return f"{self.status} {PHRASES.get(self.status, 'Error')}"

    @property
    def claims_success(self) -> bool:
        """Whether only the content itself shows that it is not the data."""
        return self.status < HTTPStatus.BAD_REQUEST

    @property
    def ignores_range(self) -> bool:
        """Whether the server sends a whole file in place of a part."""
        return self.status == HTTPStatus.PARTIAL_CONTENT
