"""Faults of folders: how their entries are listed, which are missing, and which are added."""

from __future__ import annotations

import os
from dataclasses import KW_ONLY, dataclass
from typing import ClassVar

from pytest_dataloader_faults.faults.base import (
    MAX_NAME,
    Effect,
    FailedCall,
    FileFault,
    InWorkers,
    Place,
    kind,
)


@kind
@dataclass(frozen=True, slots=True, repr=False)
class ListingOrder(InWorkers, FileFault):
    """The entries of each matching folder are listed in another order, the same one every time.

    Applies to getdents64(2), which os.listdir, os.scandir, glob and pathlib use. The order in which
    a folder is listed depends on the file system and on the machine.

    *path* matches folders. *order* is ``"reversed"``, the opposite of the real order, or
    ``"random"``, an order that *seed* and the folder's name determine.
    """

    happens_in: ClassVar = Place.LISTING
    effects: ClassVar = Effect.ORDER
    needs_worker: ClassVar = False
    operation: ClassVar = "listings"
    order: str = "reversed"
    _: KW_ONLY
    seed: int = 0


@kind
@dataclass(frozen=True, slots=True, repr=False)
class ListingError(FailedCall):
    """Listing a matching folder fails with EIO, or the errno of your choice.

    Applies to getdents64(2), which fails with *errno*. One listing counts once, however many calls
    it needs. *path* matches folders.
    """

    happens_in: ClassVar = Place.LISTING
    operation: ClassVar = "listings"


@kind
@dataclass(frozen=True, slots=True, repr=False)
class StrayEntry(InWorkers, FileFault):
    """Each matching folder contains one more file, which no one meant as data.

    Listings contain it. open(2), stat(2) and access(2) treat it as a regular file, whose content
    read(2) returns. The folder itself does not change.

    *path* matches folders. *name* is the name of the file, which is empty. A ``*`` in it stands for
    the name of the first visible file in the folder, in alphabetical order, and the content is the
    first half of that file: ``"*.part"`` is what an interrupted copy leaves. A folder stays as it
    is if it already contains that name, or no file to copy.
    """

    happens_in: ClassVar = Place.OPEN | Place.STAT | Place.LISTING
    effects: ClassVar = Effect.BAD_DATA
    is_at_rest: ClassVar = True
    needs_worker: ClassVar = False
    operation: ClassVar = "listings"
    name: str = ".DS_Store"

    @property
    def is_copy(self) -> bool:
        """Whether it is a copy of another file."""
        return "*" in self.name

    def copy_of(self, name: str) -> str:
        """The name of the file of which *name*, an entry by this fault, is a copy.

        It is "" if *name* cannot be a copy by this fault.
        """
        head, _, tail = self.name.partition("*")
        is_longer = len(name) > len(head) + len(tail)
        if not (is_longer and name.startswith(head) and name.endswith(tail)):
            return ""
        return name[len(head) : len(name) - len(tail)]

    def entry_for(self, original: str) -> str:
        """The name of the entry that is a copy of *original*; "" if it would be too long."""
        entry = self.name.replace("*", original)
        return entry if len(os.fsencode(entry)) <= MAX_NAME else ""
