"""The messages among the main process, its workers and the supervisor.

The process that iterates the DataLoader has one connection to the supervisor. All processes that
arm themselves share an end of another one, the door, by which each passes on an end of its own.
There is no address that other processes could connect to.
"""

from __future__ import annotations

import array
import contextlib
import errno
import os
import pickle
import select
import socket
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from multiprocessing import reduction
from typing import Any, NamedTuple, TypeAlias

from pytest_dataloader_faults._engine.fake import FakeTree
from pytest_dataloader_faults._engine.kernel.calls import FilterRequirements
from pytest_dataloader_faults._engine.plan import FaultPlan
from pytest_dataloader_faults._engine.system import temporary
from pytest_dataloader_faults.faults.base import Place
from pytest_dataloader_faults.outcomes.stages import FileChanged, FileCreated, Refusal
from pytest_dataloader_faults.wire import FaultFacts, WorkerFacts, pickled

# Some facts about a connection. Each message is one packet, which arrives whole. So the supervisor
# never waits for the rest of one: the thread that sends it may wait for the GIL, and the thread
# that holds the GIL for the answer to an open(2). Only recvmsg(2) and sendmsg(2) are called, of
# which the filter does not notify.
#
# Messages are pickled, since all these processes run the same version of this package. The
# supervisor must not import anything of the user's, so only values of our own classes, and plain
# ones, are sent.


_LARGEST = 1 << 16
"""Bytes of a packet. A larger message is in a file in memory, the last descriptor of its packet."""
_IN_PACKET, _IN_FILE = b"p", b"f"
_MAX_DESCRIPTORS = 253
"""SCM_MAX_FD, see unix(7)."""
_SPACE = socket.CMSG_SPACE(_MAX_DESCRIPTORS * array.array("i").itemsize)


@contextlib.contextmanager
def packed(message: object, descriptors: Sequence[int] = ()) -> Iterator[tuple[bytes, list[int]]]:
    """The packet of *message*, and the descriptors to attach to it in this scope."""
    data = pickled(message)
    if len(data) < _LARGEST:
        yield _IN_PACKET + data, [*descriptors]
        return
    file = os.memfd_create("dlf-message", os.MFD_CLOEXEC)
    try:
        os.write(file, data)
        yield _IN_FILE, [*descriptors, file]
    finally:
        os.close(file)


class Channel:
    """One end of a connection. Reading from one whose other end is closed raises EOFError."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self._owned = temporary.OwnedDescriptor(connection.fileno())
        self._packet = bytearray(_LARGEST)
        """Made once: a fault may make large allocations fail."""

    @classmethod
    def pair(cls) -> tuple[Channel, Channel]:
        """Both ends of a new connection."""
        one, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        return cls(one), cls(other)

    @classmethod
    def of(cls, descriptor: int) -> Channel:
        """The end that is *descriptor*, which another process has passed on."""
        os.set_inheritable(descriptor, False)
        return cls(socket.socket(fileno=descriptor))

    def fileno(self) -> int:
        """For polling."""
        return self.connection.fileno()

    def require(self) -> None:
        """Raise ClosedByUserError if the user's code has closed this end of the connection."""
        self._owned.require()

    def send(self, message: object, descriptors: Sequence[int] = ()) -> None:
        """Send *message*; the other side gets duplicates of *descriptors*."""
        self.require()
        with packed(message, descriptors) as (packet, attached):
            rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", attached))
            self.connection.sendmsg([packet], [rights] if attached else [])

    def arrived(self) -> Iterator[Any]:
        """The messages that have arrived."""
        with contextlib.suppress(BlockingIOError):
            while True:
                yield self.receive(socket.MSG_DONTWAIT)[0]

    def receive(self, flags: int = 0) -> tuple[Any, list[int]]:
        """Wait for the next message and its descriptors."""
        self.require()
        count, control, flags, _ = self.connection.recvmsg_into(
            [self._packet], _SPACE, socket.MSG_CMSG_CLOEXEC | flags
        )
        if not count:
            raise EOFError
        descriptors = [each for _, _, numbers in control for each in array.array("i", numbers)]
        if flags & socket.MSG_CTRUNC:  # All numbers are in use.
            for each in descriptors:
                os.close(each)
            raise OSError(errno.EMFILE, "descriptors of a message were lost")
        with memoryview(self._packet)[:count] as packet:
            if packet[:1] == _IN_PACKET:
                return pickle.loads(packet[1:]), descriptors  # noqa: S301  # sent by ourselves
        file = descriptors.pop()
        try:
            data = os.pread(file, os.fstat(file).st_size, 0)
        finally:
            os.close(file)
        return pickle.loads(data), descriptors  # noqa: S301  # sent by ourselves

    def close(self) -> None:
        """Close this end, unless its number is another file's by now."""
        if not self._owned.is_open:
            self.connection.detach()
        self.connection.close()


class Door:
    """Where a process introduces itself: it sends ``Hello``, and an end of a connection of its own.

    All processes of a scope that arm themselves have it. Picklable while a process is started by
    spawn or forkserver, which then gets a duplicate.
    """

    def __init__(self, channel: Channel) -> None:
        self.channel = channel

    def __reduce__(self) -> Any:
        return _open_door, (reduction.DupFd(self.channel.fileno()),)

    def require_open(self) -> None:
        """Raise BrokenPipeError if the supervisor does not listen any more: the scope is over."""
        self.channel.require()
        poll = select.poll()
        poll.register(self.channel.fileno(), 0)
        if poll.poll(0):
            raise BrokenPipeError


def _open_door(descriptor: Any) -> Door:
    return Door(Channel.of(descriptor.detach()))


# Which messages there are, when they are sent, and the answers to them.
#
# From the loader
#   Configure        first of all                                            -> Done
#   AwaitingBatch    the loop is about to wait for a worker's batch (1)
#   ReleaseLoader    an iterator is about to end its workers
#   WaitUntilIdle    no more batches are requested in this epoch             -> Idle
#   EndFaults        no fault may happen in the epochs that follow           -> Done
#   DatasetMade      the process that made the dataset was armed before      -> Done
#   GetReport        the counters are wanted, or the scope ends              -> WorkerReports
#
# From a worker
#   Hello            it is armed; by the door, with the listener unless it
#                    joins, an end of its connection, and descriptors of
#                    inherited files                                         -> Proceed
#   FetchStarted     a batch starts                                          -> Proceed (1)
#   SampleStarted    a sample starts, if the schedule needs to know          -> Proceed (1)
#   FetchFinished    the batch was made, failed, or there are no more
#   WorkerIdle       the worker failed before its first batch
#   TakesFreeMemory  it takes the free memory, so that a batch gets its own
#
# To the journal, only in a trial, whose warden and pytest read it
#   WorkerArmed      a worker has armed itself
#   FileCreated      a file was created
#   FileChanged      an older file is changed, in a trial without faults
#   Refusal          a file was not changed, because a fault had fired
#   WorkerReports    the supervisor is ended before the loader requests it
#
# (1) Only if a fault may affect a worker when a batch or a sample starts (Plan.needs.fetches).
#
# With has_more, another Proceed follows: the number of descriptors in a message is limited.


class Configure(NamedTuple):
    """Serve *plan*; end when the process *driver* dies.

    *folder*: make it for the sockets of workers, and remove it in the end; None: they have one.
    *unlinks*: torch unlinks the name of a segment of shared memory as soon as it is made.
    """

    plan: FaultPlan
    driver: int
    folder: str | None = None
    unlinks: bool = False


class Done(NamedTuple):
    """It was done. *no_folder*: why there is none for the sockets of workers; "" if there is."""

    no_folder: str = ""


class AwaitingBatch(NamedTuple):
    """The loop waits for the *nth* batch of *worker* in *epoch*; all but *worker* count from 1."""

    loader: int
    worker: int
    epoch: int
    nth: int


class ReleaseLoader(NamedTuple):
    """Faults must not fire in the workers of *loader* from now on, or keep them waiting."""

    loader: int


class WaitUntilIdle(NamedTuple):
    """Answer once each worker has made the batches that it was *sent*, as (worker, count).

    *patience*: for how many seconds to wait for the others if one hangs and each has started a
    batch; None to wait as long as they take. They may wait for the one that hangs, as for its lock.
    """

    loader: int
    epoch: int
    sent: Sequence[tuple[int, int]]
    patience: float | None = None


class Idle(NamedTuple):
    """The workers that have ended: *early*, or after the last sample of their stream."""

    early: Sequence[int] = ()
    in_time: Sequence[int] = ()


class EndFaults(NamedTuple):
    """No fault may happen from now on. Files and workers are followed as before."""


class DatasetMade(NamedTuple):
    """What fires in the sender from now on does not fire while it makes the dataset."""


class GetReport(NamedTuple):
    """Report; with *finish*, faults must not fire from now on."""

    finish: bool


class WorkerReports(NamedTuple):
    """What faults and workers did, what failed in the harness, and what could not be injected.

    *faults*: in the order of the plan, over all *processes*. The first of those is the loader's
    own, if it was armed before the dataset was created. *kept*: what was refused.
    """

    faults: Sequence[FaultFacts]
    processes: Sequence[WorkerFacts]
    errors: Sequence[str]
    refused: Sequence[str]
    kept: Sequence[Refusal] = ()


class Hello(NamedTuple):
    """A worker arms itself: its id, the number of its loader's iterator, its process.

    *worker* is None for the main process, if that is armed before it makes the dataset.
    *inherited*: the descriptors that it has of files that matter, with their paths. *mapped*: the
    paths of such files in its memory. *joins*: it is under the filter of the main process.
    *workers*: how many its loader has. *bystander*: no fault fires in it. *tree*: the fake
    files that it sees.
    """

    worker: int | None
    loader: int
    pid: int
    tree: FakeTree | None = None
    inherited: Sequence[tuple[int, str]] = ()
    mapped: Sequence[str] = ()
    joins: bool = False
    workers: int = 0
    bystander: bool = False


class FetchStarted(NamedTuple):
    """The *nth* batch of *epoch* starts.

    *queue_threads*: the ids of the threads that feed its queues, of which one is torch's.
    """

    epoch: int
    nth: int
    queue_threads: Sequence[int] = ()


class SampleStarted(NamedTuple):
    """The sample at index *sample* starts, None if its index is not a number.

    Unless *alone*, others are made along with it, or the number is not all of its index.
    """

    sample: int | None
    alone: bool


class FetchFinished(NamedTuple):
    """The *nth* batch is over; *ended*: it was the last one.

    *settings*: those of libraries that are on in the worker, by their full names.
    """

    nth: int
    ended: bool
    settings: Sequence[str] = ()


class WorkerIdle(NamedTuple):
    """The worker will not start a batch."""


class TakesFreeMemory(NamedTuple):
    """Refuse *thread* large allocations until it starts a batch: it keeps what is free from use."""

    thread: int


class WorkerArmed(NamedTuple):
    """The process *pid* is followed, from the time *at* on."""

    pid: int
    at: float


CLOSE, REPLACE, REMAP, EXIT, DIE = "close", "replace", "remap", "exit", "die"
Order: TypeAlias = tuple[str, int]
"""What to do, and a number.

Close or replace this descriptor, remap this one of ``Hello.mapped``, exit with this status, or die
by this signal halfway through the next batch that is sent to the loader.
"""


class Proceed(NamedTuple):
    """Obey these *orders*, then continue.

    For each one to replace or remap, a descriptor is attached, in their order. *armed*: whether the
    worker is still followed. *over*: whether faults have ended.
    """

    armed: bool
    over: bool
    orders: Sequence[Order] = ()
    has_more: bool = False


FromLoader: TypeAlias = (
    Configure | AwaitingBatch | ReleaseLoader | WaitUntilIdle | EndFaults | DatasetMade | GetReport
)
ToLoader: TypeAlias = Done | Idle | WorkerReports
OfFetches: TypeAlias = FetchStarted | SampleStarted | FetchFinished | WorkerIdle
FromWorker: TypeAlias = Hello | OfFetches | TakesFreeMemory
ToJournal: TypeAlias = WorkerArmed | WorkerReports | FileCreated | FileChanged | Refusal


_PRINTED_SHOWN = 4000
"""Bytes: a traceback, and the lines before it."""


@dataclass(frozen=True)
class WorkerConfig:
    """How to reach the supervisor, and what is requested. Picklable, for spawn and forkserver.

    *folder*: for the sockets by which workers pass tensors on; None in a trial, which has one.
    *armed*: the main process, if it is under the filter. *shares_files*: its faults were armed
    before it made the dataset. *workers*: how many the loader has. *tree*: the fake files
    that they see.
    """

    door: Door
    supervisor: int
    plan: FaultPlan
    tree: FakeTree | None = None
    stacks: bool = False
    folder: str | None = None
    armed: int | None = None
    shares_files: bool = False
    workers: int = 0

    @property
    def needs(self) -> FilterRequirements:
        """What the filter must notify of."""
        needs = self.plan.needs
        return needs if self.tree is None else needs.with_places(Place.STAT | Place.CHANGE)


@dataclass(frozen=True)
class SupervisorHandle:
    """A supervisor that waits for ``Configure``, and the door for its workers.

    *printed*: its standard output and error. *bytes_read*: how many bytes it has read for
    workers.
    """

    pid: int
    control: Channel
    door: Door
    printed: temporary.AnonymousFile
    bytes_read: temporary.SharedCount


def describe_output(printed: temporary.AnonymousFile) -> str:
    """A sentence with the end of what a supervisor *printed*, to go after another sentence."""
    text = printed.text(_PRINTED_SHOWN).strip()
    return text and f" The supervisor printed:\n{text}\n"
