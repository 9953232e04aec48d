"""Faults of workers, and of what they share.

``Fault`` documents the attributes of each kind.
"""

from __future__ import annotations

import errno as _errno
import signal as _signal
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from pytest_dataloader_faults import _arguments as allow
from pytest_dataloader_faults.faults.base import (
    FEW,
    Effect,
    Fault,
    Globs,
    InWorkers,
    Place,
    Triggered,
    is_globs,
    kind,
)
from pytest_dataloader_faults.faults.writes import (
    NOT_WRITTEN,
    NOTHING_WRITTEN,
)

_DEADLY = "KILL SEGV BUS TERM ABRT"


@kind
@dataclass(frozen=True, slots=True, repr=False)
class DescriptorExhaustion(InWorkers):
    """Workers run out of file descriptors (EMFILE): only ``headroom`` more can be opened.

    The limit is real: RLIMIT_NOFILE is lowered. See getrlimit(2).

    It holds from the worker's first fetch on: open(2), dup(2), shm_open(3) and all other calls that
    need a descriptor fail with EMFILE.
    """

    happens_in: ClassVar = Place.ALLOCATION | Place.FETCH
    effects: ClassVar = Effect.ERROR | Effect.SCARCITY
    needs_worker: ClassVar = True
    operation: ClassVar = "opens"
    is_survivable: ClassVar = True
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
    effects: ClassVar = Effect.ERROR | Effect.SCARCITY
    needs_worker: ClassVar = True
    unseen_in_fake_files: ClassVar = "torch reserves shared memory in C++"
    drawn: ClassVar = {"times": (None, *FEW)}
    errno = _errno.ENOSPC
    nth: int = 1
    times: int | None = None


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
    in_words: ClassVar = "a worker was killed"
    drawn: ClassVar = {
        "signal": tuple(int(getattr(_signal, f"SIG{name}")) for name in _DEADLY.split())
    }
    is_survivable: ClassVar = True
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

    @property
    def counted_as(self) -> str:
        """What it interrupts, as far as that is counted."""
        return "writes" if self.writing else ""

    def explain_unmatched(self, counts: Mapping[str, int]) -> str:
        """Without a write, it has no time to die in one."""
        return NOTHING_WRITTEN if self.writing and not counts else ""

    @property
    def unseen_in_fake_files(self) -> str:
        """Why it cannot happen to a file of pyfakefs."""
        return "no read or write of it takes any time" if self.reading or self.writing else ""

    def message_patterns(self, _call: str) -> tuple[str, ...]:
        """What a message contains if it says that a file is incomplete."""
        return (NOT_WRITTEN,) if self.writing else ()

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
    in_words: ClassVar = "a worker exited"
    drawn: ClassVar = {"code": (1, 2, 255)}  # Of 0, torch notices only after 5 s.
    is_survivable: ClassVar = True
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
    in_words: ClassVar = "a worker hung"
    at: int = 1
    worker: int | None = 0
    sample: int | None = None
