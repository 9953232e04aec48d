"""Changes of files that were refused, because a fault caused them. Plain data."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

from pytest_dataloader_faults._arguments import StrEnum
from pytest_dataloader_faults.outcomes.text import printable
from pytest_dataloader_faults.wire import Note, register


class Change(StrEnum):
    """What a call does to a file that was there before."""

    UNLINK = "unlink"
    RMDIR = "rmdir"
    RENAME = "rename"
    REPLACE = "replace"
    """Another file gets its name."""
    TRUNCATE = "truncate"
    WRITE = "write"
    MAP = "map"
    """The file is mapped so that stores change it."""

    @property
    def deletes(self) -> bool:
        """Whether a name is lost, instead of bytes."""
        return self in (Change.UNLINK, Change.RMDIR)


@dataclass(frozen=True)
class Refusal(Note):
    """A call that failed with EROFS because it would have changed a file for good.

    Attributes:
        path: The file, symbolic link or folder.
        change: What the call would have done to it.
        call: The system call.
        worker: The worker that made it; None for the main process.
        is_read: Whether a fault is about the file, or the dataset reads it.
        place: The place in the user's code: ``file:line in function``; "" if it is unknown.
    """

    path: str
    change: Change
    call: str
    worker: int | None
    is_read: bool
    place: str = ""


register(Refusal)


class FileCreated(NamedTuple):
    """A process of the trial has created this file.

    *born*: its birth time, in seconds; None if unknown. A later file may get its *inode*.
    """

    device: int
    inode: int
    born: float | None


class FileChanged(NamedTuple):
    """A process of the trial changes a file that was there before, without a fault.

    *new_path*: the name that it gets by ``Change.RENAME``.
    """

    path: str
    change: Change
    new_path: str = ""


class ChangeRefused(NamedTuple):
    """A file was not changed, because a fault had fired."""

    note: Refusal


FileEvent: TypeAlias = FileCreated | FileChanged | ChangeRefused


@dataclass
class FileHistory:
    """What is known of files when a trial starts. Trials add to it, mostly those without faults.

    Attributes:
        unseen: When processes ran that may have created files unseen: begins and ends, in seconds
            of the clock of file systems.
        created: The files that processes of trials have created.
        changed: The changes of older files that happen without a fault, too.
        read: The paths of the files that the dataset reads.
    """

    unseen: list[tuple[float, float]] = field(default_factory=list)
    created: set[FileCreated] = field(default_factory=set)
    changed: set[FileChanged] = field(default_factory=set)
    read: set[str] = field(default_factory=set)


def describe_change(refusal: Refusal) -> str:
    """What was refused, as a predicate: what would happen to which file, and where in the code."""
    verb = "delete" if refusal.change.deletes else "overwrite"
    place = f" ({refusal.place})" if refusal.place else ""
    return f"{verb} {printable(refusal.path)}{place}"
