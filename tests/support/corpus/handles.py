"""Handles opened before the fork, and shared by workers: bugs, and twins without them.

Who has the bug opens in ``__init__``, as a first version of a dataset does, or for the first
sample, as the second one does.
"""

import os
from pathlib import Path
from typing import Any

from support.corpus.archives import (
    H5,
    STRIDE,
    Archive,
    Buffered,
    H5Rows,
    Lmdb,
    Npz,
    Remote,
    Sqlite,
    Tar,
    Unbuffered,
    Zip,
)
from support.corpus.cases import Case
from support.datasets import SIZE


class InInit(Archive):
    """Mixed in: opens in ``__init__``, keeps the handle, and leaves it to the workers."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.handle = self._open()

    def __getitem__(self, index: int) -> Any:
        return self._sample(index)

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__


class AtFirstUse(Archive):
    """Mixed in: opens for the first sample, whichever process that is in."""

    def __getitem__(self, index: int) -> Any:
        if self.handle is None:
            self.handle = self._open()
        return self._sample(index)


class BufferedInInit(InInit, Buffered):
    """Every worker trusts a buffer and an offset that the others move."""


class UnbufferedInInit(InInit, Unbuffered):
    """Between the seek and the read, another worker seeks."""


class UnbufferedAtFirstUse(AtFirstUse, Unbuffered):
    """Shared if the main process reads a sample."""


class PositionalAtFirstUse(UnbufferedAtFirstUse):
    """May share the handle, but reads at its own positions: healthy."""

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "handle": None}

    def _read(self, index: int) -> bytes:
        return os.pread(self.handle.fileno(), SIZE, index * STRIDE)


class H5InInit(InInit, H5):
    """HDF5 says that its handles are not to be used after a fork."""


class H5StaysOpen(H5Rows):
    """Goes on with it after an error: HDF5 gives zeros from the buffer that was not filled."""

    def __getitem__(self, index: int) -> Any:
        return H5.__getitem__(self, index)


class ZipInInit(InInit, Zip):
    """One of the errors is a bad CRC of a file that is whole."""


class NpzInInit(InInit, Npz):
    """``np.load`` of an npz reads nothing yet; it keeps a zip archive."""


class TarInInit(InInit, Tar):
    """The samples are wrong, without an error."""


class LmdbInInit(InInit, Lmdb):
    """Each transaction of a forked child takes a slot, and gives none back."""


class SqliteInInit(InInit, Sqlite):
    """SQLite says that a connection must not be carried over a fork."""


class RemoteAtFirstUse(AtFirstUse, Remote):
    """Its event loop runs in a thread, which a forked worker does not have."""


MANY = {"samples": None}
"""LMDB has 126 slots for readers: each worker must read more samples than a battery checks."""
_REMOTE = {"exclude": ["thread-exhaustion"]}
"""fsspec waits without a limit for its event loop, whose thread could not start."""
WRONG = "no exception was raised"
"""How the scheduler runs two workers decides which samples are wrong, and in what way."""
FAILED = "the loader raised "
CASES = (
    Case("A1", BufferedInInit, "workers-agree", f"corrupted: {WRONG}", Buffered),
    Case("A2", UnbufferedInInit, "workers-agree", f"corrupted: {WRONG}", PositionalAtFirstUse),
    Case(
        "A2", UnbufferedAtFirstUse, "read-before-fork", f"corrupted: {WRONG}", PositionalAtFirstUse
    ),
    Case("A3", H5InInit, "pickles", f"fails_without_fault: {FAILED}", H5),
    Case("A4", ZipInInit, "workers-agree", f"fails_without_fault: {FAILED}", Zip),
    Case("A5", NpzInInit, "workers-agree", f"fails_without_fault: {FAILED}", Npz),
    Case("A6", TarInInit, "workers-agree", f"corrupted: {WRONG}", Tar),
    Case("A7", LmdbInInit, "workers-agree", f"fails_without_fault: {FAILED}", Lmdb, MANY),
    Case("A8", SqliteInInit, "pickles", f"fails_without_fault: {FAILED}", Sqlite),
    Case("G10", H5StaysOpen, "read-error-once", "corrupted: in epoch 2", H5Rows),
    Case(
        "A10",
        RemoteAtFirstUse,
        "read-before-fork",
        f"fails_without_fault: {FAILED}",
        Remote,
        _REMOTE,
    ),
)
