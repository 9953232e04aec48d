"""The vocabulary: what can go wrong under a ``DataLoader``.

A fault is a frozen value. It describes and never acts; ``eval(repr(fault)) == fault`` holds with
this module's names in scope, and faults compare, hash and pickle by value.

Triggers, which every fault about files shares:

*path*
    ``fnmatch`` globs against the absolute path the worker opens; ``*`` crosses slashes, so
    ``"*.jpg"`` means every JPEG. One string or a tuple of them. Code, system files and
    site-packages are left alone unless a glob names their folder literally.
*nth*
    The first matching operation that fails, 1-based, counted in each worker process on its own.
*times*
    How many in a row fail from there on: ``1`` is a transient fault, ``None`` means for good.
*workers*
    The ids of the workers concerned; ``None`` means all of them.
"""

from __future__ import annotations

import errno as _errno
import signal as _signal
from dataclasses import MISSING, dataclass, fields
from typing import Any, ClassVar, TypeAlias

from pytest_dataloader_faults.exceptions import InvalidArgumentError

__all__ = (
    "ClosedDescriptor",
    "DescriptorExhaustion",
    "Fault",
    "OpenError",
    "ReadError",
    "TruncatedFile",
    "WorkerKilled",
    "from_dict",
    "to_dict",
)

Globs: TypeAlias = str | tuple[str, ...]
Workers: TypeAlias = tuple[int, ...] | None

FATAL_SIGNALS = frozenset(  # Not SIGINT: Python makes it an exception, which torch's worker drops.
    getattr(_signal, f"SIG{name}")
    for name in "KILL SEGV BUS ABRT FPE ILL TERM HUP QUIT TRAP SYS XCPU XFSZ".split()
    if hasattr(_signal, f"SIG{name}")
)


class Fault:
    """Base of all faults: short reprs and checked triggers."""

    __slots__ = ()
    content: ClassVar[bool] = False
    """The fault gives bad data rather than an errno or a death."""

    def __repr__(self) -> str:
        """Valid code: the arguments that differ from their defaults."""
        shown = [
            f"{field.name}={value!r}"
            for field in fields(self)  # type: ignore[arg-type]  # every subclass is a dataclass
            if (value := getattr(self, field.name)) != field.default or field.default is MISSING
        ]
        return f"{type(self).__name__}({', '.join(shown)})"

    def _require(self, name: str, ok: bool, allowed: str) -> None:
        if not ok:
            message = f"{type(self).__name__}: {name}={getattr(self, name)!r} must be {allowed}"
            raise InvalidArgumentError(message)

    def _check_path(self) -> None:
        globs = self.globs
        ok = isinstance(globs, tuple) and all(isinstance(glob, str) and glob for glob in globs)
        self._require("path", ok and globs != (), "a glob such as '*.jpg', or a tuple of globs")

    def _check_triggers(self) -> None:
        self._require("nth", _is_int(self.nth, 1), "1 or more (1 is the first)")
        ok = self.times is None or _is_int(self.times, 1)
        self._require("times", ok, "1 or more, or None for good")
        self._check_workers()

    def _check_workers(self) -> None:
        workers = self.workers
        ok = workers is None or (
            isinstance(workers, tuple) and all(_is_int(worker, 0) for worker in workers)
        )
        self._require("workers", ok and workers != (), "a tuple of worker ids, or None for all")

    def _check_errno(self) -> None:
        names = "an errno such as errno.EIO"
        ok = _is_int(self.errno, 1) and self.errno in _errno.errorcode
        self._require("errno", ok, names)

    # A fault that leaves one of these out has it at this value.
    path: Globs = "*"
    errno: int = 0
    nth: int = 1
    times: int | None = None
    workers: Workers = None

    @property
    def globs(self) -> tuple[str, ...]:
        """*path* as a tuple."""
        return (self.path,) if isinstance(self.path, str) else self.path


def _is_int(value: object, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


@dataclass(frozen=True, slots=True, repr=False)
class OpenError(Fault):
    """open(2), openat(2) and openat2(2) of a matching file fail with *errno*."""

    path: Globs = "*"
    errno: int = _errno.EIO
    nth: int = 1
    times: int | None = None
    workers: Workers = None

    def __post_init__(self) -> None:
        """Refuse what no kernel could do."""
        self._check_path()
        self._check_errno()
        self._check_triggers()


@dataclass(frozen=True, slots=True, repr=False)
class ReadError(Fault):
    """read(2), pread(2), readv(2), preadv(2) fail with *errno*; a mapping raises SIGBUS on access.

    Mapping a file counts as one read of it.
    """

    path: Globs = "*"
    errno: int = _errno.EIO
    nth: int = 1
    times: int | None = None
    workers: Workers = None

    def __post_init__(self) -> None:
        """Refuse what no kernel could do."""
        self._check_path()
        self._check_errno()
        self._check_triggers()


@dataclass(frozen=True, slots=True, repr=False)
class TruncatedFile(Fault):
    """A matching file is shorter, for read, fstat, lseek and mmap alike.

    *keep* is what is left: a fraction below 1 (float) or a count of bytes (int). The file itself is
    never touched: the worker gets a substitute. Descriptors and mappings that the worker inherits
    are exchanged as well.
    """

    content: ClassVar[bool] = True
    path: Globs = "*"
    keep: float = 0.5
    workers: Workers = None

    def __post_init__(self) -> None:
        """Refuse a file that would not be shorter."""
        self._check_path()
        keep = self.keep
        ok = _is_int(keep, 0) or (isinstance(keep, float) and 0.0 <= keep < 1.0)
        self._require("keep", ok, "a fraction in [0.0, 1.0) or a count of bytes (int, 0 or more)")
        self._check_workers()

    def kept(self, size: int) -> int:
        """How many of *size* bytes are left."""
        return int(size * self.keep) if isinstance(self.keep, float) else min(size, self.keep)


@dataclass(frozen=True, slots=True, repr=False)
class ClosedDescriptor(Fault):
    """The descriptor that the dataset holds is closed under it.

    Those the worker inherited are closed before its first fetch; those it opens itself are closed
    by the time open(2) returns. Every later call on the number gives EBADF, from the kernel.
    """

    path: Globs = "*"
    nth: int = 1
    times: int | None = None
    workers: Workers = None

    def __post_init__(self) -> None:
        """Refuse what cannot be reached."""
        self._check_path()
        self._check_triggers()


@dataclass(frozen=True, slots=True, repr=False)
class DescriptorExhaustion(Fault):
    """The worker has no descriptor left but *headroom*, by a real, lowered RLIMIT_NOFILE.

    It begins with the worker's first fetch. open(2), dup(2), shm_open(3) and all others that need a
    descriptor then fail with EMFILE. See getrlimit(2).
    """

    headroom: int = 0
    where: str = "worker"
    workers: Workers = None

    def __post_init__(self) -> None:
        """Refuse a negative headroom and places that are not there."""
        self._require("headroom", _is_int(self.headroom, 0), "0 or more descriptors")
        self._require("where", self.where == "worker", "'worker'")
        self._check_workers()


@dataclass(frozen=True, slots=True, repr=False)
class WorkerKilled(Fault):
    """A worker dies by *signal* when it begins its *at*-th fetch (1-based: batches, not samples).

    *worker* is the id of the one that dies; ``None`` kills each worker that gets so far.
    """

    signal: int = int(_signal.SIGKILL)
    at: int = 1
    worker: int | None = 0

    def __post_init__(self) -> None:
        """Keep a plain int, so that the repr is valid code."""
        names = "a signal that ends a process, such as signal.SIGKILL"
        ok = _is_int(self.signal, 1) and self.signal in FATAL_SIGNALS
        self._require("signal", ok, names)
        self._require("at", _is_int(self.at, 1), "1 or more (1 is the worker's first fetch)")
        ok = self.worker is None or _is_int(self.worker, 0)
        self._require("worker", ok, "a worker id, or None for all")
        object.__setattr__(self, "signal", int(self.signal))


KINDS: dict[str, type[Fault]] = {
    kind.__name__: kind
    for kind in (
        OpenError,
        ReadError,
        TruncatedFile,
        ClosedDescriptor,
        DescriptorExhaustion,
        WorkerKilled,
    )
}


def to_dict(fault: Fault) -> dict[str, Any]:
    """*fault* as plain data for JSON."""
    values = {field.name: getattr(fault, field.name) for field in fields(fault)}  # type: ignore[arg-type]
    return {"kind": type(fault).__name__, **values}


def from_dict(data: dict[str, Any]) -> Fault:
    """The fault that ``to_dict`` made *data* from."""
    values = {
        name: tuple(value) if isinstance(value, list) else value
        for name, value in data.items()
        if name != "kind"
    }
    return KINDS[data["kind"]](**values)
