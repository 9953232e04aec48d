"""A fake file system that loaders' workers see, too: ``with FakeDatasetFs() as files:``.

The fixture ``fake_dataset_fs`` is this class and nothing more.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from pytest_dataloader_faults._engine.python.pyfakefs.notes import explain

if TYPE_CHECKING:
    from pyfakefs.fake_filesystem import FakeFilesystem


__all__ = ("FakeDatasetFs",)


class FakeDatasetFs:
    """pyfakefs, for datasets under loaders with workers, forked, spawned or by a forkserver.

    While it lasts, Python sees the fake files in the place of the real ones, in this process and in
    the workers of every loader that starts them meanwhile. Each worker has a copy of its own.
    """

    def __init__(self) -> None:
        self._scope = contextlib.ExitStack()

    def __enter__(self) -> FakeFilesystem:
        """Give a file system of pyfakefs: ``create_file``, ``add_real_directory`` and others."""
        import torch.utils.data  # noqa: F401  # what is imported under pyfakefs is forgotten
        from pyfakefs.fake_filesystem_unittest import Patcher

        from pytest_dataloader_faults._engine.python.pyfakefs.in_worker import separate_fd_range
        from pytest_dataloader_faults.fake_files._transfer import with_workers

        with contextlib.ExitStack() as scope:
            scope.enter_context(with_workers())
            patcher: Any = scope.enter_context(Patcher())
            separate_fd_range(patcher)
            self._scope = scope.pop_all()
        return patcher.fs  # type: ignore[no-any-return]

    def __exit__(self, _kind: object, error: BaseException | None, _traceback: object) -> None:
        """The real files are back."""
        if error is not None:
            explain(error)
        self._scope.close()
