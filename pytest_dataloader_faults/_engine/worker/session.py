"""A worker with faults: its reports, and the orders that it obeys [runs in the worker]."""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import sys
import threading
from collections.abc import Iterable, Iterator, Sequence
from multiprocessing.connection import Connection
from typing import Any

from pytest_dataloader_faults._engine import protocol
from pytest_dataloader_faults._engine.kernel import calls, linux
from pytest_dataloader_faults._engine.protocol import Channel, Hello, Proceed, WorkerConfig, packed
from pytest_dataloader_faults._engine.system.proc import (
    MemoryMapping,
    inherited_fds,
    inherited_mappings,
    is_below,
)
from pytest_dataloader_faults._engine.worker.allocations import LargeAllocations, reserve_memory
from pytest_dataloader_faults._engine.worker.fetch_hooks import FetchListener
from pytest_dataloader_faults.faults.base import Place
from pytest_dataloader_faults.faults.globs import GlobMatcher
from pytest_dataloader_faults.outcomes.libraries import SETTINGS

# Some facts about torch's queue of results. All workers of a loader write to one pipe, each from a
# thread that takes a lock that lies in shared memory for as long as it writes
# (multiprocessing/queues.py, ``_feed``). A worker that dies with it leaves half a message in the
# pipe, and a lock that stays locked: other workers cannot pass anything from then on. So the loader
# must give up at once, which it does, by the signal of its child's death. A worker from a fork
# server is not a child of the loader: there torch waits forever.


class WorkerSession(FetchListener):
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
        is_waiting = self._waits and self._is_here
        while is_waiting:
            message, descriptors = self._channel.receive()
            if isinstance(message, protocol.Proceed):
                self._proceed(message, descriptors)
                is_waiting = False
            else:
                _run_task(message)

    def _proceed(self, orders: protocol.Proceed, descriptors: list[int]) -> None:
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
    orders: protocol.Proceed, descriptors: list[int], mapped: Sequence[MemoryMapping] = ()
) -> None:
    """Obey *orders*, which contain *descriptors*. *mapped*: the mappings that may be replaced."""
    fresh = iter(descriptors)
    for what, number in orders.orders:
        if what == protocol.CLOSE:
            os.close(number)
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


def _run_task(task: object) -> None:
    match task:
        case protocol.ExitNow():
            os._exit(task.code)
        case protocol.DieWhileSending():
            die_sending(task.signal)
        case protocol.Block():
            pass


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
    joins = config.armed is not None and is_below(os.getpid(), [config.armed])
    globs = () if bystander or (joins and config.shares_files) else config.plan.globs
    matches = GlobMatcher(globs)
    inherited = tuple(inherited_fds(matches)) if globs else ()
    mapped = list(inherited_mappings(matches)) if globs else []
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
    is_read = Place.READ in config.plan.needs.places
    sent = [fd for fd, _path in inherited[:_MAX_SENT]] if is_read else []
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
    return _session(channel, config, worker)


def _session(channel: Channel, config: WorkerConfig, worker: int | None) -> WorkerSession:
    needs = config.plan.needs
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
            listener, _ = linux.filter_and_send(
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
