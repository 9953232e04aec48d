"""Folders that cannot be listed, or in another order, and entries that lack or are too many."""

import ctypes
import glob
import os
import pathlib
import sys
from errno import ENOENT, ESTALE
from functools import partial
from typing import Any

from pytest_dataloader_faults.faults import ListingError, ListingOrder, OpenError, StrayEntry
from support.attempts import list_by_descriptor
from support.contracts.row import Row, errno

COUNT = 30
LOST, HIDDEN, PART = "07.rec", ".DS_Store", "00.rec.part"


def _write_folder(path: str) -> None:
    os.mkdir(path)
    for number in range(COUNT):
        with open(f"{path}/{number:02}.rec", "wb") as file:
            file.write(b"0123456789")


def _list_after_a_look(folder):
    """Like ``any(os.scandir(folder))``, which leaves a listing in the middle."""
    with os.scandir(folder) as entries:
        next(entries)
    return os.listdir(folder)


def _list_with_libc(folder):
    """By telldir(3) and seekdir(3), back to the middle: the entries from there, twice."""
    libc = ctypes.CDLL(None, use_errno=True)
    for name in ("opendir", "readdir"):
        getattr(libc, name).restype = ctypes.c_void_p
    libc.telldir.restype = ctypes.c_long
    libc.telldir.argtypes = libc.readdir.argtypes = libc.closedir.argtypes = (ctypes.c_void_p,)
    libc.seekdir.argtypes = (ctypes.c_void_p, ctypes.c_long)
    stream = libc.opendir(os.fsencode(folder))
    names = _read_names(libc, stream, len(os.listdir(folder)) // 2)
    middle = libc.telldir(stream)
    rest = _read_names(libc, stream)
    libc.seekdir(stream, middle)
    assert _read_names(libc, stream) == rest
    libc.closedir(stream)
    return [name for name in (*names, *rest) if name not in (".", "..")]


def _read_names(libc, stream, count=sys.maxsize):
    names = []
    while len(names) < count and (entry := libc.readdir(stream)):
        names.append(os.fsdecode(ctypes.string_at(entry + 19)))
    return names


WAYS = {
    "os.listdir": os.listdir,
    "os.scandir": lambda folder: [entry.name for entry in os.scandir(folder)],
    "glob.glob": lambda folder: [
        *map(os.path.basename, glob.glob(f"{folder}/*", include_hidden=True))
    ],
    "pathlib": lambda folder: [path.name for path in pathlib.Path(folder).iterdir()],
    "descriptor": list_by_descriptor,
    "after a look": _list_after_a_look,
    "readdir": _list_with_libc,
}
OF_FILES = {
    "is_file": lambda folder: [entry.name for entry in os.scandir(folder) if entry.is_file()],
    "Path.is_file": lambda folder: [
        path.name for path in pathlib.Path(folder).glob("*") if path.is_file()
    ],
    "walk": lambda folder: next(os.walk(folder))[2],
}
"""Ways to list files alone, which examine each entry."""


def _missing(path: str, **triggers: Any) -> OpenError:
    return OpenError(f"{path}/{LOST}", ENOENT, **triggers)


def _with(entry: str) -> Any:
    return lambda names, right: sorted(names) == sorted([*right, entry])


HIDING = ("glob.glob", "readdir", *OF_FILES)
"""Ways that show no error, or hide it."""
_FAULTS = {
    "reversed": (ListingOrder, lambda names, right: names == right[::-1]),
    "random": (
        lambda path, **triggers: ListingOrder(path, "random", **triggers),
        lambda names, right: names != right and sorted(names) == sorted(right),
    ),
    "missing": (_missing, lambda names, right: names == [n for n in right if n != LOST]),
    "entry": (partial(StrayEntry, name=HIDDEN), _with(HIDDEN)),
    "copied entry": (partial(StrayEntry, name="*.part"), _with(PART)),
    "error": (partial(ListingError, errno=ESTALE), errno(ESTALE)),
}
LISTINGS = {
    f"{fault}, {name}": Row(make, way, effect, _write_folder, is_counted=fault == "error")
    for fault, (make, effect) in _FAULTS.items()
    for name, way in {**WAYS, **OF_FILES}.items()
    if fault != "error" or name not in HIDING
}
