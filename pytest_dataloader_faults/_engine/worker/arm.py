"""Arm this process [runs in the DataLoader worker].

Some facts about the end of a spawned worker. It finalizes its interpreter, which a forked one does
not. torch leaves the thread that feeds its queue running (``cancel_join_thread`` in
torch/utils/data/_utils/worker.py), and a thread that wants the GIL back once finalization has
started is unwound. If that happens in torch's C++, as while a tensor is shared, the process aborts
("terminate called without an active exception") and the loader reports a death that no dataset
caused: once in 200 epochs that the loop leaves, nearly always with many tensors.
"""

from __future__ import annotations

import atexit
import contextlib
import faulthandler
import functools
import multiprocessing
import os
import signal
import sys
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch._utils import ExceptionWrapper
from torch.multiprocessing import get_sharing_strategy
from torch.utils.data._utils import worker as torch_worker

from pytest_dataloader_faults._engine.plan import FaultPlan
from pytest_dataloader_faults._engine.protocol import WorkerConfig
from pytest_dataloader_faults._engine.system.libc import Prctl, leave_no_core, prctl
from pytest_dataloader_faults._engine.system.processes import Patience
from pytest_dataloader_faults._engine.system.stacks import write_on_signal
from pytest_dataloader_faults._engine.worker.fetch_hooks import (
    idle_after_error,
    observe_fetches,
    seed_samples,
)
from pytest_dataloader_faults._engine.worker.session import (
    WorkerSession,
    arm_kernel_session,
    queue_threads,
)
from pytest_dataloader_faults.exceptions import DataLoaderFaultsError, HarnessError
from pytest_dataloader_faults.faults import Fault, WorkerKilled
from pytest_dataloader_faults.faults.base import Place
from pytest_dataloader_faults.outcomes.chains import note_origin

_FEEDER_SECONDS = 1.0
"""Past this it waits for the loader to read, outside of torch's C++, so it may be unwound."""


def arm_worker(config: WorkerConfig, worker: int, loader: int) -> WorkerSession:
    """Inject the faults of *config* into this process from now on."""
    if config.tree is not None:
        config.tree.enter()
    session = arm_kernel_session(config, worker, loader)
    _let_signals_kill(config.plan.faults)
    leave_no_core()
    observe(session, config.plan)
    return session


def observe(session: WorkerSession, plan: FaultPlan) -> None:
    """Have *session* report the fetches of this process, as *plan* needs it."""
    observe_fetches(session, samples=plan.needs.samples, seed=plan.seeded)


def _let_signals_kill(faults: Iterable[Fault]) -> None:
    """Give back their effect to signals that are ignored, as SIGHUP is under nohup(1).

    Debian's torch ignores SIGHUP by a handler that Python does not know of.
    """
    for fault in faults:
        if isinstance(fault, WorkerKilled):
            handler = signal.getsignal(fault.signal)
            is_hangup = fault.signal == signal.SIGHUP and not callable(handler)
            if is_hangup or handler is signal.SIG_IGN:
                signal.signal(fault.signal, signal.SIG_DFL)


class ArmWorker:
    """A ``worker_init_fn`` that arms its worker and then runs the user's own."""

    def __init__(
        self, config: WorkerConfig, loader: int, init_fn: Callable[[int], object] | None
    ) -> None:
        self._config = config
        self._loader = loader
        self._then = init_fn

    def __call__(self, worker: int) -> None:
        """Run in the worker, before it makes its first sample."""
        end_with_parent(at_once=self._config.folder is None)
        if self._config.stacks:
            write_on_signal()
            _print_stack_of_crash()
        atexit.register(_let_feeders_end)
        _note_origins()
        try:
            session = arm_worker(self._config, worker, self._loader)
        except BrokenPipeError:
            # The scope is over. If the supervisor was killed in it, its end raises for that.
            if self._then is not None:
                self._then(worker)
            return
        except DataLoaderFaultsError:
            raise
        except Exception as error:
            raise HarnessError(
                f"faults could not be armed in worker {worker}: {error!r}"
            ) from error
        self._config.door.channel.close()
        if self._config.folder is not None:  # Nothing has requested another one yet.
            process: Any = multiprocessing.current_process()
            process._config.setdefault("tempdir", self._config.folder)
        with idle_after_error(session):
            if self._then is not None:
                self._then(worker)
        if Place.START in self._config.plan.needs.places:
            _start_manager_of_torch()


def _print_stack_of_crash() -> None:
    """Have a crash print the stack before torch's message.

    torch's handlers of SIGSEGV, SIGBUS and SIGFPE have replaced faulthandler's, which cannot be
    enabled again before they are gone. It prints only the thread that crashes: to walk the frames
    of another one, which runs meanwhile, often ends the process by SIGSEGV instead.
    """
    faulthandler.disable()
    torch._C._set_worker_signal_handlers()
    faulthandler.enable(file=2, all_threads=False)


def _note_origins() -> None:
    """Have each error that this process sends to its loader say in which file it was raised."""
    make: Any = ExceptionWrapper.__init__

    @functools.wraps(make)
    def make_with_origin(self: Any, exc_info: Any = None, where: str = "in background") -> None:
        exc_info = exc_info or sys.exc_info()
        make(self, exc_info, where)
        note_origin(self, exc_info[1])

    ExceptionWrapper.__init__ = make_with_origin  # type: ignore[method-assign]


def _start_manager_of_torch() -> None:
    """Start the process that the sharing strategy file_system needs, if it is the one in use.

    torch starts it when it first shares a tensor, as while it collates a batch. By then, it could
    not be distinguished from a process of the dataset.
    """
    if get_sharing_strategy() == "file_system":  # type: ignore[no-untyped-call]
        with contextlib.suppress(RuntimeError):  # The first batch raises it again.
            torch.UntypedStorage._new_using_filename_cpu(1)


def _let_feeders_end() -> None:
    """Give the threads that feed queues the time to end."""
    for thread in queue_threads():
        # /proc also has a thread under its own id, so its state is not this thread's.
        patience = Patience(_FEEDER_SECONDS, [thread.native_id or 0])
        while thread.is_alive() and not patience.is_over():
            thread.join(0.1)


# Some facts about a worker whose parent dies. torch's worker looks every 5 s whether its parent is
# still the one that it had at first (torch/utils/data/_utils/worker.py, ``ManagerWatchdog``). It
# reads that first one after worker_init_fn has run. A parent that died before is never missed, and
# the worker waits forever for an index: so did 68 of 120 workers of plain torch whose parent was
# killed while they started. PR_SET_PDEATHSIG of prctl(2) ends a worker at once. But it is about the
# thread that forked, and a user may iterate a loader in a thread that ends first; a trial does not.
#
# A worker of a fork server has that server as its parent. The process that wants the worker holds
# the other end of a pipe, which multiprocessing calls a sentinel. Forked workers have such a pipe,
# too, but those that are forked later hold its other end as well.


_ORPHANED = 86
"""The exit status of a worker whose parent is dead, which is not used."""
_OUTSIDE = 0
"""What getppid(2) returns if the parent is in another PID namespace."""


def start_unarmed(seed: int | None, init_fn: Callable[[int], object] | None, worker: int) -> None:
    """As a ``worker_init_fn`` of a trial: seed samples, if there is a *seed*."""
    end_with_parent(at_once=True)
    if seed is not None:
        seed_samples(seed)
    if init_fn is not None:
        init_fn(worker)


def end_with_parent(*, at_once: bool) -> None:
    """Exit if the process that started this one is dead, and end with it.

    *at_once*: by a signal; otherwise torch's loop ends within 5 s.
    """
    parent = os.getppid()
    if at_once:
        prctl(Prctl.SET_PDEATHSIG, signal.SIGKILL)
    if _is_orphaned(parent):
        os._exit(_ORPHANED)
    watchdog = functools.partial(_Watchdog, parent, os.getpid())
    torch_worker.ManagerWatchdog = watchdog  # type: ignore[misc, assignment]


class _Watchdog(torch_worker.ManagerWatchdog):
    def __init__(self, parent: int, process: int) -> None:
        super().__init__()
        if os.getpid() == process:  # Not a worker of a loader that the dataset iterates itself.
            self.manager_pid = parent


def _is_orphaned(parent: int) -> bool:
    started_by = multiprocessing.parent_process()
    if started_by is None:
        return False
    method = getattr(multiprocessing.current_process(), "_start_method", None)
    if (method or multiprocessing.get_start_method()) == "forkserver":
        return not started_by.is_alive()
    return parent not in (started_by.pid, _OUTSIDE)
