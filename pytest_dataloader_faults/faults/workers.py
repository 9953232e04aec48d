"""Faults of workers: one dies, exits or hangs. ``Fault`` documents the attributes."""

from __future__ import annotations

import signal as _signal
from dataclasses import dataclass
from typing import ClassVar

from pytest_dataloader_faults import _arguments as allow
from pytest_dataloader_faults.faults.base import Effect, Fault, Globs, Place, is_globs, kind


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
