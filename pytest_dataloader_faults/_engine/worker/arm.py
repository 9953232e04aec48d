"""Arm this process, by the engine that was chosen [runs in the DataLoader worker].

Some facts about the end of a spawned worker. It finalizes its interpreter, which a forked one does
not. torch leaves the thread that feeds its queue running (``cancel_join_thread`` in
torch/utils/data/_utils/worker.py), and a thread that wants the interpreter lock back once
finalization has begun is unwound. Where that happens in torch's C++, as while a tensor is shared,
the process aborts ("terminate called without an active exception") and the loader reports a death
that no dataset caused: once in 200 epochs that end early, nearly always with many tensors.
"""

from __future__ import annotations

import atexit
import os
import threading
from collections.abc import Callable

from pytest_dataloader_faults._engine.protocol import WorkerConfig
from pytest_dataloader_faults._engine.worker.fetch_hooks import announce_fetches, idle_after_error
from pytest_dataloader_faults._engine.worker.session import WorkerSession
from pytest_dataloader_faults.exceptions import DataLoaderFaultsError, InjectionError

_FEEDER_SECONDS = 1.0
"""Past this it waits for the loader to read, which is no C++ of torch's, so it may be unwound."""


def way_of(engine: str) -> Callable[[WorkerConfig, int, int], WorkerSession]:
    """How *engine* arms. Asked before the fork, too: a worker should not have to import it."""
    if engine == "python":
        from pytest_dataloader_faults._engine.worker.python_session import arm as arm_by
    else:
        from pytest_dataloader_faults._engine.worker.kernel_session import arm as arm_by
    return arm_by


def arm(posting: WorkerConfig, worker: int, loader: int) -> WorkerSession:
    """Have the faults of *posting* befall this process from now on."""
    armed = way_of(posting.engine)(posting, worker, loader)
    plan = posting.plan
    announce_fetches(armed, samples=plan.needs.samples, seed=plan.seeded)
    return armed


class ArmWorker:
    """A ``worker_init_fn`` that arms its worker and then runs the user's own."""

    def __init__(
        self, posting: WorkerConfig, loader: int, then: Callable[[int], object] | None
    ) -> None:
        self._posting = posting
        self._loader = loader
        self._then = then

    def __call__(self, worker: int) -> None:
        """Run in the worker, before it makes its first sample."""
        if self._posting.stacks is not None:
            _dump_stacks_on_signal(self._posting.stacks)
        atexit.register(_let_feeders_end)
        try:
            armed = arm(self._posting, worker, self._loader)
        except DataLoaderFaultsError:
            raise
        except Exception as error:
            message = f"worker {worker} could not be put under faults: {error!r}"
            raise InjectionError(message) from error
        with idle_after_error(armed):
            if self._then is not None:
                self._then(worker)


def _let_feeders_end() -> None:
    """Give the threads that feed queues (multiprocessing/queues.py) the time to end."""
    for thread in threading.enumerate():
        if thread.name == "QueueFeederThread":
            thread.join(_FEEDER_SECONDS)


def _dump_stacks_on_signal(path: str) -> None:
    """Have this process write its stacks to *path* when asked by signal, even if it is stuck."""
    import faulthandler

    from pytest_dataloader_faults._engine.processes import STACKS_SIGNAL

    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
    faulthandler.register(STACKS_SIGNAL, file=descriptor, all_threads=True)
