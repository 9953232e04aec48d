"""What all faults share: short reprs, triggers, and arguments that are checked by their names."""

from __future__ import annotations

import errno as _errno
import math
import signal as _signal
from collections.abc import Callable
from dataclasses import MISSING, dataclass, fields
from enum import IntEnum
from typing import Any, ClassVar, TypeAlias

from pytest_dataloader_faults.exceptions import InvalidArgumentError

Globs: TypeAlias = str | tuple[str, ...]
Workers: TypeAlias = tuple[int, ...] | None

FATAL_SIGNALS = frozenset(  # Not SIGINT: Python makes it an exception, which torch's worker drops.
    getattr(_signal, f"SIG{name}")
    for name in "KILL SEGV BUS ABRT FPE ILL TERM HUP QUIT TRAP SYS XCPU XFSZ".split()
)
SIGNALS = FATAL_SIGNALS | {_signal.SIGSTOP}


def is_int(value: object, least: int) -> bool:
    """Whether *value* is a true int of at least *least*."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def _is_globs(value: object) -> bool:
    globs = (value,) if isinstance(value, str) else value
    if not isinstance(globs, tuple) or not globs:
        return False
    return all(isinstance(glob, str) and glob for glob in globs)


def _is_workers(value: object) -> bool:
    return value is None or (
        isinstance(value, tuple) and value != () and all(is_int(each, 0) for each in value)
    )


def _is_keep(value: object) -> bool:
    return is_int(value, 0) or (isinstance(value, float) and 0.0 <= value < 1.0)


def _int(least: int) -> Callable[[Any], bool]:
    return lambda value: is_int(value, least)


def _optional_int(least: int) -> Callable[[Any], bool]:
    return lambda value: value is None or is_int(value, least)


_ALLOWED: dict[str, tuple[Callable[[Any], bool], str]] = {
    "path": (_is_globs, "a glob such as '*.jpg', or a tuple of globs"),
    "reading": (
        lambda value: value is None or _is_globs(value),
        "a glob such as '*.jpg', a tuple of globs, or None",
    ),
    "errno": (
        lambda value: is_int(value, 1) and value in _errno.errorcode,
        "an errno such as errno.EIO",
    ),
    "nth": (_int(1), "1 or more (1 is the first)"),
    "times": (_optional_int(1), "1 or more, or None for good"),
    "every": (_int(1), "1 or more (1 is each, 2 each second one)"),
    "probability": (lambda value: _is_number(value) and 0 < value <= 1, "in (0.0, 1.0]"),
    "workers": (_is_workers, "a tuple of worker ids, or None for all"),
    "worker": (_optional_int(0), "a worker id, or None for all"),
    "at": (_int(1), "1 or more (1 is the worker's first fetch)"),
    "sample": (_optional_int(0), "a sample's index, 0 or more, or None"),
    "offset": (_optional_int(0), "a place in the file in bytes, 0 or more, or None"),
    "max_bytes": (_int(1), "1 or more bytes (0 would be the end of the file: see TruncatedFile)"),
    "keep": (_is_keep, "a fraction in [0.0, 1.0) or a count of bytes (int, 0 or more)"),
    "flips": (_int(1), "1 or more bytes"),
    "seed": (_int(0), "an int, 0 or more"),
    "reuse": (lambda value: isinstance(value, bool), "True or False"),
    "sending": (lambda value: isinstance(value, bool), "True or False"),
    "hold_gil": (lambda value: isinstance(value, bool), "True or False"),
    "stage": (lambda value: value in ("take", "pin"), "'take' or 'pin'"),
    "headroom": (_int(0), "0 or more descriptors"),
    "where": (lambda value: value in ("worker", "loader"), "'worker' or 'loader'"),
    "seconds": (lambda value: _is_number(value) and value > 0, "a positive number of seconds"),
    "signal": (
        lambda value: is_int(value, 1) and value in SIGNALS,
        "a signal that ends or stops a process, such as signal.SIGKILL",
    ),
    "code": (lambda value: is_int(value, 0) and value <= 255, "an exit code, 0 to 255"),  # noqa: PLR2004
}


class ReprPretty:
    """Has Hypothesis and IPython print a fault by its repr; of a class they are to know nothing."""

    def __get__(self, fault: object | None, _kind: type) -> Callable[[Any, bool], None] | None:
        return None if fault is None else lambda printer, _cycle: printer.text(repr(fault))


class Fault:
    """Base of all faults: short reprs and checked arguments."""

    __slots__ = ()
    content: ClassVar[bool] = False
    """The fault gives bad data rather than an errno, a delay or a death."""
    errnos: ClassVar[frozenset[int] | None] = None
    """Those that the call can give, where the fault has a choice."""

    _repr_pretty_ = ReprPretty()

    # A fault that leaves one of these out has it at this value.
    path: Globs = "*"
    errno: int = 0
    nth: int = 1
    times: int | None = None
    every: int = 1
    probability: float = 1.0
    workers: Workers = None
    sample: int | None = None
    reading: Globs | None = None

    def __post_init__(self) -> None:
        """Refuse what no kernel could do; keep plain ints, so that the repr is valid code."""
        for field in fields(self):  # type: ignore[arg-type]  # Every subclass is a dataclass.
            ok, allowed = _ALLOWED[field.name]
            self._require(field.name, ok(getattr(self, field.name)), allowed)
            if isinstance(getattr(self, field.name), IntEnum):
                object.__setattr__(self, field.name, int(getattr(self, field.name)))
        if self.errnos is not None:
            names = " ".join(sorted(_errno.errorcode[number] for number in self.errnos))
            self._require("errno", self.errno in self.errnos, f"one that the call gives: {names}")
        self._check_together()

    def _check_together(self) -> None:
        """Refuse arguments that cannot come together."""

    def _require(self, name: str, ok: bool, allowed: str) -> None:
        if not ok:
            message = f"{type(self).__name__}: {name}={getattr(self, name)!r} must be {allowed}"
            raise InvalidArgumentError(message)

    def __repr__(self) -> str:
        """Valid code: the arguments that differ from their defaults."""
        shown = [
            f"{field.name}={value!r}"
            for field in sorted(fields(self), key=lambda field: bool(field.kw_only))  # type: ignore[arg-type]
            if (value := getattr(self, field.name)) != field.default or field.default is MISSING
        ]
        return f"{type(self).__name__}({', '.join(shown)})"

    @property
    def globs(self) -> tuple[str, ...]:
        """*path* as a tuple."""
        return (self.path,) if isinstance(self.path, str) else self.path


@dataclass(frozen=True, slots=True, repr=False, kw_only=True)
class InWorkers(Fault):
    """A fault that befalls several workers, each on its own."""

    workers: Workers = None


@dataclass(frozen=True, slots=True, repr=False, kw_only=True)
class Triggered(InWorkers):
    """A fault that befalls some of many operations."""

    every: int = 1
    probability: float = 1.0
