"""What the loader's process, its workers and the supervisor say to each other.

The process that iterates the DataLoader has one connection to the supervisor. Each worker has one
of its own, by which it arms itself and then reports what it does.

===================  =====================================================  ==============
From the loader      When                                                   Answer
===================  =====================================================  ==============
``Configure``        first of all                                           ``Ready``
``AwaitingBatch``    the loop is about to wait for a worker's batch, (1)
``ReleaseLoader``    an iterator is about to end its workers
``WaitUntilIdle``    nothing more will be asked of the workers this epoch   ``Idle``
``EndFaults``        no fault may happen in the epochs that follow          ``FaultsEnded``
``DatasetMade``      the process that made the dataset was armed before     ``MadeNoted``
``GetReport``        the counters are wanted, or the scope ends             ``Report``
===================  =====================================================  ==============

===================  =====================================================  ==============
From a worker        When                                                   Answer
===================  =====================================================  ==============
``Hello``            it is armed; a listener, or the end of a hang socket,
                     and descriptors of inherited files come along, unless
                     it is below a filter already                           ``Proceed``
``FetchStarted``     a batch begins                                         ``Proceed``, (1)
``SampleStarted``    a sample begins, if the schedule needs to know         ``Proceed``, (1)
``FetchFinished``    the batch was made, failed, or there are no more
``WorkerIdle``       the worker failed before its first batch
``Counts``           before each message of the python engine
``FaultFired``       the python engine has let a fault happen
``FaultRefused``     a fault is due that the python engine cannot cause
===================  =====================================================  ==============

===================  =====================================================
To the journal       When; only in a trial, whose warden and pytest read it
===================  =====================================================
``WorkerArmed``      a worker has armed itself
``Courses``          the counters were wanted for the last time
``Report``           the supervisor is ended before the loader has asked
===================  =====================================================

(1) Only if something may happen to a worker as a batch or a sample begins (``Plan.needs.fetches``).
The python engine always waits for ``Proceed``: it has to know whether faults can still happen.

Before ``Proceed`` the supervisor may send ``ExitNow``, ``DieWhileSending`` or ``Block``: the worker
does that itself. With ``more``, another ``Proceed`` follows: one message carries only so many
descriptors.
"""

from __future__ import annotations

import array
import errno
import json
import os
import socket
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias, get_args

from pytest_dataloader_faults._engine.plan import Plan
from pytest_dataloader_faults._engine.system.ownership import OwnedDescriptor
from pytest_dataloader_faults._engine.system.temporary import AnonymousFile, SharedCount
from pytest_dataloader_faults.exceptions import InjectionError


class Configure(NamedTuple):
    """Serve *plan* (``Plan.to_dict``); end when the process *driver* dies.

    *folder*: make it for the sockets of workers, and remove it in the end; None: they have one.
    *unlinks*: torch unlinks the name of a segment of shared memory as soon as it is made.
    """

    plan: Mapping[str, Any]
    driver: int
    folder: str | None = None
    unlinks: bool = False


class Ready(NamedTuple):
    """Workers can connect. *no_folder*: why there is none for their sockets; "" if there is."""

    no_folder: str = ""


class AwaitingBatch(NamedTuple):
    """The loop waits for the *nth* batch of *worker* in *epoch*; all but *worker* count from 1."""

    loader: int
    worker: int
    epoch: int
    nth: int


class ReleaseLoader(NamedTuple):
    """No fault may happen in the workers of *loader* from now on, nor keep them waiting."""

    loader: int


class WaitUntilIdle(NamedTuple):
    """Answer once each worker has made the batches that it was *sent*, as (worker, count).

    *patience*: for how many seconds to wait for the others where one hangs and each has begun a
    batch; None for as long as they take. They may wait for the one that hangs, as for its lock.
    """

    loader: int
    epoch: int
    sent: Sequence[tuple[int, int]]
    patience: float | None = None


class Idle(NamedTuple):
    """The workers that have ended: *early*, or after their stream had no more samples."""

    early: Sequence[int] = ()
    in_time: Sequence[int] = ()


class EndFaults(NamedTuple):
    """No fault may happen from now on. Files and workers are followed as before."""


class FaultsEnded(NamedTuple):
    """None can."""


class DatasetMade(NamedTuple):
    """What fires in the sender from now on does not fire while it makes the dataset."""


class MadeNoted(NamedTuple):
    """It is noted."""


class GetReport(NamedTuple):
    """Report; with *finish*, no fault may happen from now on."""

    finish: bool


class Report(NamedTuple):
    """What each worker did and met, what failed in the harness, and what could not be caused."""

    workers: Sequence[Mapping[str, Any]]
    errors: Sequence[str]
    refused: Sequence[str]


class Hello(NamedTuple):
    """A worker arms itself: its id, the number of its loader's iterator, its process.

    *worker* is None for the process that drives the loader, where that is armed before it makes the
    dataset. *inherited*: the descriptors that it has of files that matter, with their paths.
    *mapped*: the paths of such files in its memory. *high_fds*: the numbers that tracked files may
    get. *joins*: it was started by such a process, whose filter it is under.
    """

    worker: int | None
    loader: int
    pid: int
    engine: str
    inherited: Sequence[tuple[int, str]] = ()
    mapped: Sequence[str] = ()
    high_fds: tuple[int, int] = (0, 0)
    joins: bool = False


class FetchStarted(NamedTuple):
    """The *nth* batch of *epoch* begins; *time* is that of the worker, as all times are."""

    epoch: int
    nth: int
    time: float


class SampleStarted(NamedTuple):
    """The sample at index *sample* begins, None if its index is no number.

    Unless *alone*, others are made along with it, or the number is not all of its index.
    """

    sample: int | None
    alone: bool


class FetchFinished(NamedTuple):
    """The *nth* batch is over; *ended*: the dataset has no more.

    *settings*: those of libraries that are on in the worker, by their full names.
    """

    nth: int
    ended: bool
    settings: Sequence[str] = ()


class WorkerIdle(NamedTuple):
    """No batch will ever begin."""


class Counts(NamedTuple):
    """Counters of the python engine; *files* are those that changed, *reached* is by fault.

    *opened*: when files were opened since the last counts; of many, some are *omitted*: by kind,
    how many, and the time of the last one before them.
    """

    files: Mapping[str, Sequence[int]]
    unobserved: Mapping[str, int]
    reached: Sequence[int]
    connections: Mapping[str, int]
    opened: Sequence[tuple[float, str, str]] = ()
    omitted: Mapping[str, tuple[int, float]] | None = None


class FaultFired(NamedTuple):
    """The *fault* with this index happened to *call*; *kind* is a ``FiringKind``."""

    fault: int
    pid: int
    call: str
    path: str | None
    fetch: int
    time: float
    kind: str


class FaultRefused(NamedTuple):
    """Why a fault that is due cannot happen."""

    reason: str


class WorkerArmed(NamedTuple):
    """The process *pid* is followed, from the time *at* on."""

    pid: int
    at: float


class Course(NamedTuple):
    """What happened when in the process *pid* of *worker*.

    *gone*: when it ended, None if it has not; *early*: while faults could happen there. *moments*
    have a time, a kind and a text. Of many some are *omitted*: by kind, how many, and the time of
    the last one before them. *unnoted*: how many faults were only counted.
    """

    worker: int | None
    pid: int
    gone: float | None
    early: bool
    moments: Sequence[tuple[float, str, str]]
    omitted: Mapping[str, tuple[int, float]]
    unnoted: int


class Courses(NamedTuple):
    """Those of all workers."""

    workers: Sequence[Course]


class Proceed(NamedTuple):
    """Do this to your own descriptors and mappings, then go on.

    The second number of each pair is an index among the descriptors that come along. The first one
    is a descriptor to *replace*, or an index in ``Hello.mapped`` to *remap*. *armed*: whether the
    worker is still followed. *over*: whether faults have ended.
    """

    armed: bool
    over: bool
    close: Sequence[int] = ()
    replace: Sequence[tuple[int, int]] = ()
    remap: Sequence[tuple[int, int]] = ()
    more: bool = False


class ExitNow(NamedTuple):
    """Exit with this status."""

    code: int


class DieWhileSending(NamedTuple):
    """Die by this signal halfway through the next batch that is sent to the loader."""

    signal: int


class Block(NamedTuple):
    """Wait for ``Proceed``, which comes when the loader gives up; *hold_gil*: in every thread."""

    hold_gil: bool


FromLoader: TypeAlias = (
    Configure | AwaitingBatch | ReleaseLoader | WaitUntilIdle | EndFaults | DatasetMade | GetReport
)
ToLoader: TypeAlias = Ready | Idle | FaultsEnded | MadeNoted | Report
OfFetches: TypeAlias = FetchStarted | SampleStarted | FetchFinished | WorkerIdle
FromWorker: TypeAlias = Hello | OfFetches | Counts | FaultFired | FaultRefused
ToJournal: TypeAlias = WorkerArmed | Courses | Report
Task: TypeAlias = ExitNow | DieWhileSending | Block
Message: TypeAlias = FromLoader | ToLoader | FromWorker | Proceed | Task
KINDS: dict[str, type[Any]] = {kind.__name__: kind for kind in get_args(Message)}


class UnknownMessageError(InjectionError):
    """What came is no message, or none that its receiver knows."""


def encode(message: Message | ToJournal) -> bytes:
    """*message* as JSON that names its type."""
    return json.dumps({"type": type(message).__name__, **message._asdict()}).encode()


def decode(text: bytes) -> Message:
    """The message that ``encode`` made *text* from, with tuples for sequences."""
    try:
        data = _with_tuples(json.loads(text))
        message: Message = KINDS[data.pop("type")](**data)
    except (AttributeError, KeyError, RecursionError, TypeError, ValueError) as error:
        raise UnknownMessageError(f"{text[:200]!r} is no message: {error!r}") from error
    return message


def _with_tuples(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _with_tuples(each) for key, each in value.items()}
    return tuple(map(_with_tuples, value)) if isinstance(value, list) else value


# Some facts about a connection. A message is JSON behind its length, with descriptors attached.
# Only recvmsg(2) and sendmsg(2) are called, neither of which the filter hands over. The supervisor
# must never wait for the rest of a message: the thread that sends it may be waiting for the
# interpreter lock, and the thread that holds that lock for an open(2) which the supervisor has yet
# to answer. So it takes what has come, with ``ready``, and looks again when there is more.


_HEADER = struct.Struct("=II")
"""How long the text is, and how many descriptors go with it."""
_CHUNK = 1 << 16
_MAX_DESCRIPTORS = 64
_SPACE = socket.CMSG_SPACE(_MAX_DESCRIPTORS * array.array("i").itemsize)
_BACKLOG = 128
_PRINTED_SHOWN = 4000
"""Bytes: a traceback, and the lines before it."""


class Channel:
    """One end of a connection. Reading from a closed one raises EOFError."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self._owned = OwnedDescriptor(connection.fileno())
        self._bytes = bytearray()
        self._descriptors: list[int] = []

    def fileno(self) -> int:
        """For polling."""
        return self.connection.fileno()

    def require(self) -> None:
        """Raise ClosedByUserError if the user's code has closed this end of the connection."""
        self._owned.require()

    def send(self, message: Message, descriptors: Sequence[int] = ()) -> None:
        """Send *message*; the other side gets duplicates of *descriptors*."""
        body = encode(message)
        data = memoryview(_HEADER.pack(len(body), len(descriptors)) + body)
        rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))
        attached = [rights] if descriptors else []
        self.require()
        while data:
            data = data[self.connection.sendmsg([data], attached) :]
            attached = []

    def receive(self) -> tuple[Message, list[int]]:
        """Wait for the next message, and the descriptors that came with it."""
        while (message := self._next()) is None:
            self._take()
        return message

    def ready(self) -> list[tuple[Message, list[int]]]:
        """The messages that are there, after one look at the connection."""
        self._take()
        return list(iter(self._next, None))

    def _take(self) -> None:
        self.require()
        data, control, flags, _ = self.connection.recvmsg(_CHUNK, _SPACE, socket.MSG_CMSG_CLOEXEC)
        if not data:
            raise EOFError
        self._bytes += data
        came = [each for _, _, numbers in control for each in array.array("i", numbers)]
        self._descriptors += came
        if flags & socket.MSG_CTRUNC:  # There were too many, or there is no number for them.
            if len(came) >= _MAX_DESCRIPTORS:
                raise ValueError(f"more than {_MAX_DESCRIPTORS} descriptors came at once")
            raise OSError(errno.EMFILE, "descriptors that came with a message were lost")

    def _next(self) -> tuple[Message, list[int]] | None:
        if len(self._bytes) < _HEADER.size:
            return None
        length, count = _HEADER.unpack_from(self._bytes)
        end = _HEADER.size + length
        if len(self._bytes) < end:
            return None
        body, self._bytes = self._bytes[_HEADER.size : end], self._bytes[end:]
        message = decode(bytes(body))
        descriptors, self._descriptors = self._descriptors[:count], self._descriptors[count:]
        return message, descriptors

    @property
    def incomplete(self) -> tuple[int, int]:
        """How many bytes, and how many descriptors, have come of a message that is not whole."""
        return len(self._bytes), len(self._descriptors)

    def close(self) -> None:
        """Hang up."""
        while self._descriptors:
            os.close(self._descriptors.pop())
        if not self._owned.is_open:
            self.connection.detach()  # The number is not ours to close.
        self.connection.close()


@dataclass(frozen=True)
class WorkerConfig:
    """Where the supervisor is, and what is asked for. Picklable, for spawn and forkserver.

    *folder*: for the sockets by which workers pass tensors on; None in a trial, which has one.
    *armed*: the process that drives the loader, if it is under the filter itself.
    """

    address: str
    supervisor: int
    plan: Plan
    engine: str
    stacks: str | None = None
    folder: str | None = None
    armed: int | None = None

    def connect(self) -> Channel:
        """A connection to the supervisor."""
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        connection.connect(f"\0{self.address}")
        return Channel(connection)


@dataclass(frozen=True)
class SupervisorHandle:
    """A supervisor that waits for ``Configure``, and the name of its listening socket.

    *printed*: its standard output and error. *given*: how many bytes it has read for workers, if it
    is a trial's.
    """

    pid: int
    control: Channel
    address: str
    printed: AnonymousFile
    given: SharedCount | None = None

    def what_it_printed(self) -> str:
        """A sentence with the end of it, to go after another one; empty if there is nothing."""
        text = self.printed.text(_PRINTED_SHOWN).strip()
        return text and f" The supervisor printed:\n{text}\n"


def listening_socket() -> tuple[socket.socket, str]:
    """A socket that workers will connect to, and its name in the abstract namespace."""
    address = f"pytest-dataloader-faults-{os.getpid()}-{os.urandom(8).hex()}"
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listening.bind(f"\0{address}")
    listening.listen(_BACKLOG)
    return listening, address
