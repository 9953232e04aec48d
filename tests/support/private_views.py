"""Where no private view can be had, and what is in a folder."""

from __future__ import annotations

import functools
import os
import tempfile
from pathlib import Path

import pytest

from pytest_dataloader_faults._engine.system import private_view
from support.children import in_a_process


@functools.cache
def refused() -> str:
    """Why this machine lets nobody have a private view; "" where it does."""
    with tempfile.TemporaryDirectory() as folder:
        data, scratch = Path(folder, "data"), Path(folder, "scratch")
        data.mkdir()
        scratch.mkdir()
        view = private_view.PrivateView((str(data),))
        return in_a_process(lambda: private_view.enter(view, str(scratch)))[-300:]


needs_view = pytest.mark.skipif(refused() != "", reason=refused() or "never")
"""For a test, or a module, of such views."""


def forbid() -> bool:
    """In place of ``private_view._get_own_mounts``, as a container's seccomp profile does."""
    raise PermissionError(1, "unshare: Operation not permitted")


def contents(folder: Path) -> dict[str, tuple[bytes, int, int]]:
    """Each file below *folder*: what is in it, its inode, and when it was changed last."""
    found = {}
    for path in sorted(folder.rglob("*")):
        about = os.stat(path)
        data = path.read_bytes() if path.is_file() else b""
        found[str(path.relative_to(folder))] = (data, about.st_ino, about.st_ctime_ns)
    return found
