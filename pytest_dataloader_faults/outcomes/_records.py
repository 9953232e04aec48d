"""What an outcome is made of: faults that happened, batches, workers, resources. Plain data."""

from __future__ import annotations

import functools
import itertools
from dataclasses import dataclass, field, is_dataclass
from typing import Any, NamedTuple, TypeAlias, get_args, get_origin, get_type_hints

from pytest_dataloader_faults import faults as vocabulary
from pytest_dataloader_faults.faults import Fault
from pytest_dataloader_faults.outcomes._at_deadline import Activity
from pytest_dataloader_faults.outcomes._text import signal_name

Leaves: TypeAlias = tuple[tuple[str, str, str], ...]
"""The parts of a sample: for each its path in it, its type and shape, and a digest."""
MANY = 16
"""Values in a part of a sample. Fewer come out the same by accident."""
ZEROS = "all zeros"
"""The digest of this many values that are all zero: a report can say what came."""


@dataclass(frozen=True)
class Firing:
    """One occurrence of a fault.

    Attributes:
        fault: The place of the fault in the schedule, from 0.
        worker: The worker's id; None where it happened in the loader's own process.
        pid: The id of the process.
        call: The system call or function (``"read"``, ``"openat"``, ``"mmap"``, ``"write"``, ...).
            In the pin-memory thread ``"take"`` or ``"pin"``; for a death ``"signal 9"`` or
            ``"exit 3"``.
        path: The file; None if there is none.
        fetch: The batch of that worker, from 1; 0 is before its first one.
        epoch: The epoch of the trial, from 1; None if it is not known.
        sample: The index of the sample that was being made; for a stream, the place of the sample
            among those of that worker, from 0. None if it is not known, as under ``inject`` and
            before the first sample, or if ``__getitems__`` made several.
        time: When it happened, by ``time.monotonic()``; None if that is not known. It takes no
            part when facts are compared.
    """

    fault: int
    worker: int | None
    pid: int
    call: str
    path: str | None
    fetch: int
    epoch: int | None = None
    sample: int | None = None
    time: float | None = field(default=None, compare=False)


@dataclass(frozen=True)
class FaultFacts:
    """A fault and how often it happened.

    Attributes:
        fault: The fault.
        reached: How many operations matched the fault, whether or not its triggers chose them.
        fired: To how many of them it happened.
        surfaced: 1 if an exception of the loader names it.
        firings: The first 200 occurrences of each worker.
    """

    fault: Fault
    reached: int = 0
    fired: int = 0
    surfaced: int = 0
    firings: tuple[Firing, ...] = ()


class FileCounts(NamedTuple):
    """What a worker did with a file.

    Attributes:
        opens: How often it opened the file.
        reads: How often it read from it; a mapping counts as one read.
        bytes: How many bytes it read by system calls.
        writes: How often it wrote to it.
        longest: Which of its reads was the longest, from 2: a file's first read is of its header.
            0 if there is none; a mapping is none.
        longest_offset: Where in the file that read began, in bytes.
        longest_bytes: How many bytes it read.
    """

    opens: int
    reads: int
    bytes: int
    writes: int = 0
    longest: int = 0
    longest_offset: int = 0
    longest_bytes: int = 0


@dataclass(frozen=True)
class WorkerFacts:
    """What one worker process did.

    Attributes:
        worker: Its id.
        pid: The id of the process.
        fetches: How many batches it began.
        files: How often it opened, read and wrote each data file, and how many bytes it read. The
            run without a fault counts all of this. Under faults, reads and bytes are counted of
            files that a fault of reads or of content is about, and writes where a fault is of
            writing.
        unobserved: How often it did something whose reads or writes the engine cannot see, by name.
        connections: How often it made a TCP connection, by path (``"tcp://192.0.2.1:443"``).
        unlimited_waits: Connections for whose hung answer its main thread waited without limit.
        shared_offset_files: Files that it and another worker read through the same file offset.
        leftover_files: Temporary files and shared memory that it made and did not remove.
    """

    worker: int
    pid: int
    fetches: int
    files: dict[str, FileCounts]
    unobserved: dict[str, int] = field(default_factory=dict)
    connections: dict[str, int] = field(default_factory=dict)
    unlimited_waits: tuple[str, ...] = ()
    shared_offset_files: tuple[str, ...] = ()
    leftover_files: tuple[str, ...] = ()


@dataclass(frozen=True)
class Delivery:
    """One batch as the loop over the loader got it.

    Digests are 24 hexadecimal digits of BLAKE2b. Equal digests mean equal content.

    Attributes:
        indices: What the sampler asked for; None where that is not known (iterable datasets).
        rows: A digest per sample, or None where the batch cannot be split into samples. Fewer than
            *indices* where samples are missing.
        digest: Of the whole batch. Where the batch has rows, it is made of their exact digests.
        leaves: The parts of each row, of the first samples of a pass: path, type and shape, and a
            digest, or the value itself where that is shorter, or ``"all zeros"``.
        worker: The worker that made it; None if that is not known.
    """

    indices: tuple[Any, ...] | None
    rows: tuple[str, ...] | None
    digest: str
    leaves: tuple[Leaves, ...] = ()
    worker: int | None = None


@dataclass(frozen=True)
class Raised:
    """An exception that reached the loop.

    Attributes:
        type: The name of its class.
        message: ``str`` of it.
        text: The traceback with its chain of causes, as Python prints it.
        unprintable: The type of the error that ``str`` of it raised; "" if it raised none.

    Of a very long text frames are left out, and the middle of long messages.
    """

    type: str
    message: str
    text: str
    unprintable: str = ""


@dataclass(frozen=True)
class WorkerDeath:
    """A worker that ended before the loader asked for it, and not with status 0.

    Attributes:
        worker: Its id.
        pid: The id of the process.
        exitcode: As of ``multiprocessing.Process``: an exit status, or minus a signal's number.
    """

    worker: int
    pid: int
    exitcode: int

    def __str__(self) -> str:
        if self.exitcode < 0:
            return f"worker {self.worker} was killed by {signal_name(-self.exitcode)}"
        return f"worker {self.worker} exited with status {self.exitcode}"


@dataclass(frozen=True)
class Pass:
    """One pass over a loader: the batches asked for and delivered, and how it ended.

    Attributes:
        drawn: The indices of each batch that was asked for.
        delivered: The batches that the loop got.
        exception: The exception that ended the pass, if one did.
        deaths: The workers that had died when the pass ended.
        complete: Whether the pass came to its end.
    """

    drawn: tuple[tuple[Any, ...], ...] = ()
    delivered: tuple[Delivery, ...] = ()
    exception: Raised | None = None
    complete: bool = False
    deaths: tuple[WorkerDeath, ...] = ()


@dataclass(frozen=True)
class Footprint:
    """What one process of a loader had after an epoch.

    Attributes:
        epoch: The epoch, from 1.
        process: ``"loader"``, or ``"worker 0"``, ...
        memory: Bytes of anonymous memory.
        descriptors: How many are open.
        threads: How many run.
        newly_open: What it has open more often than after the first epoch; "" if nothing.
        pinned: Bytes of pinned memory in use, in the loader's process, as torch counts them.
        device: Bytes in use on the accelerator, likewise.
    """

    epoch: int
    process: str
    memory: int
    descriptors: int
    threads: int
    newly_open: str = ""
    pinned: int = 0
    device: int = 0


@dataclass(frozen=True)
class Event:
    """Something that happened at a known time in a trial.

    Attributes:
        time: Seconds since the trial began.
        process: ``"loader"``, or ``"worker 0"``, ...
        kind: ``"epoch"`` (it begins or ends), ``"fetch"`` (a worker begins a batch), ``"open"``
            (of a data file), ``"fault"``, ``"batch"`` (the loop gets it), ``"error"`` (the loop
            gets it) or ``"exit"`` (a process died).
        text: What happened, on one line.
        omitted: 0, or how many events of this kind are left out here, up to the next of this
            process and kind, or to the end. All else is then about these.
    """

    time: float
    process: str
    kind: str
    text: str
    omitted: int = 0


@dataclass(frozen=True)
class Resources:
    """What the loader's process had open, and its descendants, at one moment.

    Attributes:
        phase: ``"before"`` the first epoch, ``"after"`` the last one, or ``"recovery"``.
        descriptors: The target of each link in /proc/self/fd, by the descriptor's number as text.
        processes: The command line of each descendant that belongs neither to the harness nor to
            multiprocessing, by its pid as text.
    """

    phase: str
    descriptors: dict[str, str]
    processes: dict[str, str]


_field_types = functools.cache(get_type_hints)


def from_json(kind: Any, data: Any) -> Any:
    """The *kind* of value that ``asdict`` and JSON made *data* from.

    They make dicts of dataclasses, and lists of tuples.
    """
    if kind is Fault:
        return vocabulary.from_dict(data)
    if isinstance(kind, type) and is_dataclass(kind):
        types = _field_types(kind)
        return kind(**{name: from_json(types[name], value) for name, value in data.items()})
    inner = get_args(kind)
    if get_origin(kind) is tuple:
        kinds = itertools.repeat(inner[0]) if inner[-1] is Ellipsis else inner
        return tuple(map(from_json, kinds, data))
    if get_origin(kind) is dict:
        return {key: from_json(inner[1], value) for key, value in data.items()}
    if inner:  # A union with None.
        return None if data is None else from_json(inner[0], data)
    if kind is FileCounts:
        data = FileCounts(*data)
    return Activity(data) if kind is Activity else data
