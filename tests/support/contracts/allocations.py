"""Allocations that fail, by several libraries."""

import ctypes
import mmap
from functools import partial

import numpy as np
import torch

from pytest_dataloader_faults.faults import MemoryExhaustion
from support.attempts import allocate_in_thread
from support.contracts.row import Row, text

KIB, MIB = 1 << 10, 1 << 20
SIZES = [70 * KIB, MIB, MIB - 8 * KIB, 5 * MIB, 100 * MIB]


def _malloc(size):
    """What malloc(3) returns, at once freed."""
    libc = ctypes.CDLL(None)
    libc.malloc.restype, libc.free.argtypes = ctypes.c_void_p, (ctypes.c_void_p,)
    address = libc.malloc(ctypes.c_size_t(size))
    libc.free(address)
    return "allocated" if address else "NULL"


def _grow(size):
    data = bytearray()
    while len(data) < size:
        data += b"x" * 10_000
    return "grown"


ALLOCATORS = {
    "bytes": (bytes, text("MemoryError")),
    "bytearray": (bytearray, text("MemoryError")),
    "grown": (_grow, text("MemoryError")),
    "numpy.empty": (lambda size: np.empty(size, np.uint8), text("Unable to allocate")),
    "numpy.zeros": (lambda size: np.zeros(size, np.uint8), text("Unable to allocate")),
    "torch.empty": (lambda size: torch.empty(size, dtype=torch.uint8), text("DefaultCPUAllocator")),
    "malloc": (_malloc, text("NULL")),
    "mmap": (lambda size: mmap.mmap(-1, size).close(), text("Cannot allocate memory")),
    "thread": (allocate_in_thread, text("MemoryError")),
}


def _allocate(name: str, size: int, _target: object) -> str:
    """What was freed could be used again, and must not be."""
    for _ in range(2):
        result = ALLOCATORS[name][0](size)
    return result if isinstance(result, str) else "allocated"


ALLOCATIONS = {
    f"{name}, {size}": Row(MemoryExhaustion, partial(_allocate, name, size), effect)
    for name, (_, effect) in ALLOCATORS.items()
    # realloc(3) may extend a small block, and another thread has free memory of its own.
    for size in (SIZES[1:] if name in ("grown", "thread") else SIZES)
}
