"""A fake file system that DataLoader workers can see: ``with FakeDatasetFs() as files:``.

The fixture ``fake_dataset_fs`` returns the same ``files``.
"""

from __future__ import annotations

import contextlib
import sys
from typing import TYPE_CHECKING, Any

from pytest_dataloader_faults._engine import require_engine, unavailable

if sys.platform != "linux":  # Its workers would need Linux.
    raise unavailable()

if TYPE_CHECKING:
    from pyfakefs.fake_filesystem import FakeFilesystem

__all__ = ("FakeDatasetFs",)


class FakeDatasetFs:
    """An in-memory pyfakefs file system for datasets in loaders, with any start method.

    Within its scope, Python sees the fake files instead of the real ones in this process. The
    workers of each loader see a copy of them, in C code as well as in Python.
    """

    def __init__(self) -> None:
        self._scope = contextlib.ExitStack()

    def __enter__(self) -> FakeFilesystem:
        """Return pyfakefs' file system, with methods such as ``create_file``."""
        require_engine()
        import torch.utils.data  # noqa: F401  # what is imported under pyfakefs is forgotten
        from pyfakefs.fake_filesystem_unittest import Patcher

        from pytest_dataloader_faults.fake_files.workers import with_workers

        with contextlib.ExitStack() as scope:
            scope.enter_context(with_workers())
            patcher: Any = scope.enter_context(Patcher())
            self._scope = scope.pop_all()
        return patcher.fs  # type: ignore[no-any-return]

    def __exit__(self, *_error: object) -> None:
        """Show the real files again."""
        self._scope.close()
