"""Memory and shared memory, and processes that stay: bugs, and twins without them."""

import ctypes
from pathlib import Path
from typing import Any

import numpy as np

from pytest_dataloader_faults import Contract
from support.corpus.cases import Case
from support.datasets import SIZE, Records
from support.specimens import ReusedBuffer

_COUNT, _LENGTH = 3_000, 5600
_LARGE = 1 << 26
"""Bytes that malloc(3) always gets from the kernel, whatever it keeps."""
_LIBC = ctypes.CDLL(None)
_LIBC.malloc.restype, _LIBC.free.argtypes = ctypes.c_void_p, (ctypes.c_void_p,)


class CaptionsInOneText(Records):
    """Many samples of few files, each with a caption in one string: healthy."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.captions: Any = "".join(f"{number:0{_LENGTH}}" for number in range(_COUNT))

    def __len__(self) -> int:
        return _COUNT

    def __getitem__(self, index: int) -> Any:
        data, _ = super().__getitem__(index % len(self.paths))
        return data, self.number_of(index)

    def number_of(self, index: int) -> int:
        """The number in a caption."""
        return int(self.captions[index * _LENGTH : (index + 1) * _LENGTH][-9:])


class ListOfCaptions(CaptionsInOneText):
    """A string for each caption, in a list."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.captions = [f"{number:0{_LENGTH}}" for number in range(_COUNT)]

    def number_of(self, index: int) -> int:
        return int(self.captions[index][-9:])


class Decodes(Records):
    """Decodes each record in a large buffer: healthy."""

    def __getitem__(self, index: int) -> Any:
        record, _ = super().__getitem__(index)
        buffer = np.empty(_LARGE, np.uint8)
        buffer[:SIZE] = record
        return buffer[:SIZE].copy(), index


class ZerosWithoutMemory(Decodes):
    """Returns zeros if there is no memory for the buffer."""

    def __getitem__(self, index: int) -> Any:
        try:
            return super().__getitem__(index)
        except MemoryError:
            return np.zeros(SIZE, np.uint8), index


class ChecksMalloc(Records):
    """Decodes each record as C code does, in a buffer of its own: healthy."""

    def __getitem__(self, index: int) -> Any:
        buffer = self._allocate()
        ctypes.memset(buffer, 0, SIZE)
        _LIBC.free(buffer)
        return super().__getitem__(index)

    def _allocate(self) -> int:
        if (buffer := _LIBC.malloc(ctypes.c_size_t(_LARGE))) is None:
            raise MemoryError("no memory for a buffer")
        return buffer


class IgnoresMalloc(ChecksMalloc):
    """Uses whatever malloc(3) returned, which is NULL without memory."""

    def _allocate(self) -> int:
        return _LIBC.malloc(ctypes.c_size_t(_LARGE))


CASES = (
    Case(
        "E1",
        ListOfCaptions,
        "copy-on-write",
        "leaked: of the dataset's objects",
        CaptionsInOneText,
        {"contract": Contract(worker_memory=8 << 20)},
    ),
    Case("E8", ReusedBuffer, "workers-agree", "corrupted: has the content of sample"),
    Case("G6", ZerosWithoutMemory, "memory-exhaustion", "corrupted: all zeros", Decodes),
    Case(
        "E9",
        IgnoresMalloc,
        "memory-exhaustion",
        "failed_unclearly: was killed by SIGSEGV",
        ChecksMalloc,
    ),
)
