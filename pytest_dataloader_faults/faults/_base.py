"""What all faults share: triggers, and a rule for each argument by its name."""

from __future__ import annotations

import errno as _errno
import os
import signal as _signal
from dataclasses import dataclass, fields
from enum import IntEnum
from typing import ClassVar, NamedTuple, TypeAlias, TypeGuard

from pytest_dataloader_faults import _arguments as allow
from pytest_dataloader_faults.globs import is_by_name, is_of_network

Globs: TypeAlias = str | os.PathLike[str] | tuple[str | os.PathLike[str], ...]
"""As given. A fault keeps each as a str, so that its repr is code and JSON."""
Workers: TypeAlias = tuple[int, ...] | None

FATAL_SIGNALS = frozenset(  # Not SIGINT: Python makes it an exception, which torch's worker drops.
    getattr(_signal, f"SIG{name}")
    for name in "KILL SEGV BUS ABRT FPE ILL TERM HUP QUIT TRAP SYS XCPU XFSZ".split()
)
SIGNALS = FATAL_SIGNALS | {_signal.SIGSTOP}


def errno_numbers(names: str) -> frozenset[int]:
    """The errno numbers of *names*, as far as this system has them."""
    return frozenset(getattr(_errno, name) for name in names.split() if hasattr(_errno, name))


def _as_text(globs: object) -> object:
    """*globs*, with a str for each path among them."""
    if isinstance(globs, os.PathLike):
        return os.fspath(globs)
    if isinstance(globs, tuple):
        return tuple(os.fspath(each) if isinstance(each, os.PathLike) else each for each in globs)
    return globs


def _is_globs(value: object) -> bool:
    globs = (value,) if isinstance(value, str) else value
    return _is_tuple(globs) and all(isinstance(glob, str) and glob for glob in globs)


def _is_workers(value: object) -> bool:
    return _is_tuple(value) and all(allow.is_int(each, 0) for each in value)


def _is_tuple(value: object) -> TypeGuard[tuple[object, ...]]:
    return isinstance(value, tuple) and value != ()


def _is_part(value: object) -> bool:
    return allow.is_int(value) or (isinstance(value, float) and 0.0 < value < 1.0)


def _is_keep(value: object) -> bool:
    return allow.is_int(value, 0) or (isinstance(value, float) and 0.0 <= value < 1.0)


_RULES = {
    "path": allow.Rule(_is_globs, "a glob such as '*.jpg', a path, or a tuple of them"),
    "reading": allow.optional(_is_globs, "a glob such as '*.jpg', a tuple of globs, or None"),
    "writing": allow.optional(_is_globs, "a glob such as '*.pt', a tuple of globs, or None"),
    "errno": allow.Rule(
        lambda value: allow.is_int(value) and value in _errno.errorcode,
        "an errno such as errno.EIO",
    ),
    "nth": allow.ints(1, allowed="an int, 1 or more (1 is the first)"),
    "times": allow.optional(allow.at_least(1), "an int, 1 or more, or None for every time"),
    "every": allow.ints(1, allowed="an int, 1 or more (1 is each, 2 each second one)"),
    "probability": allow.Rule(
        lambda value: allow.is_number(value) and 0 < value <= 1, "in (0.0, 1.0]"
    ),
    "workers": allow.optional(_is_workers, "a tuple of worker ids, or None for all"),
    "worker": allow.optional(allow.at_least(0), "a worker id, or None for all"),
    "at": allow.ints(1, allowed="an int, 1 or more (1 is the worker's first fetch)"),
    "sample": allow.optional(allow.at_least(0), "a sample's index, 0 or more, or None"),
    "offset": allow.optional(allow.at_least(0), "a place in the file in bytes, 0 or more, or None"),
    "max_bytes": allow.Rule(
        _is_part,
        "1 or more bytes (int; 0 would be the end of the file: see TruncatedFile), or a fraction in"
        " (0.0, 1.0) of what the call would give or take (float)",
    ),
    "after": allow.ints(0, allowed="an int, 0 or more bytes of the answer"),
    "keep": allow.Rule(_is_keep, "a fraction in [0.0, 1.0) or a count of bytes (int, 0 or more)"),
    "flips": allow.ints(1, allowed="an int, 1 or more bytes"),
    "seed": allow.ints(0),
    "reuse": allow.FLAG,
    "sending": allow.FLAG,
    "hold_gil": allow.FLAG,
    "stage": allow.Rule(lambda value: value in ("take", "pin"), "'take' or 'pin'"),
    "headroom": allow.ints(0, allowed="an int, 0 or more descriptors"),
    "where": allow.Rule(lambda value: value in ("worker", "loader"), "'worker' or 'loader'"),
    "seconds": allow.SECONDS,
    "signal": allow.Rule(
        lambda value: allow.is_int(value) and value in SIGNALS,
        "one of " + ", ".join(sorted(each.name for each in SIGNALS)),
    ),
    "code": allow.ints(0, 255, "an exit code, 0 to 255"),
}


_BY_ADDRESS = (
    "by the address of a TCP connection, such as 'tcp://127.0.0.1:*': connect(2) gets no name, as"
    " localhost is"
)
_WITH_GLOBS = ("path", "reading", "writing")


class Trigger(NamedTuple):
    """Which of many operations a fault happens to; as it stands here, to each of them."""

    nth: int = 1
    times: int | None = None
    every: int = 1
    probability: float = 1.0


class Fault(allow.Checked):
    """Base of all faults."""

    __slots__ = ()
    _rules: ClassVar = _RULES
    content: ClassVar[bool] = False
    """The fault gives bad data rather than an errno, a delay or a death."""
    errnos: ClassVar[frozenset[int] | None] = None
    """The errnos that the call can fail with, where the fault has a choice."""

    meets_connections: ClassVar[bool] = False
    """The fault can be about TCP connections."""
    of_connections: ClassVar[str] = ""
    """The fault to take for a TCP connection, where this one cannot be about any."""

    errno: int = 0
    """What a system call fails with under the fault; 0 where it does not fail."""

    @property
    def globs(self) -> tuple[str, ...]:
        """The globs of the files that it is about; empty for a fault of something else."""
        named = (getattr(self, name, None) for name in _WITH_GLOBS)
        globs: str | tuple[str, ...] = next(filter(None, named), ())
        return (globs,) if isinstance(globs, str) else globs

    @property
    def trigger(self) -> Trigger:
        """Which of the operations that the fault is about it happens to."""
        named = (name for name in Trigger._fields if hasattr(self, name))
        return Trigger(**{name: getattr(self, name) for name in named})

    def __post_init__(self) -> None:
        """Refuse what no kernel can do. Keep plain ints and str, so that the repr is code."""
        for name in _WITH_GLOBS:
            if hasattr(self, name):
                object.__setattr__(self, name, _as_text(getattr(self, name)))
        super().__post_init__()
        for field in fields(self):  # type: ignore[arg-type]  # Every subclass is a dataclass.
            if isinstance(value := getattr(self, field.name), IntEnum):
                object.__setattr__(self, field.name, int(value))
        if self.errnos is not None:
            names = " ".join(sorted(_errno.errorcode[number] for number in self.errnos))
            self._require("errno", self.errno in self.errnos, f"one that the call gives: {names}")
        self._refuse_connections()
        self._check_together()

    def _refuse_connections(self) -> None:
        """Refuse globs of TCP connections by names, or where the fault is about files alone."""
        if not self.globs:
            return
        name = next(each for each in _WITH_GLOBS if getattr(self, each, None))
        if self.meets_connections:
            self._require(name, not any(map(is_by_name, self.globs)), _BY_ADDRESS)
        else:
            allowed = f"of files; of a TCP connection, take {self.of_connections}"
            self._require(name, not any(map(is_of_network, self.globs)), allowed)

    def _check_together(self) -> None:
        """Refuse arguments that cannot come together."""


@dataclass(frozen=True, repr=False)
class FileFault(Fault):
    """A fault of files, which have a *path*."""

    __slots__ = ()
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
class ShortCall(Triggered, FileFault):
    """A fault by which a call gives, or takes, *max_bytes* at most."""

    __slots__ = ()
    content: ClassVar[bool] = True
    max_bytes: float = 1
    nth: int = 1
    times: int | None = None

    def most(self, length: int) -> int:
        """How many of *length* bytes the call gives, or takes, at most."""
        if isinstance(self.max_bytes, int):
            return self.max_bytes
        return max(1, int(length * self.max_bytes))
