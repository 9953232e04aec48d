"""Records as JSON, and back: one codec for journals and files. Pure.

A record is a dataclass or a named tuple, and each field has a type that JSON can hold. In a
journal, a record is a message: an object that names its type, which ``register`` has
entered. The records of what faults and workers did are here, too, because workers, the supervisor,
trials and reports pass them on as they are.
"""

from __future__ import annotations

import functools
import inspect
import itertools
import json
import operator
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from enum import Enum
from types import NoneType
from typing import Annotated, Any, NamedTuple, TypeAlias, get_args, get_origin, get_type_hints

from pytest_dataloader_faults import faults as vocabulary
from pytest_dataloader_faults._arguments import ArgumentRule, StrEnum, ints, is_number, one_of
from pytest_dataloader_faults.exceptions import (
    HarnessError,
    InvalidArgumentError,
    _format_value,
    _shorten,
)
from pytest_dataloader_faults.faults import Fault
from pytest_dataloader_faults.faults.base import FiringKind

_LEAF_NAMES = {
    str: "a string",
    int: "an integer",
    float: "a number",
    bool: "true or false",
    NoneType: "null",
}
_LEAVES = frozenset(_LEAF_NAMES)
_CLASSES: Mapping[type, tuple[type, ...]] = {float: (int, float)}
"""The classes that JSON has for a leaf, if not only its own."""
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
    """Base of records that JSON names by type, because a field may hold several kinds of them."""


class MisfitError(InvalidArgumentError):
    """Plain data in which the value at *path* does not have the type of its field."""

    def __init__(self, value: object, allowed: str, path: str = "") -> None:
        self.value, self.allowed, self.path = value, allowed, path
        place = path.removeprefix(".") or "the data"
        super().__init__(f"{place} must be {allowed}, got {_shorten(_format_value(value))}")

    def at_step(self, step: str) -> MisfitError:
        """The same error, for data whose part *step* was read."""
        return MisfitError(self.value, self.allowed, step + self.path)


class _Reader(NamedTuple):
    """How to read one kind of value: *read* it, unless its class is among the *plain* ones.

    Values of these are read as they are. To look for the class is twice as quick as a call.
    """

    plain: frozenset[type]
    read: Callable[[Any], Any]


_PLAIN_OF = operator.attrgetter("plain")


def from_json(kind: Any, data: Any, *, ignore_unknown: bool = False) -> Any:
    """Return the *kind* of value that ``to_json`` converted to *data*.

    ``Annotated[kind, Rule(...)]`` restricts the values further. *ignore_unknown*: ignore fields
    that the classes do not have, such as those of a later version.

    Raises:
        MisfitError: A value does not have the type that the annotation of its field names.
    """
    return _reader_of(kind, ignore_unknown).read(data)


@functools.cache
def _reader_of(kind: Any, ignore_unknown: bool) -> _Reader:
    """The reader of a *kind* of value, cached because a run has many thousands of values."""
    if kind is Any:  # Such as an index, which may be a tuple.
        return _Reader(_LEAVES, lambda data: tuple(data) if isinstance(data, list) else data)
    if kind is Fault:
        return _Reader(frozenset(), vocabulary.from_dict)
    if kind in _LEAVES:
        classes = _CLASSES.get(kind, (kind,))
        return _Reader(frozenset(classes), functools.partial(_read_leaf, kind, classes))
    if arguments := get_args(kind):
        return _reader_of_generic(get_origin(kind), arguments, ignore_unknown)
    if issubclass(kind, Enum):
        members = {each.value: each for each in kind}
        return _Reader(frozenset(), functools.partial(_read_member, members))
    read = _read_note if issubclass(kind, Note) else _read_record
    return _Reader(frozenset(), functools.partial(read, kind, ignore_unknown))


def _read_leaf(kind: type, classes: tuple[type, ...], data: Any) -> Any:
    if data.__class__ is not kind:
        is_flag = data.__class__ is bool  # It is an int for Python.
        if is_flag or not isinstance(data, classes):
            raise MisfitError(data, _LEAF_NAMES[kind])
    return data


def _read_member(members: Mapping[Any, Enum], data: Any) -> Enum:
    try:
        return members[data]
    except (KeyError, TypeError):
        raise MisfitError(data, one_of(members).allowed) from None


def _reader_of_generic(origin: Any, arguments: tuple[Any, ...], ignore_unknown: bool) -> _Reader:
    if origin is Annotated:
        return _reader_with_rule(_reader_of(arguments[0], ignore_unknown).read, arguments[1])
    if origin is tuple and arguments[-1] is not Ellipsis:
        readers = [_reader_of(each, ignore_unknown) for each in arguments]
        return _Reader(frozenset(), functools.partial(_read_tuple, readers))
    if origin in (tuple, Sequence):
        reader = _reader_of(arguments[0], ignore_unknown)
        return _Reader(frozenset(), functools.partial(_read_list, reader))
    if origin in (dict, Mapping):
        reader = _reader_of(arguments[1], ignore_unknown)
        return _Reader(frozenset(), functools.partial(_read_mapping, reader))
    (kind,) = (each for each in arguments if each is not NoneType)  # A union with None.
    reader = _reader_of(kind, ignore_unknown)
    return _Reader(reader.plain | {NoneType}, functools.partial(_read_optional, reader))


def _reader_with_rule(read: Callable[[Any], Any], rule: ArgumentRule) -> _Reader:
    def read_allowed(data: Any) -> Any:
        if not rule.allows(data):
            raise MisfitError(data, rule.allowed)
        return read(data)

    return _Reader(frozenset(), read_allowed)


def _read_optional(reader: _Reader, data: Any) -> Any:
    if data is None:
        return None
    try:
        return reader.read(data)
    except MisfitError as error:
        if error.path:
            raise
        raise MisfitError(data, f"{error.allowed}, or null") from None


def _read_tuple(readers: Sequence[_Reader], data: Any) -> Any:
    if not isinstance(data, (list, tuple)) or len(data) != len(readers):
        raise MisfitError(data, f"a list of {len(readers)} values")
    return tuple(data) if _are_plain(readers, data) else _read_parts(readers, data)


def _are_plain(readers: Iterable[_Reader], data: Iterable[Any]) -> bool:
    """Whether all of *data* is read as it is; the loop is not one of Python's."""
    return all(map(operator.contains, map(_PLAIN_OF, readers), map(type, data)))


def _read_list(reader: _Reader, data: Any) -> Any:
    if not isinstance(data, (list, tuple)):
        raise MisfitError(data, "a list")
    if reader.plain.issuperset(map(type, data)):
        return tuple(data)
    return _read_parts(itertools.repeat(reader, len(data)), data)


def _read_parts(readers: Iterable[_Reader], data: Sequence[Any]) -> tuple[Any, ...]:
    values: list[Any] = []
    try:
        for (plain, read), value in zip(readers, data, strict=True):
            values.append(value if value.__class__ in plain else read(value))
    except MisfitError as error:
        raise error.at_step(f"[{len(values)}]") from None
    return tuple(values)


def _read_mapping(reader: _Reader, data: Any) -> Any:
    if not isinstance(data, Mapping):
        raise MisfitError(data, "an object")
    mapping = {}
    for key, value in data.items():
        try:
            mapping[key] = value if value.__class__ in reader.plain else reader.read(value)
        except MisfitError as error:
            raise error.at_step(f"[{_shorten(_format_value(key))}]") from None
    return mapping


@functools.cache
def _readers_of(kind: Any, ignore_unknown: bool) -> Mapping[str, _Reader]:
    """The reader of each field of *kind*, by name, in order."""
    types = get_type_hints(kind, include_extras=True)
    names = inspect.signature(kind).parameters
    return {name: _reader_of(types[name], ignore_unknown) for name in names}


def _read_record(kind: Any, ignore_unknown: bool, data: Any) -> Any:
    """Read a dataclass or named tuple from an object, or a named tuple from a list of values."""
    readers = _readers_of(kind, ignore_unknown)
    if isinstance(data, (list, tuple)) and hasattr(kind, "_fields") and len(data) <= len(readers):
        if len(data) == len(readers) and _are_plain(readers.values(), data):
            return kind(*data)
        data = dict(zip(readers, data, strict=False))
    if data.__class__ is not dict and not isinstance(data, Mapping):
        raise MisfitError(data, "an object")
    if ignore_unknown:
        data = {name: data[name] for name in readers if name in data}
    converted = _read_fields(readers, data)
    if len(data) < len(readers):
        _require(kind, data)
    return kind(**{**data, **converted})


def _read_note(kind: Any, ignore_unknown: bool, data: Any) -> Any:
    """Read a note of this *kind* from an object that names its type."""
    if not isinstance(data, Mapping):
        raise MisfitError(data, "an object")
    named = _MESSAGES.get(str(data.get("type")), NoneType)
    if not issubclass(named, kind):
        raise MisfitError(data, f"an object with the type of a {kind.__name__}")
    values = {name: value for name, value in data.items() if name != "type"}
    return _read_record(named, ignore_unknown, values)


def _read_fields(readers: Mapping[str, _Reader], data: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of *data* that are not read as they are."""
    converted = {}
    try:
        for name, value in data.items():
            plain, read = readers[name]
            if value.__class__ not in plain:
                converted[name] = read(value)
    except MisfitError as error:
        raise error.at_step(f".{name}") from None
    except KeyError:
        if name in readers:
            raise
        message = f"an object without {_shorten(_format_value(name))}"
        raise MisfitError(data, message) from None
    return converted


def _require(kind: Any, data: Mapping[str, Any]) -> None:
    """Raise MisfitError if *data* lacks a field of *kind* that has no default."""
    for name in _required_fields(kind):
        if name not in data:
            raise MisfitError(data, f"an object with {name!r}")


@functools.cache
def _required_fields(kind: Any) -> list[str]:
    """The fields of *kind* that have no default."""
    parameters = inspect.signature(kind).parameters.values()
    return [each.name for each in parameters if each.default is each.empty]


def to_json(value: Any) -> Any:
    """*value* as plain data: faults and records as dicts, tuples as lists."""
    if type(value) in _LEAVES:
        return value
    if isinstance(value, (list, tuple)):
        return list(map(to_json, value))
    if isinstance(value, Fault) or hasattr(value, "__dataclass_fields__"):
        value = _fields_of(value)
    if isinstance(value, dict):
        return {key: to_json(each) for key, each in value.items()}
    return value


@functools.cache
def _names_of(kind: Any) -> tuple[str, ...]:
    """The names of the fields of a dataclass."""
    return tuple(each.name for each in fields(kind))


def _fields_of(value: Any) -> dict[str, Any]:
    """The fields of a fault or record, by name, as they are."""
    if isinstance(value, Fault):
        return vocabulary.to_dict(value)
    if isinstance(value, tuple):
        return value._asdict()  # type: ignore[attr-defined,no-any-return]  # A named tuple.
    kind: Any = type(value)
    values = {name: getattr(value, name) for name in _names_of(kind)}
    return {"type": kind.__name__, **values} if isinstance(value, Note) else values


_ENCODER, _DECODER = json.JSONEncoder(default=_fields_of), json.JSONDecoder()
_START = re.compile(r'\{"type": "(\w+)"')
_MESSAGES: dict[str, Any] = {}


class UnknownMessageError(HarnessError):
    """The text is not a message."""


class IncompleteMessageError(UnknownMessageError):
    """The JSON is incomplete, for example because the process that wrote it was killed."""


def register(*kinds: type[Any]) -> None:
    """Enter *kinds* of records that are messages, by their names."""
    _MESSAGES.update({kind.__name__: kind for kind in kinds})


def encode(message: Any) -> bytes:
    """*message* as JSON that names its type."""
    return _ENCODER.encode({"type": type(message).__name__, **_fields_of(message)}).encode()


def decode(text: str) -> Any:
    """The message that ``encode`` made *text* from, with tuples for sequences.

    Raises:
        UnknownMessageError: The text is not a message, or has other fields.
    """
    try:
        data = _DECODER.decode(text)
        return _read_record(_MESSAGES[data.pop("type")], False, data)
    except (AttributeError, KeyError, RecursionError, TypeError, ValueError) as error:
        is_cut_off = isinstance(error, json.JSONDecodeError)
        kind = IncompleteMessageError if is_cut_off else UnknownMessageError
        raise kind(f"{text[:200]!r} is not a message: {error!r}") from error


def kind_of(text: str) -> type[Any] | None:
    """The type of the message that *text* begins with, found without parsing the rest."""
    return _MESSAGES.get(match[1]) if (match := _START.match(text)) else None


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
    """

    opens: int = 0
    reads: int = 0
    bytes: int = 0
    writes: int = 0
    longest: int = 0
    longest_offset: int = 0
    longest_bytes: int = 0
    locks: int = 0


@dataclass(frozen=True)
class WorkerFacts:
    """What one worker process did, or the main process, whose *worker* is None.

    Attributes:
        worker: The worker's id.
        pid: The id of the process.
        fetches: How many batches it started.
        files: How often it opened, read, wrote and locked each data file, and the bytes that it
            read. Under faults, all but opens are counted only for files that such a fault targets.
        unobserved: How often it did something whose reads or writes the engine cannot see, by name.
        tallies: By operation, how often it did what is not done to a file, and to what. Faults name
            such operations as their ``operation``. Counted like *files*.
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
