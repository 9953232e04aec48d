"""Libraries that datasets use: how each is recognized, and the advice for it. Pure.

A trial records facts: settings of libraries, files, calls and signals. Each ``Hint`` says which of
them identify a library or a format, for which causes that matters, and what to do then.
"""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable, Iterator
from typing import NamedTuple

from pytest_dataloader_faults.faults import CorruptedFile, Fault, OpenError, TruncatedFile
from pytest_dataloader_faults.faults.base import Effect
from pytest_dataloader_faults.outcomes.contract import (
    DAMAGED,
    SHORT,
    SKIPS,
    SUBSTITUTES,
    TRUNCATED,
    Cause,
    Verdict,
)
from pytest_dataloader_faults.outcomes.records import Outcome

LOADERS = (
    ("datasets.arrow_dataset", "Dataset"),
    ("datasets.iterable_dataset", "IterableDataset"),
    ("lightning.fabric.wrappers", "_FabricDataLoader"),
    ("lightning_fabric.wrappers", "_FabricDataLoader"),
)
"""The modules and classes of datasets and loaders that are not torch's."""
INNER_LOADERS = {
    "accelerate": "base_dataloader",
    "lightning": "_dataloader",
    "lightning_fabric": "_dataloader",
}
"""Packages of loaders that wrap a DataLoader, and the attribute that contains it."""
_PILLOW = "PIL.ImageFile.LOAD_TRUNCATED_IMAGES"
_WEBDATASET = "webdataset.WebDataset"
_ZARR_STORE = "zarr.storage.LocalStore"
_IMREAD = "cv2.imread"
SETTINGS = (_PILLOW, _WEBDATASET, _ZARR_STORE, _IMREAD)
"""What can be set in modules of libraries to accept bad files, or a class that hints name."""
HOW_TO_SHARE = {
    "unable to lock file": "Open it for reading only: h5py.File(path, 'r')",
    "database is locked": (
        "Open it for reading only: sqlite3.connect(f'file:{path}?mode=ro', uri=True). Workers that"
        " write to it must end each transaction at once"
    ),
    "Could not set lock on file": "Open it for reading only: duckdb.connect(path, read_only=True)",
    "The file lock .* could not be acquired": (
        "Release the lock as soon as the file is written, and wait for it longer"
    ),
}
"""How several processes can read a file, by the library's error if another holds its lock."""


class Handle(NamedTuple):
    """A library whose handle of a file does not survive a fork.

    Attributes:
        suffixes: Those of its files.
        how_to_open: How to open such a file instead.
        errors: A regular expression for its errors about a handle that did not survive; "" if the
            error does not name it.
    """

    suffixes: tuple[str, ...]
    how_to_open: str
    errors: str = ""


_HDF5 = (".h5", ".hdf5", ".hdf")
HANDLES = (
    Handle(_HDF5, "HDF5 does not survive a fork: open h5py.File in the worker, on first access"),
    Handle(
        (".mdb", ".lmdb"),
        "LMDB does not survive a fork, and py-lmdb refuses to open the same path twice in one"
        " process. Open the environment in the worker, on first access. If the main process has"
        " opened it already, close it in the worker first: if self.env is not None and self.pid !="
        " os.getpid(): self.env.close()",
        r"lmdb\.|MDB_[A-Z_]+|already open in this process",
    ),
)


class Hint(NamedTuple):
    """Advice that is better for a library or a format than that of the cause.

    Attributes:
        library: The name of the library, as people call it.
        is_recognized: Whether the facts of a trial show it.
        causes: The likely causes for which that matters, by their phrases.
        advice: What happened, and what to do.
        fix: What to do, in one sentence.
    """

    library: str
    is_recognized: Callable[[Outcome], bool]
    causes: tuple[str, ...]
    advice: str
    fix: str


def _hit_files(outcome: Outcome, is_kind: Callable[[Fault], bool]) -> list[str]:
    """The files that were hit by faults of a kind."""
    faults = (each for each in outcome.faults if is_kind(each.fault))
    return [firing.path or "" for each in faults for firing in each.firings]


def _has_bad(suffixes: tuple[str, ...], outcome: Outcome) -> bool:
    """Whether the content of a file with one of the *suffixes* was bad."""
    files = _hit_files(outcome, lambda fault: Effect.BAD_DATA in fault.effects)
    return any(path.lower().endswith(suffixes) for path in files)


def _is_set(name: str, outcome: Outcome) -> bool:
    return any(name in each.settings for each in outcome.processes)


def _raises(words: str, outcome: Outcome) -> bool:
    """Whether the message of the error contains these *words*."""
    return outcome.exception is not None and words in outcome.exception.message


def _got_sigbus(outcome: Outcome) -> bool:
    ends = (outcome.end.exitcode, *(each.exitcode for each in outcome.deaths))
    return -signal.SIGBUS in ends


def _got_sigbus_in_arrow_file(outcome: Outcome) -> bool:
    """Whether code of Hugging Face datasets got SIGBUS while an Arrow file was mapped."""
    is_mapped = any((firing.path or "").endswith(".arrow") for firing in outcome.firings)
    frame = re.search(r'File "[^"]*/(site|dist)-packages/datasets/', outcome.stderr)
    return is_mapped and _got_sigbus(outcome) and frame is not None


def _maps_truncated_file(outcome: Outcome) -> bool:
    cut = [each for each in outcome.faults if isinstance(each.fault, TruncatedFile)]
    maps = any(firing.call == "mmap" for each in cut for firing in each.firings)
    return maps or (
        _got_sigbus(outcome) and any(isinstance(each, TruncatedFile) for each in outcome.schedule)
    )


def _lacks_zarr_chunk(outcome: Outcome) -> bool:
    """Whether a file below the folder of a Zarr array was missing, which zarr itself has read.

    The folder has a file that describes the array, in format 3 or 2.
    """
    if not _is_set(_ZARR_STORE, outcome):
        return False
    opened = (path for process in outcome.processes for path in process.files)
    arrays = {os.path.dirname(path) for path in opened if path.endswith(("/zarr.json", "/.zarray"))}
    missing = _hit_files(outcome, lambda fault: isinstance(fault, OpenError) and fault.hides_file)
    folders = (folder for path in missing for folder in _list_parents(path))
    return any(folder.endswith(".zarr") or folder in arrays for folder in folders)


def _list_parents(path: str) -> Iterator[str]:
    while (parent := os.path.dirname(path)) != path:
        yield parent
        path = parent


def _lacks_hdf5_source(outcome: Outcome) -> bool:
    """Whether a file of HDF5 could not be opened, and another one could, as that of its readers."""
    refused = set(_hit_files(outcome, lambda fault: isinstance(fault, OpenError)))
    opened = (path for process in outcome.processes for path in process.files)
    has_both = any(path.endswith(_HDF5) for path in {*opened} - refused)
    return has_both and any(path.endswith(_HDF5) for path in refused)


def _skips_rest_of_archive(outcome: Outcome) -> bool:
    """Whether webdataset has read a tar archive that was hit by a fault that a reader notices."""
    files = _hit_files(outcome, lambda fault: not isinstance(fault, CorruptedFile))
    is_archive = any(path.lower().endswith(_TAR) for path in files)
    return is_archive and _is_set(_WEBDATASET, outcome)


_IMAGES = (".jpg", ".jpeg", ".png", ".tif", ".tiff", ".bmp", ".gif", ".webp", ".ppm")
_TAR = (".tar", ".tgz", ".tar.gz", ".tar.bz2", ".tar.xz")
_ACCEPTS = (TRUNCATED, SHORT, DAMAGED, SUBSTITUTES, SKIPS)
_DIES = Verdict.CRASHED.usual_cause.phrase
_UNCLEAR = Verdict.FAILED_UNCLEARLY.usual_cause.phrase
_FAILS_WITHOUT_FAULT = Verdict.FAILS_WITHOUT_FAULT.usual_cause.phrase
_CAUGHT_ERROR = (
    "An error was caught, and the rest of the archive was skipped. With webdataset, remove handlers"
    " such as warn_and_continue from the pipeline: by default, the error is raised. If skipping is"
    " intentional, declare Contract(may_skip=True)"
)
_RAISE_ERROR = "raise the error: with webdataset, remove handlers such as warn_and_continue"
HINTS = (
    Hint(
        "Pillow",
        lambda outcome: _is_set(_PILLOW, outcome) and _has_bad(_IMAGES, outcome),
        _ACCEPTS,
        "Pillow accepts truncated images because LOAD_TRUNCATED_IMAGES is set. Remove"
        f" {_PILLOW} = True, and let Pillow's OSError reach the loader",
        f"remove {_PILLOW} = True",
    ),
    Hint(
        "OpenCV",
        lambda outcome: _is_set(_IMREAD, outcome) and _has_bad((".jpg", ".jpeg"), outcome),
        (TRUNCATED,),
        "OpenCV decodes a JPEG whose end is missing, and fills the rest of the picture with gray."
        " Check that the last two bytes of the file are 0xFF 0xD9, which mark its end, or decode it"
        " with Pillow, which raises an error",
        "check that a JPEG ends with 0xFF 0xD9, or decode it with Pillow",
    ),
    Hint(
        "tarfile",
        lambda outcome: _has_bad(_TAR, outcome),
        (TRUNCATED,),
        "An archive that ends between two members looks complete to tarfile. Check that the last"
        " 1,024 bytes are zeros, which mark the end of an archive, or compare the number of members"
        " with a count that you store elsewhere, and raise an error if the check fails",
        "check that the tar archive ends with 1,024 zero bytes, or count its members",
    ),
    Hint(
        "tarfile",
        lambda outcome: _has_bad(_TAR, outcome) and outcome.has_fired(CorruptedFile),
        (SKIPS,),
        "tarfile takes a damaged header of a member for the end of the archive. Compare the number"
        " of members with a count that you store elsewhere, and raise an error if they differ. If"
        " your code catches an error of the decoder instead, raise it",
        "count the members of the tar archive, and raise every error",
    ),
    Hint(
        "Arrow",
        lambda outcome: _has_bad((".arrow",), outcome),
        (TRUNCATED,),
        "A stream of Arrow that ends between two batches looks complete. Compare the number of"
        " rows, such as len() of a dataset of Hugging Face, with a count that you store elsewhere",
        "compare the number of rows of an Arrow file with a count that you store",
    ),
    Hint(
        "csv",
        lambda outcome: _has_bad((".csv", ".tsv"), outcome),
        (TRUNCATED,),
        "A truncated table is still a valid, shorter table. Compare its number of rows with the"
        " number of samples in your other files, or with a count that you store elsewhere, and"
        " raise an error if they differ",
        "compare the number of rows with the number of samples, or with a count that you store",
    ),
    Hint(
        "Hugging Face datasets",
        _got_sigbus_in_arrow_file,
        (_DIES,),
        "Hugging Face datasets maps its Arrow files. Load the dataset with keep_in_memory=True:"
        " then the files are read instead, and a failed read raises an OSError. If mapping is"
        " intentional, list the check in expected_failures",
        "load the dataset with keep_in_memory=True",
    ),
    Hint(
        "NumPy",
        _maps_truncated_file,
        (TRUNCATED, _DIES),
        "A mapping contains whatever is there: np.memmap without a shape, for example, does not"
        " notice a truncated file. Before you map a file, compare os.path.getsize(path) with the"
        " size that you expect, math.prod(shape) * dtype.itemsize, and raise an error if they"
        " differ",
        "compare os.path.getsize(path) with math.prod(shape) * dtype.itemsize before mapping",
    ),
    Hint("webdataset", _skips_rest_of_archive, (SKIPS,), _CAUGHT_ERROR, _RAISE_ERROR),
    Hint(
        "webdataset",
        lambda outcome: outcome.fired > 0 and _raises("No samples found in dataset", outcome),
        (_UNCLEAR,),
        _CAUGHT_ERROR,
        _RAISE_ERROR,
    ),
    Hint(
        "Zarr",
        _lacks_zarr_chunk,
        (SUBSTITUTES,),
        "Zarr returns fill_value for a chunk that has no file, because it takes it for one that was"
        " never written. If every chunk was written (write_empty_chunks=True), read the array"
        " through a store that raises an error: in Zarr 3, override get() of"
        " zarr.storage.LocalStore, which returns None for a missing chunk. If missing chunks are"
        " intentional, declare Contract(may_substitute=True)",
        "read Zarr through a store whose get() raises an error for a missing chunk",
    ),
    Hint(
        "HDF5",
        _lacks_hdf5_source,
        (SUBSTITUTES,),
        "A virtual dataset of HDF5 has its fill value, and no error, where a source cannot be"
        " opened. Open the files that virtual_sources() names first, or read them directly",
        "open the files that virtual_sources() of an HDF5 dataset names",
    ),
    Hint(
        "fsspec",
        lambda outcome: _raises("This class is not fork-safe", outcome),
        (_FAILS_WITHOUT_FAULT,),
        "fsspec runs its connections in a thread, which a fork does not copy, so a file system that"
        " was created in the main process (s3fs, gcsfs, HTTP) fails in forked workers. Call"
        " fsspec.filesystem() in the worker, in each __getitem__ or __iter__: it keeps one file"
        " system per process. Or start workers with spawn",
        "call fsspec.filesystem() in the worker, on each access",
    ),
    Hint(
        "torch",
        lambda outcome: _raises("in forked subprocess", outcome),
        (_FAILS_WITHOUT_FAULT,),
        "A forked worker cannot use an accelerator that the training process has used. Return CPU"
        " tensors from __getitem__ and collate_fn, and move each batch to the accelerator in the"
        " training loop. If workers must compute on it, start them with spawn",
        "return CPU tensors from workers, and move batches in the training loop",
    ),
)
"""If several apply, the first is used."""


def add_advice(outcome: Outcome, cause: Cause) -> Cause:
    """Replace the advice of *cause* by that for a library, if one is recognized."""
    if cause.advice and not cause.is_general:  # It already follows from what was recognized.
        return cause
    for hint in HINTS:
        if cause.phrase in hint.causes and hint.is_recognized(outcome):
            return cause._replace(advice=hint.advice, fix=hint.fix, is_general=False)
    return cause
