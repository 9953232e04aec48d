"""Exceptions on their way from a worker to the loader."""

import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import soundfile

from support.corpus.cases import Case
from support.datasets import Records, Substitutes, decode
from support.specimens import (
    BadSample,
    ChainedError,
    RaisesUnbuildable,
    TakesTheGroupDown,
    TakesTheJobDown,
)


def _make_reader() -> tuple[Any, type[Exception]]:
    """A reader as plugins give them: its error is a class that nobody can import."""

    class CorruptRecordError(Exception):
        pass

    def read(path: Path) -> bytes:
        data = path.read_bytes()
        if len(data) % 64 or not data:
            message = f"{path} is truncated"
            raise CorruptRecordError(message)
        return data

    return read, CorruptRecordError


READ, CorruptRecord = _make_reader()


class RaisesLocalClass(Records):
    """Lets an error out whose class cannot be imported."""

    def __getitem__(self, index: int) -> Any:
        READ(self.paths[index])
        return super().__getitem__(index)


class RaisesBuiltin(Substitutes, RaisesLocalClass):
    """Makes one of it that everybody knows."""

    errors = (CorruptRecord,)

    def substitute(self, _index: int, error: Exception) -> Any:
        raise ValueError(str(error)) from None


class NumberedError(Exception):
    """Takes a number, and gets a string when torch creates it again."""

    def __init__(self, number: Any) -> None:
        super().__init__(number)
        self.number = number

    def __str__(self) -> str:
        return os.strerror(self.number)


class RaisesNumber(Substitutes, Records):
    """Lets an error out that cannot be printed in the main process."""

    errors = (OSError,)

    def substitute(self, _index: int, error: Any) -> Any:
        raise NumberedError(error.errno) from None


class ReadsSounds(Records):
    """Lets an error of its library out, which torch cannot create again: the path is lost."""

    def __getitem__(self, index: int) -> Any:
        options = {"samplerate": 8000, "channels": 1, "format": "RAW", "subtype": "PCM_S8"}
        path = self.paths[index]
        sound, _ = soundfile.read(path, dtype="int16", **options)
        return decode((sound >> 8).astype(np.int8).tobytes(), path), index


class NamesSounds(ReadsSounds):
    """Makes one of it that names the file, and that torch can create again."""

    def __getitem__(self, index: int) -> Any:
        try:
            return super().__getitem__(index)
        except soundfile.LibsndfileError as error:
            message = f"{self.paths[index]}: {error}"
            raise OSError(message) from error


class ExitsOnError(RaisesNumber):
    """Ends the program, as the script did that it was made of."""

    def substitute(self, _index: int, _error: Any) -> Any:
        sys.exit(1)


class AbortsOnError(RaisesNumber):
    """Reads as C libraries do that print what is wrong, and abort."""

    def substitute(self, _index: int, error: Any) -> Any:
        os.write(2, f"reader.c:42: ReadError: {error.strerror}\n".encode())
        os.abort()


_HIDES = "does not say that its cause is [Errno 5] Input/output error"
CASES: tuple[Case, ...] = (
    Case("C2", RaisesUnbuildable, "read-error", "failed_unclearly: TypeError", ChainedError),
    Case(
        "C3",
        RaisesLocalClass,
        "truncated-file",
        "hung: could not pickle its result (AttributeError: Can't pickle local object",
        RaisesBuiltin,
    ),
    Case(
        "C9",
        RaisesNumber,
        "read-error",
        "failed_unclearly: cannot be rebuilt from its message",
        ChainedError,
    ),
    Case(
        "C9",
        ReadsSounds,
        "open-error",
        "failed_unclearly: cannot be rebuilt from its message",
        NamesSounds,
        library="soundfile",
    ),
    Case("C6", ExitsOnError, "read-error", f"failed_unclearly: {_HIDES}", ChainedError),
    Case("C6", TakesTheJobDown, "read-error", "crashed: killed by SIGTERM"),
    Case("C6", TakesTheGroupDown, "read-error", "crashed: killed by SIG"),
    Case("C7", AbortsOnError, "read-error", f"failed_unclearly: {_HIDES}", ChainedError),
    Case("C7", BadSample, "read-error", f"failed_unclearly: {_HIDES}", ChainedError),
)
