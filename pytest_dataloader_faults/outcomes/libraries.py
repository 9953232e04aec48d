"""Libraries that datasets use: how each is recognized, and the advice for it. Pure.

A trial records facts: settings of libraries, files, calls and signals. Each ``Hint`` says which of
them identify a library or a format, for which causes that matters, and what to do then.
"""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import NamedTuple

from pytest_dataloader_faults.faults import CorruptedFile, OpenError, TruncatedFile
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
from pytest_dataloader_faults.outcomes.records import TrialFacts

_DIES = Verdict.CRASHED.usual_cause.phrase
_UNCLEAR = Verdict.FAILED_UNCLEARLY.usual_cause.phrase
_FAILS_WITHOUT_FAULT = Verdict.FAILS_WITHOUT_FAULT.usual_cause.phrase
_PILLOW = "PIL.ImageFile.LOAD_TRUNCATED_IMAGES"
_ZARR_STORE, _WEBDATASET = "zarr.storage.LocalStore", "webdataset.WebDataset"
_IMAGES = (".jpg", ".jpeg", ".png", ".tif", ".tiff", ".bmp", ".gif", ".webp", ".ppm")
_TABLES = (".csv", ".tsv")
_TAR = (".tar", ".tgz", ".tar.gz", ".tar.bz2", ".tar.xz")
_OF_ZARR = ("zarr.json", ".zarray")
"""The file in the folder of a Zarr array that describes it, in formats 3 and 2."""
_NO_SAMPLES = "No samples found in dataset"
"""In webdataset's message if a handler has skipped every archive."""


class Hint(NamedTuple):
    """How a library or a format is recognized, and the advice for it.

    Attributes:
        is_recognized: Whether the facts of a trial show it.
        causes: The likely causes for which that matters, by their phrases.
        advice: What happened, and what to do.
        fix: What to do, in one sentence.
    """

    is_recognized: Callable[[TrialFacts], bool]
    causes: tuple[str, ...]
    advice: str
    fix: str


class Library(NamedTuple):
    """A library or a format, and what identifies it.

    Attributes:
        name: Its name, as people call it.
        loaders: The classes of its datasets and loaders that are not torch's, by module.
        packages: The packages of its loaders that wrap a DataLoader.
        inner_loader: The attribute of such a loader that contains the DataLoader.
        settings: What can be set in its modules to accept bad files, or a class that hints name.
        words: Regular expressions for words of its messages about bad content, each with such a
            message.
        hints: Advice that is better for it than that of the cause.
        handles: Suffixes of files whose handle does not survive a fork.
        how_to_open: How to open such a file instead.
        errors: A regular expression for its errors about a handle that did not survive; "" if the
            error does not name it.
        lock_errors: A regular expression for its error if another process holds a lock.
        how_to_share: How several processes can read such a file at the same time.
    """

    name: str
    loaders: Mapping[str, str] = MappingProxyType({})
    packages: tuple[str, ...] = ()
    inner_loader: str = ""
    settings: tuple[str, ...] = ()
    words: Mapping[str, str] = MappingProxyType({})
    hints: tuple[Hint, ...] = ()
    handles: tuple[str, ...] = ()
    how_to_open: str = ""
    errors: str = ""
    lock_errors: str = ""
    how_to_share: str = ""


def _reads(*suffixes: str) -> Callable[[TrialFacts], bool]:
    """Whether the content of a file with one of the *suffixes* was bad."""

    def is_recognized(outcome: TrialFacts) -> bool:
        bad = (each for each in outcome.faults if Effect.BAD_DATA in each.fault.effects)
        paths = (firing.path or "" for each in bad for firing in each.firings)
        return any(path.lower().endswith(suffixes) for path in paths)

    return is_recognized


def _damages(*suffixes: str) -> Callable[[TrialFacts], bool]:
    """Whether bytes of a file with one of the *suffixes* were wrong, but none were lacking."""
    is_of_file = _reads(*suffixes)
    return lambda outcome: is_of_file(outcome) and outcome.has_fired(CorruptedFile)


def _has_setting(name: str, *suffixes: str) -> Callable[[TrialFacts], bool]:
    """Whether the setting *name* of a library was on when such a file was bad."""
    is_of_file = _reads(*suffixes)
    return lambda outcome: _is_set(name, outcome) and is_of_file(outcome)


def _is_set(name: str, outcome: TrialFacts) -> bool:
    return any(name in each.settings for each in outcome.processes)


def _got_sigbus(outcome: TrialFacts) -> bool:
    ends = (outcome.end.exitcode, *(each.exitcode for each in outcome.deaths))
    return -signal.SIGBUS in ends


def _got_sigbus_in(suffix: str, package: str) -> Callable[[TrialFacts], bool]:
    """Whether code of *package* got SIGBUS while a file with the *suffix* was mapped."""
    frame = re.compile(rf'File "[^"]*/(site|dist)-packages/{package}/')

    def is_recognized(outcome: TrialFacts) -> bool:
        paths = (firing.path or "" for firing in outcome.firings)
        is_mapped = any(os.path.splitext(each)[1] == suffix for each in paths)
        return is_mapped and _got_sigbus(outcome) and frame.search(outcome.stderr) is not None

    return is_recognized


def _maps_truncated_file(outcome: TrialFacts) -> bool:
    cut = (each for each in outcome.faults if isinstance(each.fault, TruncatedFile))
    maps = any(firing.call == "mmap" for each in cut for firing in each.firings)
    return maps or (_got_sigbus(outcome) and any(map(_is_truncation, outcome.schedule)))


def _is_truncation(fault: object) -> bool:
    return isinstance(fault, TruncatedFile)


def _lacks_zarr_chunk(outcome: TrialFacts) -> bool:
    """Whether a file below the folder of a Zarr array was missing, which zarr itself has read."""
    if not _is_set(_ZARR_STORE, outcome):
        return False
    opened = (path for process in outcome.processes for path in process.files)
    arrays = {os.path.dirname(path) for path in opened if os.path.basename(path) in _OF_ZARR}
    missing = (
        firing.path or ""
        for each in outcome.faults
        if isinstance(each.fault, OpenError) and each.fault.hides_file
        for firing in each.firings
    )
    folders = (folder for path in missing for folder in _list_parents(path))
    return any(folder.endswith(".zarr") or folder in arrays for folder in folders)


def _list_parents(path: str) -> Iterator[str]:
    while (parent := os.path.dirname(path)) != path:
        yield parent
        path = parent


def _skips_rest_of_archive(outcome: TrialFacts) -> bool:
    """Whether webdataset has read a tar archive that was hit by a fault that a reader notices."""
    noticed = (each for each in outcome.faults if not isinstance(each.fault, CorruptedFile))
    paths = (firing.path or "" for each in noticed for firing in each.firings)
    is_archive = any(path.lower().endswith(_TAR) for path in paths)
    return is_archive and _is_set(_WEBDATASET, outcome)


def _skips_all_archives(outcome: TrialFacts) -> bool:
    return outcome.fired > 0 and _raises(_NO_SAMPLES)(outcome)


def _raises(words: str) -> Callable[[TrialFacts], bool]:
    """Whether the message of the error contains these *words*."""
    return lambda outcome: outcome.exception is not None and words in outcome.exception.message


_AFTER_FORK = "in forked subprocess"
"""In torch's message when it rejects a forked process, for each kind of accelerator."""
_NOT_FORK_SAFE = "This class is not fork-safe"
"""In fsspec's message if a file system was created in another process."""
_ACCEPTS = (TRUNCATED, SHORT, DAMAGED, SUBSTITUTES, SKIPS)
_CAUGHT_ERROR = (
    "An error was caught, and the rest of the archive was skipped. With webdataset, remove handlers"
    " such as warn_and_continue from the pipeline: by default, the error is raised. If skipping is"
    " intentional, declare Contract(may_skip=True)"
)
_RAISE_ERROR = "raise the error: with webdataset, remove handlers such as warn_and_continue"
LIBRARIES = (
    Library(
        "Pillow",
        settings=(_PILLOW,),
        words={
            r"truncat": "image file is truncated (165 bytes not processed)",
            r"broken": "broken data stream when reading image file",
            r"cannot identify|Unidentified": "cannot identify image file '0042.jpg'",
        },
        hints=(
            Hint(
                _has_setting(_PILLOW, *_IMAGES),
                _ACCEPTS,
                "Pillow accepts truncated images because LOAD_TRUNCATED_IMAGES is set. Remove"
                f" {_PILLOW} = True, and let Pillow's OSError reach the loader",
                f"remove {_PILLOW} = True",
            ),
        ),
    ),
    Library(
        "tarfile",
        words={r"EOF|end of (file|data|input|stream|archive)": "unexpected end of data"},
        hints=(
            Hint(
                _reads(*_TAR),
                (TRUNCATED,),
                "An archive that ends between two members looks complete to tarfile. Check that"
                " the last 1,024 bytes are zeros, which mark the end of an archive, or compare the"
                " number of members with a count that you store elsewhere, and raise an error if"
                " the check fails",
                "check that the tar archive ends with 1,024 zero bytes, or count its members",
            ),
            Hint(
                _damages(*_TAR),
                (SKIPS,),
                "tarfile takes a damaged header of a member for the end of the archive. Compare"
                " the number of members with a count that you store elsewhere, and raise an error"
                " if they differ. If your code catches an error of the decoder instead, raise it",
                "count the members of the tar archive, and raise every error",
            ),
        ),
    ),
    Library(
        "csv",
        hints=(
            Hint(
                _reads(*_TABLES),
                (TRUNCATED,),
                "A truncated table is still a valid, shorter table. Compare its number of rows"
                " with the number of samples in your other files, or with a count that you store"
                " elsewhere, and raise an error if they differ",
                "compare the number of rows with the number of samples, or with a count that you"
                " store",
            ),
        ),
    ),
    Library(
        "Arrow",
        words={
            r"stat\(\)ing file": "error stat()ing file",
            r"able to read": "Expected to be able to read 65608 bytes, got 32668",
            r"footer": "Parquet magic bytes not found in footer",
        },
    ),
    Library(
        "Hugging Face datasets",
        loaders={
            "datasets.arrow_dataset": "Dataset",
            "datasets.iterable_dataset": "IterableDataset",
        },
        hints=(
            Hint(
                _got_sigbus_in(".arrow", "datasets"),
                (_DIES,),
                "Hugging Face datasets maps its Arrow files. Load the dataset with"
                " keep_in_memory=True: then the files are read instead, and a failed read raises an"
                " OSError. If mapping is intentional, list the check in expected_failures",
                "load the dataset with keep_in_memory=True",
            ),
        ),
    ),
    Library(
        "NumPy",
        words={
            r"magic": "the magic string is not correct; expected b'NUMPY', got b''",
            r"no data": "No data left in file",
            r"could only read|fully written": "(file seems not fully written?)",
            r"contains pickled": "This file contains pickled (object) data",
            r"reshape": "cannot reshape array of size 0 into shape (64,64)",
            r"(smaller|larger|greater) than": "mmap length is greater than file size",
            r"not a multiple": "Size of available data is not a multiple of the data-type size",
            r"number of columns changed": "the number of columns changed from 3 to 1 at row 151",
        },
        hints=(
            Hint(
                _maps_truncated_file,
                (TRUNCATED, _DIES),
                "A mapping contains whatever is there: np.memmap without a shape, for example,"
                " does not notice a truncated file. Before you map a file, compare"
                " os.path.getsize(path) with the size that you expect, math.prod(shape) *"
                " dtype.itemsize, and raise an error if they differ",
                "compare os.path.getsize(path) with math.prod(shape) * dtype.itemsize before"
                " mapping",
            ),
        ),
    ),
    Library(
        "a dataset",
        words={
            r"expected \d+|bytes? (expected|missing|remain)": "12 bytes, expected 64",
            r"damaged|mismatch|\bshort(er)?\b|out of (bounds|range)": "record 3 is too short",
            r"not supported(?! between)": "version 0 of the format is not supported",
        },
    ),
    Library(
        "webdataset",
        settings=(_WEBDATASET,),
        hints=(
            Hint(_skips_rest_of_archive, (SKIPS,), _CAUGHT_ERROR, _RAISE_ERROR),
            Hint(_skips_all_archives, (_UNCLEAR,), _CAUGHT_ERROR, _RAISE_ERROR),
        ),
    ),
    Library(
        "Zarr",
        settings=(_ZARR_STORE,),
        hints=(
            Hint(
                _lacks_zarr_chunk,
                (SUBSTITUTES,),
                "Zarr returns fill_value for a chunk that has no file, because it takes it for one"
                " that was never written. If every chunk was written (write_empty_chunks=True),"
                " read the array through a store that raises an error: in Zarr 3, override get()"
                " of zarr.storage.LocalStore, which returns None for a missing chunk. If missing"
                " chunks are intentional, declare Contract(may_substitute=True)",
                "read Zarr through a store whose get() raises an error for a missing chunk",
            ),
        ),
    ),
    Library(
        "fsspec",
        hints=(
            Hint(
                _raises(_NOT_FORK_SAFE),
                (_FAILS_WITHOUT_FAULT,),
                "fsspec runs its connections in a thread, which a fork does not copy, so a file"
                " system that was created in the main process (s3fs, gcsfs, HTTP) fails in forked"
                " workers. Call fsspec.filesystem() in the worker, in each __getitem__ or"
                " __iter__: it keeps one file system per process. Or start workers with spawn",
                "call fsspec.filesystem() in the worker, on each access",
            ),
        ),
    ),
    Library(
        "torch",
        hints=(
            Hint(
                _raises(_AFTER_FORK),
                (_FAILS_WITHOUT_FAULT,),
                "A forked worker cannot use an accelerator that the training process has used."
                " Return CPU tensors from __getitem__ and collate_fn, and move each batch to the"
                " accelerator in the training loop. If workers must compute on it, start them with"
                " spawn",
                "return CPU tensors from workers, and move batches in the training loop",
            ),
        ),
    ),
    Library(
        "HDF5",
        words={
            r"\bbad (byte|symbol|local|global|object|heap|rank|version|[\d/]+)\b": "bad byte 3",
            r"signature|\bnot found\b": "Unable to open file (file signature not found)",
            r"filter returned failure": "Can't read data (filter returned failure during read)",
        },
        handles=(".h5", ".hdf5", ".hdf"),
        how_to_open="HDF5 does not survive a fork: open h5py.File in the worker, on first access",
        lock_errors="unable to lock file",
        how_to_share="Open it for reading only: h5py.File(path, 'r')",
    ),
    Library(
        "LMDB",
        words={r"corrupt": "MDB_CORRUPTED: Located page was wrong type"},
        handles=(".mdb", ".lmdb"),
        how_to_open=(
            "LMDB does not survive a fork, and py-lmdb refuses to open the same path twice in one"
            " process. Open the environment in the worker, on first access. If the main process has"
            " opened it already, close it in the worker first: if self.env is not None and self.pid"
            " != os.getpid(): self.env.close()"
        ),
        errors=r"lmdb\.|MDB_[A-Z_]+|already open in this process",
    ),
    Library(
        "accelerate",
        packages=("accelerate",),
        inner_loader="base_dataloader",
    ),
    Library(
        "Lightning Fabric",
        loaders={
            "lightning.fabric.wrappers": "_FabricDataLoader",
            "lightning_fabric.wrappers": "_FabricDataLoader",
        },
        packages=("lightning", "lightning_fabric"),
        inner_loader="_dataloader",
    ),
    Library("libjpeg", words={r"premature": "Premature end of JPEG file"}),
    Library(
        "array_record",
        words={r"should be at least \d+KB": "ArrayRecord file should be at least 64KB big"},
    ),
    Library("SciPy", words={r"not (understood|recogni[sz]ed)": "File format b'' not understood"}),
    Library(
        "SQLite",
        words={r"malformed": "database disk image is malformed"},
        lock_errors="database is locked",
        how_to_share=(
            "Open it for reading only: sqlite3.connect(f'file:{path}?mode=ro', uri=True). Workers"
            " that write to it must end each transaction at once"
        ),
    ),
    Library(
        "DuckDB",
        lock_errors="Could not set lock on file",
        how_to_share="Open it for reading only: duckdb.connect(path, read_only=True)",
    ),
    Library(
        "filelock",
        lock_errors=r"The file lock .* could not be acquired",
        how_to_share="Release the lock as soon as the file is written, and wait for it longer",
    ),
    Library(
        "tfrecord", words={r"failed to read the (record|start|end)": "Failed to read the record."}
    ),
    Library(
        "safetensors",
        words={r"header|deserializ|too (small|few)": "deserializing header: header too small"},
    ),
    Library("nibabel", words={r"cannot work out": "Cannot work out file type of the image"}),
    Library(
        "torchvision",
        words={r"unsupported (?!operand)": "Unsupported image file. Only jpeg, png and gif are"},
    ),
    Library(
        "gzip",
        words={
            r"unexpected (?!keyword)": "unexpected end of stream",
            r"not a \w+ file": "Not a gzipped file (b'')",
        },
    ),
    Library(
        "bz2",
        words={
            r"ended before": "Compressed data ended before the end-of-stream marker was reached"
        },
    ),
    Library(
        "zlib",
        words={r"incomplete": "Error -5 while decompressing data: incomplete or truncated stream"},
    ),
    Library(
        "zipfile",
        words={
            r"not a (zip|valid)|BadZip": "File is not a zip file",
            r"CRC": "Bad CRC-32 for file '42.rec'",
            r"no item named": "There is no item named '42.rec' in the archive",
        },
    ),
    Library("pickle", words={r"ran out|unpickl": "Ran out of input"}),
    Library(
        "struct",
        words={r"unpack|buffer (size|length|is)": "unpack requires a buffer of 16384 bytes"},
    ),
    Library("Python", words={r"not enough": "not enough values to unpack (expected 2, got 1)"}),
    Library("mmap", words={r"empty": "cannot mmap an empty file"}),
    Library(
        "json",
        words={r"decod|parse": "json.decoder.JSONDecodeError: Expecting value: line 1 column 1"},
    ),
    Library("FFmpeg", words={r"invalid": "Invalid data found when processing input"}),
    Library("Megatron", words={r"expected format": "Index file doesn't match expected format"}),
    Library("Zstandard", words={r"checksum": "Restored data doesn't match checksum"}),
)
"""All libraries. If the hints of several apply, those of the first are used."""


def library_of_lock(outcome: TrialFacts) -> Library | None:
    """The library whose error says that another process holds a lock, if one does."""
    text = outcome.exception.text if outcome.exception else ""
    return next(
        (each for each in LIBRARIES if each.lock_errors and re.search(each.lock_errors, text)), None
    )


def add_advice(outcome: TrialFacts, cause: Cause) -> Cause:
    """Replace the advice of *cause* by that for a library, if one is recognized."""
    if cause.overrides:  # Its advice already follows from what was recognized.
        return cause
    for hint in (hint for library in LIBRARIES for hint in library.hints):
        if cause.phrase in hint.causes and hint.is_recognized(outcome):
            return cause._replace(advice=hint.advice, fix=hint.fix, overrides=True)
    return cause
