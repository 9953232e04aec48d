"""The vocabulary: what can go wrong under a ``DataLoader``.

A fault is a frozen value, which describes and never acts. ``eval(repr(fault)) == fault`` holds with
this module's names in scope. Faults compare, hash and pickle by value.

>>> fault = ReadError("*.jpg", nth=3)
>>> fault == eval(repr(fault)) == from_dict(to_dict(fault))
True

The faults that happen to some of many operations share these triggers:

*path*
    ``fnmatch`` globs against the absolute path the worker opens; ``*`` crosses slashes, so
    ``"*.jpg"`` means every JPEG. One string or a tuple of them. Code, system files and
    site-packages are excluded unless a glob names their folder literally. A TCP connection has a
    path by the address of its peer, as ``"tcp://192.0.2.1:443"``: ``"tcp://*"`` means all of them,
    and ``"*"`` none.
*nth*
    The first matching operation that fails, 1-based, counted in each worker process on its own.
*times*
    How often it fails from there on: ``1`` is a transient fault, ``None`` means every time.
*every*
    From *nth* on, each ``every``-th operation; 1 means each.
*probability*
    The chance of each operation that the other triggers choose. Each worker has a random stream of
    its own, seeded by the run's seed, the fault's place in the schedule and the worker's id.
*workers*
    The ids of the workers concerned; ``None`` means all of them.
"""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from pytest_dataloader_faults.exceptions import InvalidArgumentError
from pytest_dataloader_faults.faults.base import KINDS as KINDS
from pytest_dataloader_faults.faults.base import Fault
from pytest_dataloader_faults.faults.base import Place as _Place
from pytest_dataloader_faults.faults.kinds import (
    ClosedDescriptor,
    ConnectError,
    ConnectionClosed,
    ConnectionReset,
    CorruptedFile,
    DescriptorExhaustion,
    HungRead,
    OpenError,
    PinMemoryThreadDeath,
    ReadError,
    SharedMemoryExhaustion,
    ShortRead,
    ShortWrite,
    SlowRead,
    TruncatedFile,
    WorkerExited,
    WorkerHung,
    WorkerKilled,
    WriteError,
)

__all__ = (
    "ClosedDescriptor",
    "ConnectError",
    "ConnectionClosed",
    "ConnectionReset",
    "CorruptedFile",
    "DescriptorExhaustion",
    "Fault",
    "HungRead",
    "OpenError",
    "PinMemoryThreadDeath",
    "ReadError",
    "SharedMemoryExhaustion",
    "ShortRead",
    "ShortWrite",
    "SlowRead",
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
    """Whether *fault* is about files: it has a *path* of some, a *reading* or a *writing*."""
    return bool(fault.places & _Place.OF_FILES)


def has_connections(fault: Fault) -> bool:
    """Whether *fault* is about TCP connections: it has a *path* such as ``"tcp://*"``."""
    return bool(fault.places & _Place.OF_CONNECTIONS)


def to_dict(fault: Fault) -> dict[str, Any]:
    """*fault* as plain data for JSON."""
    values = {field.name: getattr(fault, field.name) for field in fields(fault)}  # type: ignore[arg-type]
    return {"kind": type(fault).__name__, **values}


def from_dict(data: dict[str, Any]) -> Fault:
    """The fault that ``to_dict`` made *data* from."""
    kind = KINDS.get(data.get("kind", ""))
    if kind is None:
        message = f"data={data!r} must be what to_dict() gives, with a 'kind' of {', '.join(KINDS)}"
        raise InvalidArgumentError(message)
    values = {name: tuple(each) if isinstance(each, list) else each for name, each in data.items()}
    del values["kind"]
    try:
        return kind(**values)
    except TypeError as error:
        raise InvalidArgumentError(f"data={data!r} does not fit: {error}") from error
