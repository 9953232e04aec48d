"""What a trial writes down, while it runs. Pure but for the file.

The journal is an anonymous file. Each line is an event, as JSON that names its type. Every process
of a trial writes to it at once what it knows, so that it is there if a process dies or hangs. The
warden reads it while the trial runs, and pytest when it is over.

===================  ==============================================  ==========================
The main process     When                                            Who reads it
===================  ==============================================  ==========================
``TrialStarted``     first of all                                    warden, timeline
``LoaderMade``       the factory has returned                        outcome
``FaultsArmed``      a supervisor follows the workers                warden
``PhaseStarted``     the next part of the trial starts               warden, outcome, timeline
``LoaderTime``       from now on the loader's time passes            warden
``HarnessTime``      from now on the trial's own time passes         warden
``MeetingTime``      from now on it waits for other jobs             warden
``Noted``            a fact that only some trials have               outcome
``Kept``             a step has something for a later process        that process
``WorkersStarting``  an iterator has started workers                 warden
``EpochLength``      the sampler says how many batches there are     outcome
``BatchReceived``    the loop has got a batch                        outcome
``PassEnded``        a pass came to its end, was left, or failed     outcome, timeline
``Measured``         each process was measured after an epoch        outcome
``Looked``           what is open and runs was listed                outcome
``FaultsCounted``    the faults' scope has ended                     outcome
``FilesLasting``     where every file was watched: after the epochs  outcome
``ReferenceTaken``   the job was a reference                         reference
``Refused``          the job cannot be done                          pytest, which raises it
``InternalError``    our own code failed; the warden's as well       pytest, which raises it
===================  ==============================================  ==========================

===================  ==============================================  ==========================
The warden           When                                            Who reads it
===================  ==============================================  ==========================
``DeadlineReached``  the loader's time is up                         outcome
``HarnessFailed``    a process of ours was ended or stopped; pytest
                     writes it where that is the warden              pytest, which raises it
``TrialEnded``       last of all                                     outcome, timeline
===================  ==============================================  ==========================

The supervisor writes what ``_engine/protocol.py`` lists under "To the journal".
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple, TypeAlias, TypeVar, get_args

from pytest_dataloader_faults import wire
from pytest_dataloader_faults._engine.protocol import ToJournal
from pytest_dataloader_faults._engine.system.ownership import ClosedByUserError
from pytest_dataloader_faults._engine.system.temporary import AnonymousFile, SharedNote
from pytest_dataloader_faults.exceptions import (
    DataLoaderFaultsError,
    InvalidArgumentError,
    UnusableDatasetError,
    UnusableEnvironmentError,
)
from pytest_dataloader_faults.outcomes import (
    AtDeadline,
    Batch,
    FaultFacts,
    Footprint,
    Pass,
    Phase,
    Reference,
    Resources,
    WorkerFacts,
)
from pytest_dataloader_faults.outcomes.stages import StateOf
from pytest_dataloader_faults.wire import Note


class TrialStarted(NamedTuple):
    """The process that drives the loader is *pid*."""

    pid: int


class LoaderMade(NamedTuple):
    """What the dataset is, how workers start, and so on: fields of ``LoaderFacts``."""

    kind: str
    start_method: str
    drop_last: bool = False
    state_of: StateOf = StateOf.NONE


class FaultsArmed(NamedTuple):
    """From now on a supervisor has something to report."""


class PhaseStarted(NamedTuple):
    """*phase* starts, at the time *at* of the clock, as all times are."""

    phase: Phase
    at: float


class LoaderTime(NamedTuple):
    """The loader is at work from now on."""

    at: float


class HarnessTime(NamedTuple):
    """The trial's own code is at work from now on."""

    at: float


class MeetingTime(NamedTuple):
    """This process waits for those of other jobs."""

    at: float


class Noted(NamedTuple):
    """One of the notes of an ``Outcome``, such as the state that a loader saved."""

    note: Note


class Kept(NamedTuple):
    """A *text* that a step keeps for the steps of a later process, and its *number*."""

    number: int
    text: str


class WorkersStarting(NamedTuple):
    """The workers *pids*, since *at*; None in a recovery, whose workers are not armed."""

    pids: Sequence[int]
    at: float | None


class EpochLength(NamedTuple):
    """How many batches an epoch has: a field of ``LoaderFacts``."""

    batches: int


class BatchReceived(NamedTuple):
    """The loop has received *batch* in *phase*."""

    phase: Phase
    at: float
    batch: Batch


class PassEnded(NamedTuple):
    """*result*: all of the pass but its batches, which were written when they arrived."""

    at: float
    result: Pass


class Measured(NamedTuple):
    """One footprint for each process of the loader."""

    footprints: Sequence[Footprint]


class Looked(NamedTuple):
    """What the main process has open, and what runs below it."""

    resources: Resources


class FaultsCounted(NamedTuple):
    """The facts in the supervisor's report about the faults, and about each armed process."""

    faults: Sequence[FaultFacts]
    processes: Sequence[WorkerFacts]


class FilesLasting(NamedTuple):
    """The files that workers used and that still exist: a field of an ``Outcome``."""

    lasting_files: Sequence[str]


class ReferenceTaken(NamedTuple):
    """The samples of the dataset."""

    reference: Reference


class Refused(NamedTuple):
    """Which of ``REFUSALS`` it is, by its name, its message, and what it says is lacking."""

    error: str
    why: str
    lacking: str | None
    at: float = 0.0


REFUSALS: Mapping[str, type[DataLoaderFaultsError]] = {
    kind.__name__: kind
    for kind in (InvalidArgumentError, UnusableDatasetError, UnusableEnvironmentError)
}


def refusal(error: DataLoaderFaultsError) -> Refused:
    """The event by which pytest's process raises *error*, which is one of ``REFUSALS``."""
    name = next(name for name, kind in REFUSALS.items() if isinstance(error, kind))
    return Refused(name, str(error), getattr(error, "lacking", None), time.monotonic())


class InternalError(NamedTuple):
    """A traceback, or a sentence."""

    text: str


class DeadlineReached(NamedTuple):
    """What the trial did when its time was up: a field of a ``TrialEnd``."""

    at_deadline: AtDeadline


class HarnessFailed(NamedTuple):
    """What happened to which process of ours, and what the supervisor had printed by then."""

    why: str
    supervisor_printed: str = ""


class TrialEnded(NamedTuple):
    """How it ended: fields of an outcome and its ``TrialEnd``; *began*: when, by the clock."""

    timed_out: bool
    exitcode: int
    duration: float
    began: float


OfLoader: TypeAlias = (
    TrialStarted | LoaderMade | FaultsArmed | PhaseStarted | LoaderTime | HarnessTime | MeetingTime
    | Noted | Kept | WorkersStarting | EpochLength | BatchReceived | PassEnded | Measured | Looked
    | FaultsCounted | FilesLasting
    | ReferenceTaken | Refused | InternalError
)  # fmt: skip
OfWarden: TypeAlias = DeadlineReached | HarnessFailed | TrialEnded
JournalEvent: TypeAlias = OfLoader | OfWarden | ToJournal
AnEvent = TypeVar("AnEvent")
wire.register(*get_args(OfLoader | OfWarden))

_UNWRITABLE = 71
"""The exit status of a process that has lost its journal; the warden reads ``loss``."""


class Journal(AnonymousFile):
    """An append-only list of events that outlives the processes which write it."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self._loss = SharedNote()
        self._is_passed_on = False
        self._is_of_user = False
        """Whether this process was forked by user code, which should not return here."""

    @property
    def loss(self) -> str:
        """Why a process could not write any more, and ended; "" if all could."""
        return self._loss.text

    def close_in_worker(self) -> None:
        """Close it in a process that was just forked, unless that continues the trial."""
        if not self._is_passed_on:
            self._is_of_user = True
            self.close()

    @contextlib.contextmanager
    def passed_on(self) -> Iterator[None]:
        """Leave it open in processes that are forked meanwhile."""
        self._is_passed_on = True
        try:
            yield
        finally:
            self._is_passed_on = False

    def write(self, event: OfLoader | OfWarden) -> None:
        """Append one event on a new line, even after half a line of another one.

        If the user's code has closed the file, its number may be that of a user's file.
        """
        if self._is_of_user:  # An error of the user's code has ended up here.
            os._exit(_UNWRITABLE)
        try:
            self.owned.require()
        except ClosedByUserError as error:
            self._loss.write(str(error))
            os._exit(_UNWRITABLE)
        data = memoryview(b"\n%b\n" % wire.encode(event))
        while data:
            data = data[os.write(self.fd, data) :]

    def events(self) -> list[JournalEvent]:
        """The events in the order written, without half a line of a process that was killed.

        Raises:
            UnknownMessageError: A line is not an event.
        """
        return list(self.of(*get_args(JournalEvent)))

    def of(self, *kinds: type[AnEvent]) -> Iterator[AnEvent]:
        """The events of these *kinds*; the others are not parsed."""
        for line in filter(None, self.text().split("\n")):
            kind = wire.kind_of(line)
            if kind and not issubclass(kind, kinds):
                continue
            with contextlib.suppress(wire.IncompleteMessageError):
                yield wire.decode(line)
