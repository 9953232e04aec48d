"""Faults of workers: one dies, exits or hangs, or runs out of what processes share.

``Fault`` documents the attributes.
"""

from __future__ import annotations

import errno as _errno
import signal as _signal
from dataclasses import dataclass, field
from typing import ClassVar

from pytest_dataloader_faults import _arguments as allow
from pytest_dataloader_faults.faults.base import (
    Effect,
    FailedCall,
    Fault,
    FileFault,
    Globs,
    InWorkers,
    Place,
    Triggered,
    is_globs,
    kind,
)


class InOneWorker(Fault):
    """Base of faults that happen when a worker starts batch number *at*, or a sample."""

    __slots__ = ()
    happens_in: ClassVar = Place.FETCH
    at: int
    worker: int | None
    sample: int | None

    def _check_together(self) -> None:
        alone = (self.at, self.worker) == (1, 0)
        self._require("sample", self.sample is None or alone, "passed without at and worker")


@kind
@dataclass(frozen=True, slots=True, repr=False)
class WorkerKilled(InOneWorker):
    """A worker is killed by ``signal`` at batch number ``at``.

    Each worker counts its own batches, from 1. *worker* is the id of the worker, or None for every
    worker that reaches that batch. With *sample*, it is the worker that starts the sample with that
    index (iterable datasets: each worker, at its own sample with that number, from 0).

    With *reading*, which takes globs like *path*, the signal arrives inside the first read of such
    a file, from that fetch on. With ``at=1`` it can also arrive before the fetch, because a stream
    may read in ``__iter__``. With *writing*, it arrives inside the first such write, when half of
    its bytes are in the file. With *sending*, it arrives when half of the batch has been sent to
    the loader.
    """

    happens_in: ClassVar = Place.FETCH | Place.READ | Place.WRITE
    # A worker that dies sending holds the queue's lock, for which the others wait.
    effects: ClassVar = Effect.DEATH | Effect.DELAY
    globs_of: ClassVar = {"reading": Place.READ, "writing": Place.WRITE}
    _rules: ClassVar = {
        **InOneWorker._rules,
        "reading": allow.optional(is_globs, "a glob such as '*.jpg', a tuple of globs, or None"),
        "writing": allow.optional(is_globs, "a glob such as '*.pt', a tuple of globs, or None"),
    }
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
        alone = self.sample is None and not self.globs
        message = "passed without reading, writing and sample"
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
    code: int = 0
    at: int = 1
    worker: int | None = 0
    sample: int | None = None


@kind
@dataclass(frozen=True, slots=True, repr=False)
class WorkerHung(InOneWorker):
    """A worker hangs at batch number ``at`` until the scope ends.

    See ``WorkerKilled`` for *worker* and *sample*.
    """

    effects: ClassVar = Effect.DELAY
    at: int = 1
    worker: int | None = 0
    sample: int | None = None


# ``Fault`` documents the attributes of each kind.


_DEFAULT_BYTES = 1 << 16
_MOST_BYTES = (1 << 63) - 1
MIN_ALLOCATION = 1 << 15
"""Bytes. CPython's own stack of frames grows by half of it."""
WRITE_LOCKS = "write_locks"
"""How notes name the locks that a worker always held, or had requested, as it wrote to a file."""


@kind
@dataclass(frozen=True, slots=True, repr=False)
class DescriptorExhaustion(InWorkers):
    """Workers run out of file descriptors (EMFILE): only ``headroom`` more can be opened.

    The limit is real: RLIMIT_NOFILE is lowered. See getrlimit(2).

    It holds from the worker's first fetch on: open(2), dup(2), shm_open(3) and all other calls that
    need a descriptor fail with EMFILE.
    """

    happens_in: ClassVar = Place.ALLOCATION | Place.FETCH
    effects: ClassVar = Effect.SCARCITY
    operation: ClassVar = "opens"
    errno = _errno.EMFILE
    headroom: int = 0


@kind
@dataclass(frozen=True, slots=True, repr=False)
class SharedMemoryExhaustion(Triggered):
    """Shared memory (/dev/shm) is full when a worker sends a batch (ENOSPC).

    fallocate(2) for the tensors of the batch fails with ENOSPC.

    torch 2.10 and newer reserve the space of each shared tensor with that call.
    """

    happens_in: ClassVar = Place.RESERVATION
    effects: ClassVar = Effect.SCARCITY
    errno = _errno.ENOSPC
    nth: int = 1
    times: int | None = None


@kind
@dataclass(frozen=True, slots=True, repr=False)
class LockError(FailedCall):
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
    effects: ClassVar = Effect.DELAY
    operation: ClassVar = "locks"
    _rules: ClassVar = {
        **FileFault._rules,
        "seconds": allow.optional(
            allow.SECONDS.allows, f"{allow.SECONDS.allowed}, or None until the scope ends"
        ),
    }
    errno: int = _errno.EAGAIN
    seconds: float | None = field(default=None, kw_only=True)

    @property
    def is_held(self) -> bool:
        """Whether another job holds the lock, so that it can be waited for."""
        return self.errno == _errno.EAGAIN


@kind
@dataclass(frozen=True, slots=True, repr=False)
class MemoryExhaustion(Triggered):
    """Allocating ``min_bytes`` or more fails while a worker makes samples.

    Applies to mmap(2), mremap(2) and brk(2), which fail with ENOMEM: Python and NumPy raise
    MemoryError, C++ throws std::bad_alloc, and malloc(3) returns NULL.

    With *sample*, only allocations for the sample with that index fail (iterable datasets: each
    worker's own sample with that number, from 0).

    Smaller allocations, thread stacks, files that are mapped, shared libraries, and what torch
    allocates to send a batch do not fail. What the C library tries instead of an allocation that
    failed belongs to that allocation.
    """

    _rules: ClassVar = {
        **Triggered._rules,
        "min_bytes": allow.ints(
            MIN_ALLOCATION,
            _MOST_BYTES,
            f"an int from {MIN_ALLOCATION} to 2**63 - 1 bytes (the interpreter itself needs smaller"
            " allocations, for example to raise MemoryError)",
        ),
    }
    happens_in: ClassVar = Place.MEMORY | Place.FETCH
    errno = _errno.ENOMEM
    min_bytes: int = _DEFAULT_BYTES
    nth: int = 1
    times: int | None = None
    sample: int | None = field(default=None, kw_only=True)


@kind
@dataclass(frozen=True, slots=True, repr=False)
class ThreadExhaustion(Triggered):
    """No thread and no process can be started (EAGAIN), as at the limit of a container.

    While a worker makes a batch, clone(2), clone3(2), fork(2) and vfork(2) fail with EAGAIN in the
    worker and in processes that it started.

    Python then raises "can't start new thread", or BlockingIOError for a process. Threads of torch
    itself are not affected, and neither is a thread that started before.
    """

    happens_in: ClassVar = Place.START
    operation: ClassVar = "starts"
    errno = _errno.EAGAIN
    nth: int = 1
    times: int | None = None
