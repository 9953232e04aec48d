"""The kinds of faults: of files, of TCP connections, and of workers and what they share.

``Fault`` says what the facts are that each kind states. The order is that of ``KINDS``.
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
from pytest_dataloader_faults.globs import is_of_network

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
# What write(2), fsync(2) and fallocate(2) document, and what network and FUSE file systems add: a
# server that is gone, a stale handle, an expired key.
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
    """open(2), openat(2) and openat2(2) of a matching file fail with *errno*.

    A file that each open finds missing, by ENOENT, is missing for stat(2) and access(2), too. The
    listing of its folder still has it.
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
        found: Place = Fault.places.__get__(self)
        return found if self.hides_file else found & ~Place.STAT


@kind
@dataclass(frozen=True, slots=True, repr=False)
class ReadError(Triggered, FileFault):
    """read(2), pread(2), readv(2), preadv(2) fail with *errno*; a mapping raises SIGBUS on access.

    Mapping a file counts as one read of it. With *offset*, only reads fail that touch bytes at or
    after that position; in a mapping, the pages that lie wholly after it.
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
    """read(2), pread(2), readv(2), preadv(2) give the right bytes, but at most *max_bytes*.

    *max_bytes* is a count of bytes (int), or a fraction below 1 of what each read would give
    (float). By a count, a reader that reads on needs one call for each *max_bytes* of the file: for
    large files, take a fraction. Reads that would not give more do not count. A mapping cannot be
    short.
    """

    happens_in: ClassVar = Place.READ
    needs_worker: ClassVar = False
    in_words: ClassVar = "a read of {} gave fewer bytes than it was asked for"
    of_connections: ClassVar = "ConnectionClosed"


@kind
@dataclass(frozen=True, slots=True, repr=False)
class TruncatedFile(InWorkers, FileFault):
    """A matching file is shorter, for read, fstat, lseek and mmap alike.

    *keep* is what is left: a fraction below 1 (float) or a count of bytes (int). The file itself
    stays as it is: the worker gets a truncated copy instead, also in place of the descriptors and
    mappings that it inherited.
    """

    happens_in: ClassVar = Place.DESCRIPTOR | Place.STAT
    effects: ClassVar = Effect.BAD_DATA | Effect.LASTING
    needs_worker: ClassVar = False
    in_words: ClassVar = "the content of {} is bad (it ended early)"
    of_connections: ClassVar = "ConnectionClosed"
    keep: float = 0.5

    def kept(self, size: int) -> int:
        """How many of *size* bytes are left."""
        return int(size * self.keep) if isinstance(self.keep, float) else min(size, self.keep)


@kind
@dataclass(frozen=True, slots=True, repr=False)
class CorruptedFile(InWorkers, FileFault):
    """*flips* bytes of a matching file differ. *seed* and the file's name decide which, and how.

    The file itself stays as it is: the worker gets a damaged copy instead, as with
    ``TruncatedFile``. An empty file has no bytes to damage.
    """

    happens_in: ClassVar = Place.DESCRIPTOR
    effects: ClassVar = Effect.BAD_DATA | Effect.LASTING
    needs_worker: ClassVar = False
    in_words: ClassVar = "the content of {} is bad (bytes of it are damaged)"
    of_connections: ClassVar = "ConnectionClosed: TCP notices damaged bytes"
    flips: int = 1
    seed: int = 0


@kind
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
        self._require("sample", alone, "the only trigger beside workers")


@kind
@dataclass(frozen=True, slots=True, repr=False)
class SlowRead(Triggered, FileFault):
    """read(2), pread(2), readv(2), preadv(2), mmap(2) are answered *seconds* late.

    With a *path* such as ``"tcp://*"``, answers of a peer come so late. See ``ConnectionReset`` for
    what an answer is.
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
    """The *nth* read of a matching file, and each after it, never returns, as on a dead NFS server.

    Only SIGKILL ends the wait of the reading thread. At the end of the scope the read goes on.

    With a *path* such as ``"tcp://*"``, the *nth* answer of a peer never comes, and none after it.
    A time limit of the reader's own ends that wait. See ``ConnectionReset`` for what an answer is.
    """

    happens_in: ClassVar = Place.READ | Place.ANSWER
    effects: ClassVar = Effect.DELAY
    needs_worker: ClassVar = True
    in_words: ClassVar = "a read of {} had no answer"
    nth: int = 1


@kind
@dataclass(frozen=True, slots=True, repr=False)
class WriteError(Triggered, FileFault):
    """write(2), fallocate(2), fsync(2) and their like fail with *errno*; no byte is written.

    A file that was open before the worker began never fails, since it may be the user's own. Nor
    does one that has no name any more.
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
    """write(2), pwrite(2), writev(2), pwritev(2) take *max_bytes* at most, and return how many.

    *max_bytes* is a count of bytes (int), or a fraction below 1 of what each write gives (float).
    Writes of no more than that do not count.
    """

    happens_in: ClassVar = Place.WRITE
    needs_worker: ClassVar = False
    in_words: ClassVar = "a write of {} took fewer bytes than it was given"
    of_connections: ClassVar = "ConnectionReset"


@dataclass(frozen=True, repr=False)
class NetworkFault(Fault):
    """A fault of TCP connections, whose *path* is as ``"tcp://192.0.2.1:443"``."""

    __slots__ = ()
    needs_worker: ClassVar = True
    path: Globs = "tcp://*"

    def _check_together(self) -> None:
        allowed = "a glob of connections, such as 'tcp://*' or 'tcp://192.0.2.1:443'"
        self._require("path", all(map(is_of_network, self.globs)), allowed)


@kind
@dataclass(frozen=True, slots=True, repr=False)
class ConnectError(Triggered, NetworkFault):
    """connect(2) to a matching address fails with *errno*, at once."""

    happens_in: ClassVar = Place.CONNECT
    effects: ClassVar = Effect.ERROR
    errnos: ClassVar = CONNECT_ERRNOS
    errno: int = _errno.ECONNREFUSED
    nth: int = 1
    times: int | None = None


@dataclass(frozen=True, repr=False)
class _AnswerCutOff(Triggered, NetworkFault):
    """The answer ends once *after* bytes of it have come. Shorter ones do not count."""

    __slots__ = ()
    happens_in: ClassVar = Place.ANSWER
    effects: ClassVar = Effect.BAD_DATA
    after: int = 0
    nth: int = 1
    times: int | None = None


@kind
@dataclass(frozen=True, slots=True, repr=False)
class ConnectionReset(_AnswerCutOff):
    """The peer resets the connection once *after* bytes of an answer have come: ECONNRESET.

    An answer is what the peer sends first, or after this side has sent something. So a connection
    that is kept alive has several. Answers of *after* bytes and fewer do not count.
    """

    effects: ClassVar = Effect.BAD_DATA | Effect.ERROR
    errno = _errno.ECONNRESET


@kind
@dataclass(frozen=True, slots=True, repr=False)
class ConnectionClosed(_AnswerCutOff):
    """The peer closes the connection once *after* bytes of an answer have come, as at its end.

    A client that does not know how long the answer is takes what came for all of it. See
    ``ConnectionReset`` for what an answer is.
    """

    in_words: ClassVar = "the connection to {} ended early"


@kind
@dataclass(frozen=True, slots=True, repr=False)
class DescriptorExhaustion(InWorkers):
    """Only *headroom* descriptors are left, by a real, lowered RLIMIT_NOFILE. See getrlimit(2).

    In a worker the limit holds from its first fetch: open(2), dup(2), shm_open(3) and all other
    calls that need a descriptor fail with EMFILE. With *where* ``"loader"`` the limit holds in the
    process that iterates the loader, once its workers run: it cannot receive their batches.
    """

    happens_in: ClassVar = Place.ALLOCATION | Place.FETCH
    effects: ClassVar = Effect.ERROR | Effect.SCARCITY
    needs_worker: ClassVar = True
    errno = _errno.EMFILE
    headroom: int = 0
    where: str = "worker"

    def _check_together(self) -> None:
        in_worker = self.where == "worker" or self.workers is None
        self._require("workers", in_worker, "None with where='loader', which concerns no worker")


@kind
@dataclass(frozen=True, slots=True, repr=False)
class SharedMemoryExhaustion(Triggered):
    """/dev/shm has no room for the tensors of a batch: fallocate(2) fails with ENOSPC.

    torch 2.10 and newer reserve the space of each shared tensor by that call.
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
    """The thread that pins the loader's batches fails at the *at*-th one (1-based).

    With *stage* ``"take"`` it fails as it receives the batch from the workers, as if no descriptor
    were left: the thread ends, and the loader notices after 5 s. With ``"pin"`` it fails as it pins
    the batch, as if no page could be locked: the loop gets the error in place of the batch. It
    happens in the loader's process, which needs ``pin_memory=True``, workers and an accelerator.
    """

    happens_in: ClassVar = Place.PINNING
    effects: ClassVar = Effect.ERROR
    needs_worker: ClassVar = True
    in_words: ClassVar = "the thread that pins memory died"
    at: int = 1
    stage: str = "take"


class InOneWorker(Fault):
    """Base of faults that happen when a worker begins its *at*-th fetch, or a sample."""

    __slots__ = ()
    happens_in: ClassVar = Place.FETCH
    needs_worker: ClassVar = True
    at: int
    worker: int | None
    sample: int | None

    def _check_together(self) -> None:
        alone = (self.at, self.worker) == (1, 0)
        self._require("sample", self.sample is None or alone, "given without at and worker")


@kind
@dataclass(frozen=True, slots=True, repr=False)
class WorkerKilled(InOneWorker):
    """A worker gets *signal* at its *at*-th fetch, and dies by it or, of SIGSTOP, stops.

    A fetch is a batch. *worker* is the id of the worker, or None for each worker that gets so far.
    With *sample* it is the worker that begins the sample of that index (iterable datasets: each
    worker, at its own sample of that number, from 0). A stopped worker goes on at the end of the
    scope.

    With *reading*, globs as in *path*, the signal comes inside the first read of such a file from
    that fetch on; with ``at=1`` also before it, as a stream reads in ``__iter__``. With *writing*
    it comes inside the first write likewise: half of the bytes of that write are in the file. With
    *sending* it comes when half of the batch has been sent to the loader.
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
        self._require("reading", alone, "given without sample")
        alone = self.writing is None or (self.reading, self.sample) == (None, None)
        self._require("writing", alone, "given without reading and sample")
        alone = self.signal != _signal.SIGSTOP and self.sample is None and not self.globs
        message = "given without reading, writing, sample and SIGSTOP"
        self._require("sending", alone or not self.sending, message)


@kind
@dataclass(frozen=True, slots=True, repr=False)
class WorkerExited(InOneWorker):
    """A worker exits without reporting, by _exit(2) with *code*, at its *at*-th fetch.

    torch notices a code other than 0 at once, and 0 after 5 s (``MP_STATUS_CHECK_INTERVAL``). See
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
    """A worker hangs at its *at*-th fetch, and goes on at the end of the scope.

    With *hold_gil* it hangs inside C code that holds the interpreter lock, so that none of its
    threads runs: batches that it had finished are not sent either. See ``WorkerKilled`` for
    *worker* and *sample*.
    """

    effects: ClassVar = Effect.DELAY
    in_words: ClassVar = "a worker hung"
    hold_gil: bool = False
    at: int = 1
    worker: int | None = 0
    sample: int | None = None
