"""Faults of a worker process itself, and of the resources that it shares with the loader."""

from __future__ import annotations

import errno as _errno
import signal as _signal
from dataclasses import dataclass
from typing import ClassVar

from pytest_dataloader_faults.faults._base import Fault, Globs, InWorkers, Triggered


@dataclass(frozen=True, slots=True, repr=False)
class DescriptorExhaustion(InWorkers):
    """Only *headroom* descriptors are left, by a real, lowered RLIMIT_NOFILE. See getrlimit(2).

    In a worker the limit holds from its first fetch: open(2), dup(2), shm_open(3) and all other
    calls that need a descriptor fail with EMFILE. With *where* ``"loader"`` the limit holds in the
    process that iterates the loader, once its workers run: it cannot receive their batches.
    """

    errno = _errno.EMFILE
    headroom: int = 0
    where: str = "worker"

    def _check_together(self) -> None:
        in_worker = self.where == "worker" or self.workers is None
        self._require("workers", in_worker, "None with where='loader', which concerns no worker")


@dataclass(frozen=True, slots=True, repr=False)
class SharedMemoryExhaustion(Triggered):
    """/dev/shm has no room for the tensors of a batch: fallocate(2) fails with ENOSPC.

    torch 2.10 and newer reserve the space of each shared tensor by that call.
    """

    errno = _errno.ENOSPC
    nth: int = 1
    times: int | None = None


@dataclass(frozen=True, slots=True, repr=False)
class PinMemoryThreadDeath(Fault):
    """The thread that pins the loader's batches fails at the *at*-th one (1-based).

    With *stage* ``"take"`` it fails as it receives the batch from the workers, as if no descriptor
    were left: the thread ends, and the loader notices after 5 s. With ``"pin"`` it fails as it pins
    the batch, as if no page could be locked: the loop gets the error in place of the batch. It
    happens in the loader's process, which needs ``pin_memory=True``, workers and an accelerator.
    """

    at: int = 1
    stage: str = "take"


class InOneWorker(Fault):
    """Base of faults that happen when a worker begins its *at*-th fetch, or a sample."""

    __slots__ = ()
    at: int
    worker: int | None
    sample: int | None

    def _check_together(self) -> None:
        alone = (self.at, self.worker) == (1, 0)
        self._require("sample", self.sample is None or alone, "given without at and worker")


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


@dataclass(frozen=True, slots=True, repr=False)
class WorkerExited(InOneWorker):
    """A worker exits without reporting, by _exit(2) with *code*, at its *at*-th fetch.

    torch notices a code other than 0 at once, and 0 after 5 s (``MP_STATUS_CHECK_INTERVAL``). See
    ``WorkerKilled`` for *worker* and *sample*.
    """

    code: int = 0
    at: int = 1
    worker: int | None = 0
    sample: int | None = None


@dataclass(frozen=True, slots=True, repr=False)
class WorkerHung(InOneWorker):
    """A worker hangs at its *at*-th fetch, and goes on at the end of the scope.

    With *hold_gil* it hangs inside C code that holds the interpreter lock, so that none of its
    threads runs: batches that it had finished are not sent either. See ``WorkerKilled`` for
    *worker* and *sample*.
    """

    hold_gil: bool = False
    at: int = 1
    worker: int | None = 0
    sample: int | None = None
