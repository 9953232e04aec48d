"""Put this process under a supervisor's filter, permanently [runs in the DataLoader worker].

Some facts about the moment between the filter and the supervisor. From the instruction that
installs the filter, an open(2) of any thread here waits until the supervisor has the listener. So
everything that the handover needs is imported and looked up before, and the handover itself opens
nothing. What it would wait for otherwise is reserved before. Garbage is not collected meanwhile,
because finalizers may do anything. A listener that stays open here, because the supervisor has died
meanwhile, would have this process wait for itself; once no process has it, the kernel answers
ENOSYS.

A tracer, as coverage is, looks up each source file by lstat(2) when code of it first runs. If the
filter notifies of such calls, that would wait for the handover that it interrupts. So all code of
the handover has run once before.
"""

from __future__ import annotations

import contextlib
import gc
import os
import signal
from collections.abc import Iterable, Iterator

from pytest_dataloader_faults._engine.channel import Channel, packed
from pytest_dataloader_faults._engine.kernel import bpf, linux
from pytest_dataloader_faults._engine.protocol import Hello, Proceed, WorkerConfig
from pytest_dataloader_faults._engine.system.proc import inherited_fds, inherited_mappings, is_below
from pytest_dataloader_faults._engine.worker.allocations import LargeAllocations, reserve_memory
from pytest_dataloader_faults._engine.worker.session import WorkerSession, apply_orders
from pytest_dataloader_faults.faults.base import Place
from pytest_dataloader_faults.faults.globs import GlobMatcher

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
        for place, source in orders.remap:
            old = mapped[place]
            linux.map_over(old.start, old.length, old.protection, descriptors[source], old.offset)
        apply_orders(orders, descriptors)
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
    program = bpf.program(linux.SYSCALLS[linux.MACHINE], linux.ARCHITECTURES[linux.MACHINE], needs)
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
