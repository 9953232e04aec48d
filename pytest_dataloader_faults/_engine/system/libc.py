"""The C library of this process, and the one place where a failed call becomes an exception."""

from __future__ import annotations

import ctypes
import os

libc = ctypes.CDLL(None, use_errno=True)


def check(result: int, what: str) -> int:
    """*result* of a call, or the OSError that errno stands for, naming *what* failed."""
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
    return result
