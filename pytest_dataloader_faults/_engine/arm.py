"""Arm this process: its filter, its reports, and the orders that it obeys [runs in the worker]."""

from __future__ import annotations

import atexit
import contextlib
import faulthandler
import functools
import gc
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from multiprocessing.connection import Connection
from typing import Any

import torch
from torch._utils import ExceptionWrapper
from torch.multiprocessing import get_sharing_strategy
from torch.utils.data._utils import worker as torch_worker

from pytest_dataloader_faults._engine import fetch_hooks, protocol
from pytest_dataloader_faults._engine.c_library import (
    LargeAllocations,
    reserve_memory,
    use_sockets_unseen,
)
from pytest_dataloader_faults._engine.kernel import calls, linux
from pytest_dataloader_faults._engine.plan import FaultPlan
from pytest_dataloader_faults._engine.protocol import Channel, Hello, Proceed, WorkerConfig, packed
from pytest_dataloader_faults._engine.system import proc
from pytest_dataloader_faults._engine.system.libc import Prctl, leave_no_core, prctl
from pytest_dataloader_faults._engine.system.processes import Patience, write_on_signal
from pytest_dataloader_faults.exceptions import DataLoaderFaultsError, HarnessError
from pytest_dataloader_faults.faults import Fault, WorkerKilled
from pytest_dataloader_faults.faults.base import Place
from pytest_dataloader_faults.faults.globs import GlobMatcher
from pytest_dataloader_faults.outcomes.chains import note_origin
from pytest_dataloader_faults.outcomes.libraries import SETTINGS

# Some facts about torch's queue of results. All workers of a loader write to one pipe, each from a
# thread that takes a lock that lies in shared memory for as long as it writes
# (multiprocessing/queues.py, ``_feed``). A worker that dies with it leaves half a message in the
# pipe, and a lock that stays locked: other workers cannot pass anything from then on. So the loader
# must give up at once, which it does, by the signal of its child's death. A worker from a fork
# server is not a child of the loader: there torch waits forever.


class WorkerSession(fetch_hooks.FetchListener):
    """This process, with faults."""

    def __init__(
        self, channel: Channel, *, waits: bool, allocations: LargeAllocations | None = None
    ) -> None:
        """*allocations*: what makes allocations reach the kernel, if one may fail."""
        self._channel = channel
        self._waits = waits
        self._allocations = allocations
        self._process = os.getpid()
        self._epoch = self._fetch = 0

    def restart(self) -> None:
        self._epoch += 1
        self._fetch = 0

    def begin(self) -> None:
        self._fetch += 1
        if self._allocations and self._is_here:
            self._allocations.prepare(self._send)
        feeders = [each.native_id for each in queue_threads() if each.native_id is not None]
        self._send(protocol.FetchStarted(self._epoch, self._fetch, feeders))
        self._wait_to_proceed()

    def begin_sample(self, sample: int | None, *, alone: bool) -> None:
        """A sample starts. Nothing is due at one whose index is not a number."""
        self._send(protocol.SampleStarted(sample, alone))
        if sample is not None:
            self._wait_to_proceed()

    def end(self, *, ended: bool) -> None:
        self._send(protocol.FetchFinished(self._fetch, ended, _settings()))

    def idle(self) -> None:
        self._send(protocol.WorkerIdle())

    @property
    def _is_here(self) -> bool:
        """Whether this is the process that was armed, instead of one forked from it."""
        return os.getpid() == self._process

    def _send(self, message: protocol.FromWorker) -> None:
        if self._is_here:
            self._channel.send(message)

    def _wait_to_proceed(self) -> None:
        """Wait until the supervisor lets it proceed, if something may happen here."""
        if not (self._waits and self._is_here):
            return
        orders, descriptors = self._channel.receive()
        apply_orders(orders, descriptors)
        if self._allocations and (orders.over or not orders.armed):
            self._allocations.end()
            self._allocations = None


def queue_threads() -> list[threading.Thread]:
    """The threads of this process that feed queues (multiprocessing/queues.py)."""
    return [each for each in threading.enumerate() if each.name == "QueueFeederThread"]


def _settings() -> list[str]:
    """The settings of libraries to accept files that are bad, as far as they are on here."""
    return [setting for setting in SETTINGS if _is_on(*setting.rpartition(".")[::2])]


def _is_on(module: str, name: str) -> bool:
    return bool(getattr(sys.modules.get(module), name, False))


def apply_orders(
    orders: protocol.Proceed, descriptors: list[int], mapped: Sequence[proc.MemoryMapping] = ()
) -> None:
    """Obey *orders*, which contain *descriptors*. *mapped*: the mappings that may be replaced."""
    fresh = iter(descriptors)
    for what, number in orders.orders:
        if what == protocol.CLOSE:
            os.close(number)
        elif what == protocol.EXIT:
            os._exit(number)
        elif what == protocol.DIE:
            die_sending(number)
        elif what == protocol.REPLACE:
            _replace(number, next(fresh))
        else:
            old = mapped[number]
            linux.map_over(old.start, old.length, old.protection, next(fresh), old.offset)
    for fd in descriptors:
        os.close(fd)


def _replace(fd: int, source: int) -> None:
    """Put the file *source*, opened separately and at the same offset, under the number *fd*."""
    offset = os.lseek(fd, 0, os.SEEK_CUR)
    fresh = os.open(f"/proc/self/fd/{source}", os.O_RDONLY | os.O_CLOEXEC)
    os.lseek(fresh, offset, os.SEEK_SET)
    os.dup2(fresh, fd, inheritable=os.get_inheritable(fd))
    os.close(fresh)


def die_sending(number: int) -> None:
    """End this process by signal *number* within the next message that it sends.

    To be called when all that was made before has arrived.
    """

    def send(connection: Any, message: Any) -> None:
        os.write(connection.fileno(), message[: len(message) // 2])
        os.kill(os.getpid(), number)

    Connection._send = send  # type: ignore[attr-defined]


# Some facts about the moment between the filter and the supervisor. From the instruction that
# installs the filter, an open(2) of any thread here waits until the supervisor has the listener. So
# everything that the handover needs is imported and looked up before, and the handover itself opens
# nothing. What it would wait for otherwise is reserved before. Garbage is not collected meanwhile,
# because finalizers may do anything. A listener that stays open here, because the supervisor has
# died meanwhile, would have this process wait for itself; once no process has it, the kernel
# answers ENOSYS.
#
# A tracer, as coverage is, looks up each source file by lstat(2) when code of it first runs. If the
# filter notifies of such calls, that would wait for the handover that it interrupts. So all code of
# the handover has run once before.


_MAX_SENT = 60
"""Descriptors that go along in one message."""


def arm_kernel_session(
    config: WorkerConfig, worker: int | None, loader: int, *, bystander: bool = False
) -> WorkerSession:
    """Filter this process. The supervisor decides what to do with its open files.

    Below a main process that is filtered itself, this process joins that filter, since the kernel
    allows one listener only (EBUSY, see seccomp(2)). *bystander*: no fault fires in this process.
    """
    joins = config.armed is not None and proc.nearest(os.getpid(), [config.armed]) is not None
    globs = () if bystander or (joins and config.shares_files) else config.plan.globs
    matches = GlobMatcher(globs)
    inherited = tuple(proc.inherited_fds(matches)) if globs else ()
    mapped = list(proc.inherited_mappings(matches)) if globs else []
    hello = Hello(
        worker,
        loader,
        os.getpid(),
        inherited=inherited,
        mapped=tuple(each.path for each in mapped),
        joins=joins,
        tree=config.tree,
        workers=config.workers,
        bystander=bystander,
    )
    needs = config.plan.needs
    sent = [fd for fd, _path in inherited[:_MAX_SENT]] if Place.READ in needs.places else []
    config.door.require_open()
    channel, other_end = Channel.pair()
    attached = [other_end.fileno(), *sent]
    if joins:
        config.door.channel.send(hello, attached)
    else:
        _hand_over(config, hello, attached)
    other_end.close()
    has_more = True
    while has_more:
        orders, descriptors = channel.receive()
        assert isinstance(orders, Proceed)
        apply_orders(orders, descriptors, mapped)
        has_more = orders.has_more
    use_sockets_unseen()
    has_limits = needs.memory and worker is not None
    allocations = LargeAllocations(needs.memory) if has_limits else None
    return WorkerSession(channel, waits=needs.fetches, allocations=allocations)


def _hand_over(config: WorkerConfig, hello: Hello, attached: list[int]) -> None:
    needs = config.needs
    if hello.worker is None:
        _block_signals_in_forks()
    program = calls.program(
        linux.SYSCALLS[linux.MACHINE], linux.ARCHITECTURES[linux.MACHINE], needs
    )
    door = config.door.channel
    with packed(hello, attached) as (packet, descriptors):
        if needs.memory:  # Each allocation that needs a call would wait.
            reserve_memory()
        with _pause_collection():
            listener = linux.filter_and_send(
                program, config.supervisor, door.connection, packet, descriptors
            )
            os.close(listener)


def _block_signals_in_forks() -> None:
    """Let no signal interrupt fork(2) while it waits for the supervisor, as each dead worker's."""
    masks: list[Iterable[int]] = []

    def block() -> None:
        masks.append(signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals()))

    def restore() -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, masks.pop())

    os.register_at_fork(before=block, after_in_parent=restore, after_in_child=restore)


@contextlib.contextmanager
def _pause_collection() -> Iterator[None]:
    is_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if is_enabled:
            gc.enable()


# Some facts about the end of a spawned worker. It finalizes its interpreter, which a forked one
# does not. torch leaves the thread that feeds its queue running (``cancel_join_thread`` in
# torch/utils/data/_utils/worker.py), and a thread that wants the GIL back once finalization has
# started is unwound. If that happens in torch's C++, as while a tensor is shared, the process
# aborts ("terminate called without an active exception") and the loader reports a death that no
# dataset caused: once in 200 epochs that the loop leaves, nearly always with many tensors.


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
    fetch_hooks.observe_fetches(session, samples=plan.needs.samples, seed=plan.seeded)


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
        with fetch_hooks.idle_after_error(session):
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
        fetch_hooks.seed_samples(seed)
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
