"""The kinds of faults: of files, of TCP connections, and of workers and what they share.

``Fault`` documents the attributes of each kind. The order is that of ``KINDS``.
"""

from __future__ import annotations

import errno as _errno
import signal as _signal
from dataclasses import dataclass
from typing import ClassVar

from pytest_dataloader_faults.faults.base import (
    Effect,
    Fault,
    FileFault,
    Globs,
    InWorkers,
    Place,
    ShortCall,
    Trigger,
    Triggered,
    errno_numbers,
    kind,
)
from pytest_dataloader_faults.faults.globs import is_network_glob

# What open(2) documents, and what network and FUSE file systems add: a server that left, a stale
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
# What write(2), fsync(2) and fallocate(2) document, and what network and FUSE file systems add: a
# server that left, a stale handle, an expired key.
WRITE_ERRNOS = errno_numbers(
    "EACCES EAGAIN EBADF ECONNREFUSED ECONNRESET EDQUOT EFAULT EFBIG EHOSTDOWN EHOSTUNREACH EINTR"
    " EINVAL EIO EKEYEXPIRED ENETUNREACH ENODEV ENOMEM ENOSPC ENOTCONN ENXIO EPERM EREMOTEIO EROFS"
    " ESHUTDOWN ESTALE ETIMEDOUT EUCLEAN"
)
# What connect(2) and tcp(7) document.
CONNECT_ERRNOS = errno_numbers(
    "EACCES EADDRINUSE EADDRNOTAVAIL ECONNABORTED ECONNREFUSED ECONNRESET EHOSTDOWN EHOSTUNREACH"
    " EINTR ENETDOWN ENETUNREACH ENOBUFS EPERM ETIMEDOUT"
)


@kind
@dataclass(frozen=True, slots=True, repr=False)
class OpenError(Triggered, FileFault):
    """Opening a matching file fails with EIO, or the errno of your choice.

    Applies to open(2), openat(2) and openat2(2), which fail with *errno*.

    A file for which every open fails with ENOENT is also missing for stat(2) and access(2). The
    listing of its folder still contains it; see ``MissingEntry``.
    """

    happens_in: ClassVar = Place.OPEN | Place.STAT
    effects: ClassVar = Effect.ERROR
    needs_worker: ClassVar = False
    errnos: ClassVar = OPEN_ERRNOS
    of_connections: ClassVar = "ConnectError"
    errno: int = _errno.EIO
    nth: int = 1
    times: int | None = None

    @property
    def hides_file(self) -> bool:
        """Whether the file is missing for each call that names it."""
        return self.errno == _errno.ENOENT and self.trigger == Trigger()

    @property
    def places(self) -> Place:
        """Where it happens."""
        places: Place = Fault.places.__get__(self)
        return places if self.hides_file else places & ~Place.STAT


@kind
@dataclass(frozen=True, slots=True, repr=False)
class ReadError(Triggered, FileFault):
    """Reading a matching file fails with EIO, or the errno of your choice.

    read(2), pread(2), readv(2) and preadv(2) fail with *errno*; accessing a mapping raises SIGBUS.

    Mapping a file counts as one read of it. With *offset*, only reads that touch bytes at or after
    that position fail; in a mapping, only the pages that lie entirely after it.
    """

    happens_in: ClassVar = Place.READ
    effects: ClassVar = Effect.ERROR
    needs_worker: ClassVar = False
    errnos: ClassVar = READ_ERRNOS
    of_connections: ClassVar = "ConnectionReset"
    errno: int = _errno.EIO
    nth: int = 1
    times: int | None = None
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
    needs_worker: ClassVar = False
    in_words: ClassVar = "a read of {} returned fewer bytes than requested"
    of_connections: ClassVar = "ConnectionClosed"


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
    needs_worker: ClassVar = False
    in_words: ClassVar = "the content of {} is damaged (it is truncated)"
    of_connections: ClassVar = "ConnectionClosed"
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
    needs_worker: ClassVar = False
    in_words: ClassVar = "the content of {} is damaged (some bytes differ)"
    of_connections: ClassVar = "ConnectionClosed: TCP notices damaged bytes"
    flips: int = 1
    seed: int = 0


@kind
@dataclass(frozen=True, slots=True, repr=False)
class ClosedDescriptor(Triggered, FileFault):
    """The dataset's file descriptor is closed while it is in use (EBADF).

    This is what happens if another part of the program closes it.

    Descriptors that the worker inherited are closed before its first fetch. Those that it opens
    itself are closed by the time open(2) returns. Every later call on the descriptor fails with
    EBADF, from the kernel. With *reuse*, the descriptor then belongs to another file of the same
    length. An inherited write-only descriptor stays open: it is a log, as in ``pytest >log``.

    With *sample*, all matching descriptors that the worker has open are closed when it starts the
    sample with that index (iterable datasets: its own sample with that number, from 0).
    """

    happens_in: ClassVar = Place.DESCRIPTOR
    effects: ClassVar = Effect.ERROR | Effect.LASTING
    needs_worker: ClassVar = True
    errno = _errno.EBADF
    of_connections: ClassVar = "ConnectionReset"
    reuse: bool = False
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
    needs_worker: ClassVar = False
    in_words: ClassVar = "a read of {} took long"
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
    in_words: ClassVar = "a read of {} did not return"
    nth: int = 1


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
    of_connections: ClassVar = "ConnectionReset"
    errno: int = _errno.ENOSPC
    nth: int = 1
    times: int | None = None


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
    of_connections: ClassVar = "ConnectionReset"


@dataclass(frozen=True, repr=False)
class NetworkFault(Fault):
    """A connection fault: its *path* matches TCP connections, such as ``"tcp://192.0.2.1:443"``."""

    __slots__ = ()
    needs_worker: ClassVar = True
    path: Globs = "tcp://*"

    def _check_together(self) -> None:
        allowed = "a glob of connections, such as 'tcp://*' or 'tcp://192.0.2.1:443'"
        self._require("path", all(map(is_network_glob, self.globs)), allowed)


@kind
@dataclass(frozen=True, slots=True, repr=False)
class ConnectError(Triggered, NetworkFault):
    """Connecting to a matching address fails with ``errno``, by default ECONNREFUSED."""

    happens_in: ClassVar = Place.CONNECT
    effects: ClassVar = Effect.ERROR
    errnos: ClassVar = CONNECT_ERRNOS
    errno: int = _errno.ECONNREFUSED
    nth: int = 1
    times: int | None = None


@dataclass(frozen=True, repr=False)
class _TruncatedResponse(Triggered, NetworkFault):
    """The response ends after *after* bytes of it. Shorter ones do not count."""

    __slots__ = ()
    happens_in: ClassVar = Place.ANSWER
    effects: ClassVar = Effect.BAD_DATA
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

    effects: ClassVar = Effect.BAD_DATA | Effect.ERROR
    errno = _errno.ECONNRESET


@kind
@dataclass(frozen=True, slots=True, repr=False)
class ConnectionClosed(_TruncatedResponse):
    """The server closes the connection after ``after`` bytes of a response, as if it were complete.

    A client without a content length treats the truncated response as complete. See
    ``ConnectionReset`` for what a response is.
    """

    in_words: ClassVar = "the connection to {} was closed early"


@kind
@dataclass(frozen=True, slots=True, repr=False)
class DescriptorExhaustion(InWorkers):
    """Workers run out of file descriptors (EMFILE): only ``headroom`` more can be opened.

    The limit is real: RLIMIT_NOFILE is lowered. See getrlimit(2).

    In a worker, the limit holds from its first fetch on: open(2), dup(2), shm_open(3) and all other
    calls that need a descriptor fail with EMFILE. With ``where="loader"``, the limit holds in the
    main process once its workers run, so that it cannot receive their batches.
    """

    happens_in: ClassVar = Place.ALLOCATION | Place.FETCH
    effects: ClassVar = Effect.ERROR | Effect.SCARCITY
    needs_worker: ClassVar = True
    errno = _errno.EMFILE
    headroom: int = 0
    where: str = "worker"

    def _check_together(self) -> None:
        in_worker = self.where == "worker" or self.workers is None
        self._require(
            "workers", in_worker, "None with where='loader', which affects the main process only"
        )


@kind
@dataclass(frozen=True, slots=True, repr=False)
class SharedMemoryExhaustion(Triggered):
    """Shared memory (/dev/shm) is full when a worker sends a batch (ENOSPC).

    fallocate(2) for the tensors of the batch fails with ENOSPC.

    torch 2.10 and newer reserve the space of each shared tensor with that call.
    """

    happens_in: ClassVar = Place.RESERVATION
    effects: ClassVar = Effect.ERROR | Effect.SCARCITY
    needs_worker: ClassVar = True
    errno = _errno.ENOSPC
    nth: int = 1
    times: int | None = None


@kind
@dataclass(frozen=True, slots=True, repr=False)
class PinMemoryThreadDeath(Fault):
    """The pin-memory thread fails at batch number ``at``, counted from 1.

    With ``stage="take"``, it fails when it receives the batch from the workers, as if no descriptor
    were left: the thread ends, and the loader notices after 5 s. With ``"pin"``, it fails when it
    pins the batch, as if no page could be locked: the loop gets the error instead of the batch. The
    thread runs in the main process, if the loader has ``pin_memory=True`` and workers, and the
    machine an accelerator.
    """

    happens_in: ClassVar = Place.PINNING
    effects: ClassVar = Effect.ERROR
    needs_worker: ClassVar = True
    in_words: ClassVar = "the thread that pins memory died"
    at: int = 1
    stage: str = "take"


class InOneWorker(Fault):
    """Base of faults that happen when a worker starts batch number *at*, or a sample."""

    __slots__ = ()
    happens_in: ClassVar = Place.FETCH
    needs_worker: ClassVar = True
    at: int
    worker: int | None
    sample: int | None

    def _check_together(self) -> None:
        alone = (self.at, self.worker) == (1, 0)
        self._require("sample", self.sample is None or alone, "passed without at and worker")


@kind
@dataclass(frozen=True, slots=True, repr=False)
class WorkerKilled(InOneWorker):
    """A worker is killed by ``signal`` (or stopped, with SIGSTOP) at batch number ``at``.

    Each worker counts its own batches, from 1. *worker* is the id of the worker, or None for every
    worker that reaches that batch. With *sample*, it is the worker that starts the sample with that
    index (iterable datasets: each worker, at its own sample with that number, from 0). A stopped
    worker continues at the end of the scope.

    With *reading*, which takes globs like *path*, the signal arrives inside the first read of such
    a file, from that fetch on. With ``at=1`` it can also arrive before the fetch, because a stream
    may read in ``__iter__``. With *writing*, it arrives inside the first such write, when half of
    its bytes are in the file. With *sending*, it arrives when half of the batch has been sent to
    the loader.
    """

    happens_in: ClassVar = Place.FETCH | Place.READ | Place.WRITE
    effects: ClassVar = Effect.DEATH | Effect.DELAY
    in_words: ClassVar = "a worker was killed"
    of_connections: ClassVar = "WorkerKilled(at=...)"
    signal: int = int(_signal.SIGKILL)
    at: int = 1
    worker: int | None = 0
    sample: int | None = None
    reading: Globs | None = None
    writing: Globs | None = None
    sending: bool = False

    def _check_together(self) -> None:
        InOneWorker._check_together(self)
        alone = self.reading is None or self.sample is None
        self._require("reading", alone, "passed without sample")
        alone = self.writing is None or (self.reading, self.sample) == (None, None)
        self._require("writing", alone, "passed without reading and sample")
        alone = self.signal != _signal.SIGSTOP and self.sample is None and not self.globs
        message = "passed without reading, writing, sample and SIGSTOP"
        self._require("sending", alone or not self.sending, message)


@kind
@dataclass(frozen=True, slots=True, repr=False)
class WorkerExited(InOneWorker):
    """A worker exits silently with ``code`` at batch number ``at``.

    It calls _exit(2), and does not report an error.

    torch notices a nonzero code at once, and 0 after 5 s (``MP_STATUS_CHECK_INTERVAL``). See
    ``WorkerKilled`` for *worker* and *sample*.
    """

    effects: ClassVar = Effect.DEATH
    in_words: ClassVar = "a worker exited"
    code: int = 0
    at: int = 1
    worker: int | None = 0
    sample: int | None = None


@kind
@dataclass(frozen=True, slots=True, repr=False)
class WorkerHung(InOneWorker):
    """A worker hangs at batch number ``at`` until the scope ends.

    With *hold_gil*, it hangs inside C code that holds the GIL, so none of its threads runs, and
    batches that it has already finished are not sent either. See ``WorkerKilled`` for *worker* and
    *sample*.
    """

    effects: ClassVar = Effect.DELAY
    in_words: ClassVar = "a worker hung"
    hold_gil: bool = False
    at: int = 1
    worker: int | None = 0
    sample: int | None = None
