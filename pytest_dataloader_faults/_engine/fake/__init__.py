"""Whether this process has a fake file system. It imports nothing."""

from __future__ import annotations

import sys
from typing import Any


def patcher() -> Any:
    """The patcher of pyfakefs, if it is at work in this process; else None."""
    unittest = sys.modules.get("pyfakefs.fake_filesystem_unittest")
    current = getattr(getattr(unittest, "Patcher", None), "PATCHER", None)
    return current if current is not None and current.is_patching else None


def fake_files() -> Any:
    """The fake file system that this process sees in the place of the real one; else None."""
    current = patcher()
    return None if current is None else current.fs
