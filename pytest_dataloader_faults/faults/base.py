"""What all faults share: triggers, a rule for each argument by its name, and facts of each kind.

A fault describes what to inject, and where it can happen. What it does is in the engine, in which
words errors report it in ``outcomes/error_text.py``, and what a search draws in ``strategies``.
"""

from __future__ import annotations

import errno as _errno
import os
import signal as _signal
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from enum import Flag, IntEnum, auto
from typing import Any, ClassVar, NamedTuple, TypeAlias, TypeGuard, TypeVar

from pytest_dataloader_faults import _arguments as allow
from pytest_dataloader_faults import exceptions
from pytest_dataloader_faults.faults.globs import is_address, is_by_name

Globs: TypeAlias = str | os.PathLike[str] | tuple[str | os.PathLike[str], ...]
"""As passed. A fault keeps each as a str, so that its repr is code and JSON."""
Workers: TypeAlias = tuple[int, ...] | None

SIGNALS = frozenset(  # Not SIGINT: Python makes it an exception, which torch's worker drops.
    getattr(_signal, f"SIG{name}")
    for name in "KILL SEGV BUS ABRT FPE ILL TERM HUP QUIT TRAP SYS XCPU XFSZ".split()
)
_OF_FILES = (
    "a glob of files; the faults of TCP connections are ConnectError, ConnectionReset,"
    " ConnectionClosed, HttpError, SlowRead and HungRead"
)
_BY_ADDRESS = (
    "the address of a TCP connection, such as 'tcp://127.0.0.1:*', because connect(2) gets no host"
    " name such as localhost"
)
MAX_NAME = 255
"""Bytes in the name of a file, by the rules of Linux."""


def _as_text(globs: object) -> object:
    """*globs*, with a str for each path among them."""
    if isinstance(globs, os.PathLike):
        return os.fspath(globs)
    if isinstance(globs, tuple):
        return tuple(os.fspath(each) if isinstance(each, os.PathLike) else each for each in globs)
    return globs


def is_globs(value: object) -> bool:
    """Whether *value* can be an argument that is a glob, or several."""
    globs = (value,) if isinstance(value, str) else value
    return _is_tuple(globs) and all(isinstance(glob, str) and glob for glob in globs)


def _is_tuple(value: object) -> TypeGuard[tuple[object, ...]]:
    return isinstance(value, tuple) and value != ()


def _is_entry_name(value: object) -> bool:
    """Whether *value* can be the name of a file, by the rules of Linux; with one ``*`` at most."""
    if not isinstance(value, str) or value in ("", ".", "..", "*") or value.count("*") > 1:
        return False
    try:
        return not {"/", "\0"} & {*value} and len(os.fsencode(value)) <= MAX_NAME
    except UnicodeEncodeError:
        return False


_RULES = {
    "path": allow.ArgumentRule(is_globs, "a glob such as '*.jpg', a path, or a tuple of them"),
    "errno": allow.ArgumentRule(
        lambda value: allow.is_int(value) and value in _errno.errorcode,
        "an errno such as errno.EIO",
    ),
    "nth": allow.ints(1, allowed="an int, 1 or more (1 is the first)"),
    "times": allow.optional(allow.at_least(1), "an int, 1 or more, or None for every time"),
    "every": allow.ints(1, allowed="an int, 1 or more (1 is every one, 2 every second one)"),
    "probability": allow.ArgumentRule(
        lambda value: allow.is_number(value) and 0 < value <= 1, "in (0.0, 1.0]"
    ),
    "workers": allow.optional(
        lambda value: _is_tuple(value) and all(allow.is_int(each, 0) for each in value),
        "a tuple of worker ids, or None for all",
    ),
    "worker": allow.optional(allow.at_least(0), "a worker id, or None for all"),
    "at": allow.ints(1, allowed="an int, 1 or more (1 is the worker's first fetch)"),
    "sample": allow.optional(allow.at_least(0), "a sample's index, 0 or more, or None"),
    "offset": allow.optional(allow.at_least(0), "an offset in bytes, 0 or more, or None"),
    "max_bytes": allow.ArgumentRule(
        lambda value: allow.is_int(value) or (isinstance(value, float) and 0.0 < value < 1.0),
        "1 or more bytes (int; 0 would be the end of the file: see TruncatedFile), or a fraction in"
        " (0.0, 1.0) of what the call would transfer (float)",
    ),
    "keep": allow.ArgumentRule(
        lambda value: allow.is_int(value, 0) or (isinstance(value, float) and 0.0 <= value < 1.0),
        "a fraction in [0.0, 1.0) or a count of bytes (int, 0 or more)",
    ),
    "flips": allow.ints(1, allowed="an int, 1 or more bytes"),
    "seed": allow.ints(0),
    "name": allow.ArgumentRule(
        _is_entry_name, "a file name such as '.DS_Store', or one with a '*' such as '*.part'"
    ),
    "order": allow.ArgumentRule(
        lambda value: value in ("reversed", "random"), "'reversed' or 'random'"
    ),
    "sending": allow.FLAG,
    "headroom": allow.ints(0, allowed="an int, 0 or more descriptors"),
    "seconds": allow.SECONDS,
    "signal": allow.ArgumentRule(
        lambda value: allow.is_int(value) and value in SIGNALS,
        "one of " + ", ".join(sorted(each.name for each in SIGNALS)),
    ),
    "code": allow.ints(0, 255, "an exit code, 0 to 255"),
}


LISTING = "getdents64"
"""The call in which a missing file is left out of the listing of its folder, without an error."""
ANSWER = "recv"
"""How firings name the data from the peer of a connection."""


class Place(Flag):
    """Where a fault happens: in a system call of some kind, or in a process."""

    OPEN = auto()
    """In an open of a file."""
    DESCRIPTOR = auto()
    """In the descriptor of a file: it is closed, or is one of an altered copy."""
    STAT = auto()
    """In a call that returns the size of a file by its path."""
    LISTING = auto()
    """In a call that lists a folder."""
    READ = auto()
    WRITE = auto()
    LOCK = auto()
    """In a call that locks a file by its descriptor."""
    CONNECT = auto()
    """As a TCP connection is made."""
    ANSWER = auto()
    """In what the peer of a TCP connection sends."""
    ALLOCATION = auto()
    """In a call that needs a new descriptor."""
    RESERVATION = auto()
    """In fallocate(2), by which torch reserves shared memory."""
    START = auto()
    """In a call that starts a thread or a process."""
    MEMORY = auto()
    """In a call by which a process gets memory that no file backs."""
    FETCH = auto()
    """In a worker, when a fetch or a sample starts."""
    CHANGE = auto()
    """In a call that removes, renames or overwrites a file: there no fault happens."""

    OF_FILES = OPEN | DESCRIPTOR | STAT | LISTING | READ | WRITE | LOCK
    OF_CONNECTIONS = CONNECT | ANSWER
    OF_READERS = OPEN | DESCRIPTOR | STAT | LISTING | READ | LOCK | OF_CONNECTIONS
    """In calls that change no file."""
    COUNTED = READ | LISTING | WRITE | LOCK | START | CHANGE
    """What a fault-free run counts, in addition to opens and connections."""


class Effect(Flag):
    """What a fault does to whom it happens to, apart from an error."""

    BAD_DATA = auto()
    """A call transfers too few bytes or wrong ones, without an error."""
    DELAY = auto()
    """Something stops for a while, or forever. A loader's ``timeout`` may end that."""
    ORDER = auto()
    """What a call returns comes in another order."""
    DEATH = auto()
    """A worker ends."""
    LASTING = auto()
    """A file stays as it is by then: what is read from it later is hit, without another firing."""
    SCARCITY = auto()
    """What torch itself needs to share a batch is used up."""


class FiringKind(allow.StrEnum):
    """What a fault happened to."""

    CALL = "call"
    """A system call, or a function."""
    REPLACED = "replaced"
    """A descriptor from before the worker's first batch, in whose place another file is now."""
    DEATH = "death"
    """The worker itself, which a signal killed, or which exited."""
    HANG = "hang"
    """The worker itself, whose further work is lost."""


class Trigger(NamedTuple):
    """Which of many operations a fault happens to; as it stands here, to each of them."""

    nth: int = 1
    times: int | None = None
    every: int = 1
    probability: float = 1.0


class Fault(allow.Checked):
    """Base of all faults. Each kind defines the attributes that are not set here."""

    __slots__ = ()
    _rules: ClassVar = _RULES
    happens_in: ClassVar[Place]
    """Where faults of the kind can happen; see ``places`` for those of a single fault."""
    effects: ClassVar = Effect(0)
    """What it does apart from an error."""
    globs_of: ClassVar[Mapping[str, Place]] = {"path": ~Place(0)}
    """The arguments that are globs, and where the operations are that each is about."""
    needs_worker: ClassVar = True
    """It cannot happen in the main process, as with ``num_workers=0``."""
    operation: ClassVar[str] = ""
    """What workers do to its files: see ``WorkerFacts.counts_of``."""

    errno: int = 0
    """The errno with which the fault makes a system call fail; 0 if it does not."""

    @property
    def hides_file(self) -> bool:
        """Whether the file is missing for each call that names it."""
        return False

    @property
    def is_at_rest(self) -> bool:
        """Whether the file itself is bad or missing, instead of an attempt to use it."""
        return self.hides_file

    @property
    def globs(self) -> tuple[str, ...]:
        """The globs of the files that it is about; empty for a fault of something else."""
        values = (getattr(self, name, None) for name in self.globs_of)
        globs: str | tuple[str, ...] = next(filter(None, values), ())
        return (globs,) if isinstance(globs, str) else globs

    @property
    def places(self) -> Place:
        """Where it happens: of ``happens_in``, what its arguments leave."""
        places = (about for name, about in self.globs_of.items() if getattr(self, name, None))
        about = next(places, Place(0))
        if not any(map(is_address, self.globs)):
            about &= ~Place.OF_CONNECTIONS
        if all(map(is_address, self.globs)):
            about &= ~Place.OF_FILES
        return self.happens_in & (about | ~(Place.OF_FILES | Place.OF_CONNECTIONS))

    @property
    def trigger(self) -> Trigger:
        """Which of the operations that the fault is about it happens to."""
        trigger_names = (name for name in Trigger._fields if hasattr(self, name))
        return Trigger(**{name: getattr(self, name) for name in trigger_names})

    def __post_init__(self) -> None:
        """Refuse what no kernel can do. Keep plain ints and str, so that the repr is code."""
        for name in self.globs_of:
            if hasattr(self, name):
                object.__setattr__(self, name, _as_text(getattr(self, name)))
        self._refuse_path()
        super().__post_init__()
        for field in fields(self):  # type: ignore[arg-type]  # Every subclass is a dataclass.
            if isinstance(value := getattr(self, field.name), IntEnum):
                object.__setattr__(self, field.name, int(value))
        self._refuse_connections()
        self._check_together()

    def _refuse_path(self) -> None:
        """Refuse a path or a glob as the first argument of a fault that has none."""
        name = next(each.name for each in fields(self) if not each.kw_only)  # type: ignore[arg-type]
        if not any(hasattr(self, each) for each in self.globs_of):
            is_path = isinstance(getattr(self, name), (str, os.PathLike))
            self._require(name, not is_path, f"{self._rules[name].allowed}. The fault has no path")

    def _refuse_connections(self) -> None:
        """Refuse globs of TCP connections by names, or if the fault is about files alone."""
        if not self.globs:
            return
        name = next(each for each in self.globs_of if getattr(self, each, None))
        if self.happens_in & Place.OF_CONNECTIONS:
            self._require(name, not any(map(is_by_name, self.globs)), _BY_ADDRESS)
        else:
            self._require(name, not any(map(is_address, self.globs)), _OF_FILES)

    def _check_together(self) -> None:
        """Refuse arguments that exclude each other."""


def default_path(fault_kind: type[Fault]) -> Globs | None:
    """The *path* of faults of that kind to which none is passed; None if they have no *path*."""
    defaults: Iterator[Any] = (
        each.default
        for each in fields(fault_kind)  # type: ignore[arg-type]  # Each is a dataclass.
        if each.name == "path"
    )
    return next(defaults, None)


KINDS: dict[str, type[Fault]] = {}
_Kind = TypeVar("_Kind", bound=Fault)


def kind(fault_kind: type[_Kind]) -> type[_Kind]:
    """Enter a kind of fault in ``KINDS``; for each class that is not only a base of others."""
    KINDS[fault_kind.__name__] = fault_kind
    return fault_kind


@dataclass(frozen=True, repr=False)
class FileFault(Fault):
    """A file fault, which has a *path*."""

    __slots__ = ()
    needs_worker: ClassVar = False
    path: Globs = "*"


@dataclass(frozen=True, slots=True, repr=False, kw_only=True)
class InWorkers(Fault):
    """A fault that happens in several workers, in each on its own."""

    workers: Workers = None


@dataclass(frozen=True, slots=True, repr=False, kw_only=True)
class Triggered(InWorkers):
    """A fault that happens to some of many operations. Each kind adds *nth* and *times*."""

    every: int = 1
    probability: float = 1.0


@dataclass(frozen=True, repr=False)
class FailedCall(Triggered, FileFault):
    """A fault by which a call about a file or a folder fails with *errno*."""

    __slots__ = ()
    errno: int = _errno.EIO
    nth: int = 1
    times: int | None = None


def explain_invalid_fault(value: object) -> str:
    """What is wrong with *value* if a fault is expected, and what to do; "" if it is one."""
    if isinstance(value, Fault):
        return ""
    if _is_kind(value):
        return f"{value.__name__} is a class, not a fault. Call it: {value.__name__}()"
    if not isinstance(value, (list, tuple, set, frozenset)):
        value_text = exceptions._format_value(value)
        return f"{value_text} is not a fault. Pass faults, such as ReadError('*.jpg')"
    kinds = sorted({each.__name__ for each in value if _is_kind(each)})
    calls = f", and call each class: {', '.join(f'{kind}()' for kind in kinds)}" if kinds else ""
    value_text = ", ".join(
        item.__name__ if _is_kind(item) else exceptions._format_value(item) for item in value
    )
    return (
        f"[{value_text}] is a list, not a fault. Pass each fault as a separate argument, for"
        f" example with *faults{calls}"
    )


def _is_kind(value: object) -> TypeGuard[type[Fault]]:
    return isinstance(value, type) and issubclass(value, Fault)
