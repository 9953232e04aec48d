"""What a trial writes down, while it runs. Pure but for the file.

The journal is an anonymous file. Each line is an event, as JSON that names its type. Every process
of a trial writes to it at once what it knows, so that it is there if a process dies or hangs. The
warden reads it while the trial runs, and pytest when it is over.

===================  ==============================================  ==========================
The loader's process  When                                            Who reads it
===================  ==============================================  ==========================
``TrialStarted``     first of all                                    warden, timeline
``LoaderMade``       the factory has returned                        outcome
``FaultsArmed``      a supervisor follows the workers                warden
``PhaseStarted``     the next part of the trial begins               warden, outcome, timeline
``LoaderTime``       from now on the loader's time passes            warden
``HarnessTime``      from now on the trial's own time passes         warden
``MeetingTime``      from now on it waits for other ranks            warden
``RanksApart``       ranks met in different epochs                   outcome
``RankAbsent``       a rank did not come to a meeting                outcome
``WorkersStarting``  an iterator has started workers                 warden
``StateSaved``       after a batch: the state of the loader          outcome, a new process
``StateChanged``     the last one has changed since                  outcome
``StateLoaded``      a new process goes on from a state              outcome
``EpochLength``      the sampler says how many batches there are     outcome
``BatchReceived``    the loop has got a batch                        outcome, timeline
``PassEnded``        a pass came to its end, was left, or failed     outcome, timeline
``Measured``         each process was measured after an epoch        outcome
``Looked``           what is open and runs was looked at             outcome
``FaultsCounted``    the faults' scope has ended                     outcome
``FilesLasting``     where every file was watched: after the epochs  outcome
``ReferenceTaken``   the job was a reference                         reference
``Refused``          the job cannot be done                          pytest, which raises it
``SeveralLoaders``   it was handed several loaders or datasets       pytest, which raises it
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

import json
import os
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias, TypeVar, get_args

from pytest_dataloader_faults._engine.protocol import (
    ToJournal,
    UnknownMessageError,
)
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
    Delivery,
    FaultFacts,
    Footprint,
    Pass,
    Phase,
    Reference,
    Resources,
    WorkerFacts,
)
from pytest_dataloader_faults.outcomes.plain import from_json, to_json
from pytest_dataloader_faults.outcomes.stages import Absence, SavedState, StateOf, Step


class TrialStarted(NamedTuple):
    """The process that drives the loader is *pid*."""

    pid: int


class LoaderMade(NamedTuple):
    """What the dataset is, how workers start, and so on: fields of an ``Outcome``."""

    kind: str
    start_method: str
    drop_last: bool = False
    state_of: StateOf = StateOf.NOBODY
    reduced_from: int | None = None


class FaultsArmed(NamedTuple):
    """From now on a supervisor has something to report."""


class PhaseStarted(NamedTuple):
    """*phase* begins, at the time *at* of the clock, as all times are."""

    phase: Phase
    at: float


class LoaderTime(NamedTuple):
    """It is the loader that is at work."""

    at: float


class HarnessTime(NamedTuple):
    """It is the trial's own code that is at work."""

    at: float


class MeetingTime(NamedTuple):
    """This rank waits for the others."""

    at: float


class RanksApart(NamedTuple):
    """Where each rank was when they first met in different epochs: a field of an ``Outcome``."""

    apart: Sequence[Step]


class RankAbsent(NamedTuple):
    """Another rank did not come to a meeting: a field of an ``Outcome``."""

    absence: Absence


class WorkersStarting(NamedTuple):
    """The workers *pids*, since *at*; None in a recovery, whose workers are not armed."""

    pids: Sequence[int]
    at: float | None


class StateSaved(NamedTuple):
    """*pickled*: the state, in base64, if a new process may go on from it."""

    state: SavedState
    pickled: str | None = None


class StateChanged(NamedTuple):
    """The state that was saved last is another one now, although nobody took one since."""

    batches: int


class StateLoaded(NamedTuple):
    """A new process goes on from the state *number*, from 0, of those that were saved."""

    number: int


class EpochLength(NamedTuple):
    """How many batches an epoch has."""

    batches: int


class BatchReceived(NamedTuple):
    """*packed*: what the sampler drew, if that is not the list of its indices."""

    phase: Phase
    at: float
    batch: Delivery
    packed: str | None


class PassEnded(NamedTuple):
    """*found*: all of the pass but its batches, which were written as they came."""

    phase: Phase
    at: float
    found: Pass


class Measured(NamedTuple):
    """One footprint for each process of the loader."""

    footprints: Sequence[Footprint]


class Looked(NamedTuple):
    """What the loader's process has open, and what runs below it."""

    resources: Resources


class FaultsCounted(NamedTuple):
    """What the supervisor's report says of the faults, and of each process that was armed."""

    faults: Sequence[FaultFacts]
    processes: Sequence[WorkerFacts]


class FilesLasting(NamedTuple):
    """Those that workers used and that are still there: a field of an ``Outcome``."""

    lasting_files: Sequence[str]


class ReferenceTaken(NamedTuple):
    """What the dataset gives sample by sample."""

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


class SeveralLoaders(NamedTuple):
    """The message, and the names of the parts."""

    why: str
    parts: Sequence[str]


class InternalError(NamedTuple):
    """A traceback, or a sentence."""

    text: str


class DeadlineReached(NamedTuple):
    """What the trial did when its time was up: a field of an ``Outcome``."""

    at_deadline: AtDeadline


class HarnessFailed(NamedTuple):
    """What happened to which process of ours, and what the supervisor had printed by then."""

    why: str
    supervisor_printed: str = ""


class TrialEnded(NamedTuple):
    """How it ended: fields of an ``Outcome``; *began*: when it began, by the clock."""

    timed_out: bool
    exitcode: int
    duration: float
    began: float


OfLoader: TypeAlias = (
    TrialStarted | LoaderMade | FaultsArmed | PhaseStarted | LoaderTime | HarnessTime | MeetingTime
    | RanksApart | RankAbsent | WorkersStarting | StateSaved | StateChanged | StateLoaded
    | EpochLength | BatchReceived | PassEnded | Measured | Looked | FaultsCounted | FilesLasting
    | ReferenceTaken | Refused | SeveralLoaders | InternalError
)  # fmt: skip
OfWarden: TypeAlias = DeadlineReached | HarnessFailed | TrialEnded
JournalEvent: TypeAlias = OfLoader | OfWarden | ToJournal
AnEvent = TypeVar("AnEvent")
_KINDS: dict[str, type[Any]] = {kind.__name__: kind for kind in get_args(JournalEvent)}
_NAMED = re.compile(r'\{"type": "(\w+)"')
"""How each event begins, so that most lines need not be parsed."""


_UNWRITABLE = 71
"""The exit status of a process that has lost its journal; the warden looks at ``loss``."""


class Journal(AnonymousFile):
    """An append-only list of events that outlives the processes which write it."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self._loss = SharedNote()

    @property
    def loss(self) -> str:
        """Why a process could not write any more, and ended; "" if all could."""
        return self._loss.text

    def write(self, event: OfLoader | OfWarden) -> None:
        """Append one event. It starts a line of its own, also after half a line of another.

        Where the user's code has closed the file, its number may be that of a user's file.
        """
        try:
            self.owned.require()
        except ClosedByUserError as error:
            self._loss.write(str(error))
            os._exit(_UNWRITABLE)
        fields = {name: to_json(value) for name, value in event._asdict().items()}
        line = json.dumps({"type": type(event).__name__, **fields})
        data = memoryview(f"\n{line}\n".encode())
        while data:
            data = data[os.write(self.fd, data) :]

    def events(self) -> list[JournalEvent]:
        """The events in the order written, without half a line of a process that was killed.

        Raises:
            UnknownMessageError: A line is no event.
        """
        return list(self.of(*_KINDS.values()))

    def of(self, *kinds: type[AnEvent]) -> Iterator[AnEvent]:
        """Those of these *kinds*; the others are not looked into."""
        for line in filter(None, self.text().split("\n")):
            kind = _KINDS.get(named[1]) if (named := _NAMED.match(line)) else None
            if kind and not issubclass(kind, kinds):
                continue
            try:
                data = json.loads(line)
            except json.JSONDecodeError:
                continue
            if issubclass(_kind_of(data), kinds):
                yield _decoded(data)


def _kind_of(data: Any) -> type[Any]:
    try:
        return _KINDS[data["type"]]
    except (KeyError, TypeError) as error:
        raise UnknownMessageError(f"{str(data)[:200]!r} is no event of a trial") from error


def _decoded(data: dict[str, Any]) -> Any:
    try:
        return from_json(_kind_of(data), {name: data[name] for name in data if name != "type"})
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise UnknownMessageError(f"{str(data)[:200]!r} is no event: {error!r}") from error
