"""What a file operation does under a fault. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

from pytest_dataloader_faults import faults as vocabulary
from pytest_dataloader_faults._engine.file_copies import FileEdit
from pytest_dataloader_faults._engine.plan import FaultCounter

OPEN, STAT, MAP = "openat", "newfstatat", "mmap"
"""System calls by which the python engine names the operations that it sees."""
CONNECT, ANSWER = "connect", "recv"
"""How firings name the making of a connection, and what comes from its peer."""
OF_EXCLUDED = "open of an excluded file"
"""How ``unobserved`` names what only its folder spared."""
OF_INHERITED, BY_MAPPING = (
    "write of a file that was open before the worker began",
    "write through a mapping",
)
"""How ``unobserved`` names writes that cannot fail."""


class Fail(NamedTuple):
    """The operation raises OSError. Of a mapping, pages from *offset* on cannot be read."""

    errno: int
    offset: int = 0


class Closed(NamedTuple):
    """The descriptor is not open; with *reuse*, it belongs to another file of the same length."""

    reuse: bool


class Substitute(NamedTuple):
    """The file is a copy that differs by *edit*."""

    edit: FileEdit


class Short(NamedTuple):
    """A read gives, or a write takes, *max_bytes* at most."""

    max_bytes: int


class Delay(NamedTuple):
    """The operation takes *seconds* longer."""

    seconds: float


class Hang(NamedTuple):
    """The operation does not return while faults are armed."""


class Die(NamedTuple):
    """The worker dies within a read or write of *path*. The fault of *counter* fires by that."""

    counter: FaultCounter[vocabulary.WorkerKilled]
    path: str


class CutOff(NamedTuple):
    """The connection ends *after* bytes of an answer: it is reset, or closed as at its end."""

    after: int
    is_reset: bool


Action: TypeAlias = Fail | Closed | Substitute | Short | Delay | Hang | Die
Actions: TypeAlias = Sequence[Action]
"""To be carried out in order: first what takes time, then at most one of the others."""


class Operation(NamedTuple):
    """An operation on *path*, absolute. *pid* is None for the worker process itself."""

    call: str
    path: str
    pid: int | None = None
