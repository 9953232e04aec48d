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
``GetReport``        the counters are wanted, or the scope ends             ``Report``
===================  =====================================================  ==============

===================  =====================================================  ==============
From a worker        When                                                   Answer
===================  =====================================================  ==============
``Hello``            it is armed; a listener, or the end of a hang socket,
                     and descriptors of inherited files come along          ``Proceed``
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

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias, get_args

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
    """Answer once each worker has made the batches that it was *sent*, as (worker, count)."""

    loader: int
    epoch: int
    sent: Sequence[tuple[int, int]]


class Idle(NamedTuple):
    """The workers that have ended: *early*, or after their stream had no more samples."""

    early: Sequence[int] = ()
    in_time: Sequence[int] = ()


class EndFaults(NamedTuple):
    """No fault may happen from now on. Files and workers are followed as before."""


class FaultsEnded(NamedTuple):
    """None can."""


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

    *inherited*: the descriptors that it has of files that matter, with their paths. *mapped*: the
    paths of such files in its memory. *high_fds*: the numbers that tracked files may get.
    """

    worker: int
    loader: int
    pid: int
    engine: str
    inherited: Sequence[tuple[int, str]] = ()
    mapped: Sequence[str] = ()
    high_fds: tuple[int, int] = (0, 0)


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
    """The *nth* batch is over; *ended*: the dataset has no more."""

    nth: int
    ended: bool


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

    worker: int
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
    Configure | AwaitingBatch | ReleaseLoader | WaitUntilIdle | EndFaults | GetReport
)
ToLoader: TypeAlias = Ready | Idle | FaultsEnded | Report
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
