"""The vocabulary: what can go wrong under a ``DataLoader``.

A fault is a frozen value that describes what to inject. ``eval(repr(fault)) == fault`` holds with
this module's names in scope. Faults compare, hash and pickle by value.

>>> fault = ReadError("*.jpg", nth=3)
>>> fault == eval(repr(fault)) == from_dict(to_dict(fault))
True

Faults that can hit some of many operations share these triggers:

*path*
    ``fnmatch`` globs for the absolute path that the worker opens, as a string or a tuple of
    strings. ``*`` matches slashes, so ``"*.jpg"`` matches every JPEG. Code, system files and
    site-packages are excluded unless a glob names their folder literally. The path of a TCP
    connection is the address of its server, such as ``"tcp://192.0.2.1:443"``: ``"tcp://*"``
    matches all connections, and ``"*"`` none.
*nth*
    The first matching operation that fails, counted from 1 in each worker separately.
*times*
    How often it fails from there on: ``1`` is a transient fault, ``None`` means every time.
*every*
    From *nth* on, every ``every``-th operation fails; 1 means all of them.
*probability*
    The probability with which an operation that the other triggers select fails. Each worker has a
    separate random stream, seeded with the run's seed, the fault's position in the schedule and the
    worker's id.
*workers*
    The ids of the workers that the fault applies to; ``None`` means all workers.
"""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from pytest_dataloader_faults.exceptions import InvalidArgumentError
from pytest_dataloader_faults.faults.base import KINDS as KINDS
from pytest_dataloader_faults.faults.base import Fault
from pytest_dataloader_faults.faults.base import Place as _Place
from pytest_dataloader_faults.faults.files import (
    ClosedDescriptor,
    ConnectError,
    ConnectionClosed,
    ConnectionReset,
    CorruptedFile,
    HttpError,
    HungRead,
    ListingError,
    ListingOrder,
    OpenError,
    ReadError,
    ShortRead,
    ShortWrite,
    SlowRead,
    StrayEntry,
    TruncatedFile,
    WriteError,
)
from pytest_dataloader_faults.faults.workers import (
    DescriptorExhaustion,
    LockError,
    MemoryExhaustion,
    SharedMemoryExhaustion,
    ThreadExhaustion,
    WorkerExited,
    WorkerHung,
    WorkerKilled,
)

__all__ = (
    "ClosedDescriptor",
    "ConnectError",
    "ConnectionClosed",
    "ConnectionReset",
    "CorruptedFile",
    "DescriptorExhaustion",
    "Fault",
    "HttpError",
    "HungRead",
    "ListingError",
    "ListingOrder",
    "LockError",
    "MemoryExhaustion",
    "OpenError",
    "ReadError",
    "SharedMemoryExhaustion",
    "ShortRead",
    "ShortWrite",
    "SlowRead",
    "StrayEntry",
    "ThreadExhaustion",
    "TruncatedFile",
    "WorkerExited",
    "WorkerHung",
    "WorkerKilled",
    "WriteError",
    "from_dict",
    "has_connections",
    "has_files",
    "to_dict",
)


def has_files(fault: Fault) -> bool:
    """Whether *fault* is a file fault: one with a *path* of files, a *reading* or a *writing*."""
    return bool(fault.places & _Place.OF_FILES)


def has_connections(fault: Fault) -> bool:
    """Whether *fault* is a connection fault: one with a *path* such as ``"tcp://*"``."""
    return bool(fault.places & _Place.OF_CONNECTIONS)


def to_dict(fault: Fault) -> dict[str, Any]:
    """*fault* as plain data for JSON."""
    values = {field.name: getattr(fault, field.name) for field in fields(fault)}  # type: ignore[arg-type]
    return {"kind": type(fault).__name__, **values}


def from_dict(data: dict[str, Any]) -> Fault:
    """The fault that ``to_dict`` made *data* from."""
    kind = KINDS.get(data.get("kind", ""))
    if kind is None:
        message = f"data={data!r} must be a result of to_dict(), with kind {' or '.join(KINDS)}"
        raise InvalidArgumentError(message)
    values = {name: tuple(each) if isinstance(each, list) else each for name, each in data.items()}
    del values["kind"]
    try:
        return kind(**values)
    except TypeError as error:
        raise InvalidArgumentError(f"data={data!r} is not valid: {error}") from error
