"""What processes of this package write for each other, and data of other programs. Pure.

A line of a journal is a pickled record. A report is JSON, whose records are dataclasses; each
field has a type that JSON can hold. The records of what faults and workers did are here, too,
because workers, the supervisor, trials and reports pass them on as they are.
"""

from __future__ import annotations

import base64
import functools
import inspect
import io
import pickle
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from types import NoneType
from typing import Annotated, Any, NamedTuple, TypeAlias, get_args, get_origin, get_type_hints

from pytest_dataloader_faults import faults as vocabulary
from pytest_dataloader_faults._arguments import ArgumentRule, StrEnum, ints, is_number
from pytest_dataloader_faults.exceptions import InvalidArgumentError, _format_value, _shorten
from pytest_dataloader_faults.faults import Fault
from pytest_dataloader_faults.faults.base import FiringKind

_LEAF_NAMES = {
    str: "a string",
    int: "an integer",
    float: "a number",
    bool: "true or false",
    NoneType: "null",
}
_LONGEST = 1e9
"""Seconds, about 30 years: sums of such numbers can be computed and formatted."""
Seconds: TypeAlias = Annotated[
    float,
    ArgumentRule(
        lambda value: is_number(value) and 0 <= value <= _LONGEST,
        f"a number of seconds from 0 to {_LONGEST:.0f}",
    ),
]
Count: TypeAlias = Annotated[int, ints(0, (1 << 63) - 1)]
Number: TypeAlias = Annotated[int, ints(1, (1 << 63) - 1)]
"""Types of fields that another program may have filled with any value."""


class Note:
    """Base of facts that only some trials have."""


class MisfitError(InvalidArgumentError):
    """Plain data in which the value at *path* does not have the type of its field."""

    def __init__(self, value: object, allowed: str, path: str = "") -> None:
        self.value, self.allowed, self.path = value, allowed, path
        place = path.removeprefix(".") or "the data"
        super().__init__(f"{place} must be {allowed}, got {_shorten(_format_value(value))}")


def from_json(kind: Any, data: Any, path: str = "") -> Any:
    """Return the *kind* of value that ``to_json`` converted to *data*, which is at *path*.

    ``Annotated[kind, rule]`` restricts the values further. Fields that the classes do not have,
    such as those of a later version, are ignored.

    Raises:
        MisfitError: A value does not have the type that the annotation of its field names.
    """
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is Annotated:
        if not arguments[1].allows(data):
            raise MisfitError(data, arguments[1].allowed, path)
        return from_json(arguments[0], data, path)
    if origin is tuple:
        if not isinstance(data, list | tuple):
            raise MisfitError(data, "a list", path)
        return tuple(
            from_json(arguments[0], each, f"{path}[{place}]") for place, each in enumerate(data)
        )
    if NoneType in arguments:
        return _read_optional(arguments, data, path)
    if kind in _LEAF_NAMES:
        classes = (int, float) if kind is float else (kind,)
        is_flag = isinstance(data, bool)  # It is an int for Python.
        if not isinstance(data, classes) or (is_flag and kind is not bool):
            raise MisfitError(data, _LEAF_NAMES[kind], path)
        return data
    if not isinstance(data, Mapping):
        raise MisfitError(data, "an object", path)
    if origin:
        return {
            key: from_json(arguments[1], each, f"{path}[{_shorten(_format_value(key))}]")
            for key, each in data.items()
        }
    return _read_record(kind, data, path)


def _read_optional(kinds: Sequence[Any], data: Any, path: str) -> Any:
    if data is None:
        return None
    try:
        return from_json(kinds[0], data, path)
    except MisfitError as error:
        if error.path != path:
            raise
        raise MisfitError(data, f"{error.allowed}, or null", path) from None


@functools.cache
def _fields_with_types(kind: Any) -> Mapping[str, tuple[Any, bool]]:
    """The type of each field of *kind*, and whether it has no default."""
    types = get_type_hints(kind, include_extras=True)
    parameters = inspect.signature(kind).parameters.values()
    return {each.name: (types[each.name], each.default is each.empty) for each in parameters}


def _read_record(kind: Any, data: Mapping[str, Any], path: str) -> Any:
    values = {}
    for name, (field_kind, is_required) in _fields_with_types(kind).items():
        if name in data:
            values[name] = from_json(field_kind, data[name], f"{path}.{name}")
        elif is_required:
            raise MisfitError(data, f"an object with {name!r}", path)
    return kind(**values)


def to_json(value: Any) -> Any:
    """*value* as plain data: faults and records as dicts, tuples as lists."""
    if isinstance(value, Fault):
        value = vocabulary.to_dict(value)
    elif hasattr(value, "_asdict"):
        value = value._asdict()
    elif hasattr(value, "__dataclass_fields__"):
        kind = {"type": type(value).__name__} if isinstance(value, Note) else {}
        value = kind | {each.name: getattr(value, each.name) for each in fields(value)}
    if isinstance(value, Mapping):
        return {key: to_json(each) for key, each in value.items()}
    return list(map(to_json, value)) if isinstance(value, (list, tuple)) else value


_OWN_MODULES = "pytest_dataloader_faults."
_PLAIN: dict[type, Callable[[Any], Any]] = {
    str: str.__str__,
    int: int.__int__,
    float: float.__float__,
    tuple: tuple,
}


class _Pickler(pickle.Pickler):
    def reducer_override(self, value: Any) -> Any:
        """Make plain values of those whose classes are not ours, such as ``numpy.str_``."""
        if not type(value).__module__.startswith(_OWN_MODULES):
            for kind, convert in _PLAIN.items():
                if isinstance(value, kind):
                    return kind, (convert(value),)
        return NotImplemented


def pickled(record: object) -> bytes:
    """*record* as a pickle of our own classes, and plain ones: who reads it has no others."""
    buffer = io.BytesIO()
    _Pickler(buffer, pickle.HIGHEST_PROTOCOL).dump(record)
    return buffer.getvalue()


_END = "."
"""Of a whole line."""


def encode(event: object) -> bytes:
    """*event* as a line of a journal, which names its type first; a note is a ``Note``."""
    kind = Note if isinstance(event, Note) else type(event)
    text = base64.b64encode(pickled(event)).decode()
    # It starts on a new line, even after half a line of a process that was killed.
    return f"\n{kind.__name__} {text}{_END}\n".encode()


def decode(text: str, names: Container[str]) -> Iterator[Any]:
    """Yield the events of the types *names* in *text*.

    Half lines are skipped, and what the user's code has written there.
    """
    for line in text.split("\n"):
        name, _, packed = line.partition(" ")
        if name in names and packed.endswith(_END):
            yield pickle.loads(base64.b64decode(packed.removesuffix(_END)))  # noqa: S301


class FiringPlace(StrEnum):
    """Where in the program a fault fired."""

    CONSTRUCTOR = "constructor"
    """In ``make_dataset``."""
    MAIN_PROCESS = "main process"
    """In the process that iterates the loader, after the dataset was created."""
    WORKER = "worker"


@dataclass(frozen=True)
class Firing:
    """One occurrence of a fault.

    Attributes:
        fault: The position of the fault in the schedule, from 0.
        worker: The worker's id; None in the main process.
        pid: The id of the process.
        call: The system call or function (``"read"``, ``"openat"``, ``"mmap"``, ``"write"``, ...).
            Also ``"signal 9"``, ``"exit 3"`` and ``"hang"``.
        path: The file; None if there is none.
        fetch: The batch of that worker, from 1; 0 before the first.
        epoch: The epoch of the trial, from 1; 0 while the dataset is created; None if unknown.
        sample: The index of the sample that was being made, or its position in that worker's
            stream, from 0. None if unknown: under ``inject``, before the first sample, or if
            ``__getitems__`` made several.
        time: By ``time.monotonic()``; None if unknown. Comparisons of facts ignore it.
        kind: What the fault did: fail a call, replace a file or end a process.
        program: The program of the process, such as ``"ffmpeg"``; "" if it is the worker's.
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
    kind: FiringKind = FiringKind.CALL
    program: str = ""

    @property
    def place(self) -> FiringPlace:
        """Where in the program the fault fired."""
        if self.worker is not None:
            return FiringPlace.WORKER
        return FiringPlace.MAIN_PROCESS if self.epoch != 0 else FiringPlace.CONSTRUCTOR


@dataclass(frozen=True)
class FaultFacts:
    """A fault and how often it fired.

    Attributes:
        fault: The fault.
        matched: How many operations matched the fault, whether or not its triggers selected them.
        fired: How many of these operations it hit.
        mentioned: 1 if an exception of the loader mentions it.
        firings: The first 200 occurrences in each worker.
    """

    fault: Fault
    matched: int = 0
    fired: int = 0
    mentioned: int = 0
    firings: tuple[Firing, ...] = ()


class FileCounts(NamedTuple):
    """What a worker did with a file.

    Attributes:
        opens: How often it opened the file.
        reads: How often it read from it; a mapping counts as one read.
        bytes: How many bytes it read with system calls.
        writes: How often it wrote to it.
        longest: Which read was the longest, from 2, as the first is usually of a header; or 0.
        longest_offset: The offset in the file at which that read started, in bytes.
        longest_bytes: How many bytes it read.
        locks: How often it tried to lock the file.
        maps: How many of the reads were mappings.
    """

    opens: int = 0
    reads: int = 0
    bytes: int = 0
    writes: int = 0
    longest: int = 0
    longest_offset: int = 0
    longest_bytes: int = 0
    locks: int = 0
    maps: int = 0


@dataclass(frozen=True)
class WorkerFacts:
    """What one worker process did, or the main process, whose *worker* is None.

    Attributes:
        worker: The worker's id.
        pid: The id of the process.
        fetches: How many batches it started.
        files: What it did to each data file. Under faults, all but opens counts for targets only.
        unobserved: How often it did something whose reads or writes the engine cannot see, by name.
        tallies: By the ``operation`` of faults, how often it did what is not done to a file.
        notes: What only some checks read: by a name, a list for each of some files.
        shared_offset_files: Files that it and another worker read through the same file offset.
        lengthened_files: Files whose truncated copy it extended by writing beyond its end.
        leftover_files: Temporary files and shared memory that it created and did not remove.
        unwritten_files: Files that it opened after another worker had created, but not filled them.
        vain_waits: The file at which it waited for another worker in vain, if none did so before.
        remaining_locks: Files that it opened with O_EXCL, as a lock, and that still exist.
        settings: Settings of libraries, as PIL's ``LOAD_TRUNCATED_IMAGES``, and imported classes.
    """

    worker: int | None
    pid: int
    fetches: int
    files: dict[str, FileCounts]
    unobserved: dict[str, int] = field(default_factory=dict)
    tallies: dict[str, dict[str, int]] = field(default_factory=dict)
    notes: dict[str, dict[str, tuple[str, ...]]] = field(default_factory=dict)
    shared_offset_files: tuple[str, ...] = ()
    lengthened_files: tuple[str, ...] = ()
    leftover_files: tuple[str, ...] = ()
    unwritten_files: tuple[str, ...] = ()
    vain_waits: tuple[str, ...] = ()
    remaining_locks: tuple[str, ...] = ()
    settings: tuple[str, ...] = ()

    def counts_of(self, operation: str) -> Mapping[str, int]:
        """How often it did *operation*, by path: a field of ``FileCounts``, or one of *tallies*."""
        if operation in FileCounts._fields:
            return {path: getattr(each, operation) for path, each in self.files.items()}
        return self.tallies.get(operation, {})

    @property
    def addresses(self) -> tuple[str, ...]:
        """What it used that has an address with a scheme instead of the path of a file."""
        return tuple(path for counts in self.tallies.values() for path in counts if "://" in path)

    @property
    def changed_files(self) -> tuple[str, ...]:
        """The files that it wrote or locked, which other processes may notice."""
        return tuple(path for path, each in self.files.items() if each.writes or each.locks)
