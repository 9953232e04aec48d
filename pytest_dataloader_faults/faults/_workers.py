"""Faults of a worker process itself, and of what it shares with the loader."""

from __future__ import annotations

import errno as _errno
import signal as _signal
from dataclasses import dataclass

from pytest_dataloader_faults.faults._base import Fault, Globs, InWorkers, Triggered, as_tuple


@dataclass(frozen=True, slots=True, repr=False)
class DescriptorExhaustion(InWorkers):
    """No descriptor is left but *headroom*, by a real, lowered RLIMIT_NOFILE. See getrlimit(2).

    In the worker it begins with its first fetch: open(2), dup(2), shm_open(3) and all others that
    need a descriptor then fail with EMFILE. With *where* ``"loader"`` it is the process that drives
    the loader, from when its workers have started: it cannot take the batches that they pass.
    """

    errno = _errno.EMFILE
    headroom: int = 0
    where: str = "worker"

    def _check_together(self) -> None:
        in_worker = self.where == "worker" or self.workers is None
        self._require("workers", in_worker, "None with where='loader', which concerns no worker")


@dataclass(frozen=True, slots=True, repr=False)
class SharedMemoryExhaustion(Triggered):
    """There is no room in /dev/shm for the tensors of a batch: fallocate(2) gives ENOSPC.

    torch 2.10 and newer reserve the room of each shared tensor by that call.
    """

    errno = _errno.ENOSPC
    nth: int = 1
    times: int | None = None


@dataclass(frozen=True, slots=True, repr=False)
class PinMemoryThreadDeath(Fault):
    """The thread that pins the loader's batches fails at the *at*-th one (1-based).

    As it takes the batch from the workers (*stage* ``"take"``), as where no descriptor is left for
    it: the thread ends, the loader finds out after 5 s. Or as it pins the batch (``"pin"``), as
    where no page can be locked: the error comes in the batch's place. It befalls the process that
    drives the loader, which needs ``pin_memory=True``, workers and an accelerator.
    """

    at: int = 1
    stage: str = "take"


class InOneWorker(Fault):
    """Base of those that befall a worker when it begins its *at*-th fetch (1-based: batches).

    *worker* is the id of the one; ``None`` means each that gets so far. With *sample* it is instead
    the one that begins the sample of that index (of an iterable dataset: each, at the worker's own
    sample of that place, from 0).
    """

    __slots__ = ()
    at: int
    worker: int | None
    sample: int | None

    def _check_together(self) -> None:
        alone = (self.at, self.worker) == (1, 0)
        self._require("sample", self.sample is None or alone, "given without at and worker")


@dataclass(frozen=True, slots=True, repr=False)
class WorkerKilled(InOneWorker):
    """A worker gets *signal*, and dies by it or (SIGSTOP) stands still, at its *at*-th fetch.

    See ``InOneWorker`` for *worker* and *sample*. One that is stopped goes on at the scope's end.
    With *reading*, globs as of *path*, it is not as that fetch begins but inside the first read of
    such a file from then on; with *sending* as half of what it made has been passed to the loader.
    """

    signal: int = int(_signal.SIGKILL)
    at: int = 1
    worker: int | None = 0
    sample: int | None = None
    reading: Globs | None = None
    sending: bool = False

    def _check_together(self) -> None:
        InOneWorker._check_together(self)
        alone = self.reading is None or self.sample is None
        self._require("reading", alone, "given without sample")
        others = (self.reading, self.sample) == (None, None) and self.signal != _signal.SIGSTOP
        self._require(
            "sending", others or not self.sending, "given without reading, sample and SIGSTOP"
        )

    @property
    def globs(self) -> tuple[str, ...]:
        """*reading* as a tuple."""
        return () if self.reading is None else as_tuple(self.reading)


@dataclass(frozen=True, slots=True, repr=False)
class WorkerExited(InOneWorker):
    """A worker leaves without a word, by _exit(2) with *code*, at its *at*-th fetch.

    torch notices a code other than 0 at once, and 0 after 5 s (``MP_STATUS_CHECK_INTERVAL``).
    """

    code: int = 0
    at: int = 1
    worker: int | None = 0
    sample: int | None = None


@dataclass(frozen=True, slots=True, repr=False)
class WorkerHung(InOneWorker):
    """A worker stops answering at its *at*-th fetch, and goes on at the end of the scope.

    With *hold_gil* it hangs inside C code that keeps the interpreter lock, so that none of its
    threads goes on: batches that it had finished are not passed either.
    """

    hold_gil: bool = False
    at: int = 1
    worker: int | None = 0
    sample: int | None = None
