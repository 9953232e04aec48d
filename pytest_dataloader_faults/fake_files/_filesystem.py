"""pyfakefs' file system, with a method that runs a dataset under faults. It imports pyfakefs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pyfakefs.fake_filesystem import FakeFilesystem

from pytest_dataloader_faults.fake_files._in_process import InProcessResult, InProcessRuns
from pytest_dataloader_faults.faults import Fault


class FakeDatasetFilesystem(FakeFilesystem):
    """pyfakefs' FakeFilesystem, which DataLoader workers see, too. ``FakeDatasetFs`` makes it."""

    _in_process_runs: InProcessRuns

    def run(
        self, make_dataset: Callable[[], Any], *faults: Fault, seed: int = 0
    ) -> InProcessResult:
        """Read a dataset once in this process, under *faults*, without a loader or a verdict.

        It takes milliseconds, where a trial takes about a tenth of a second.

        Args:
            make_dataset: Returns a map-style or iterable dataset.
            *faults: Faults of files; a ``SlowRead`` is counted, and not slow.
            seed: Seed of the faults with a ``probability``.

        Returns:
            The samples before the first error, that error, and how often the faults fired.

        Raises:
            InvalidArgumentError: One of *faults* needs a worker process, or the fake files are
                paused.

        """
        return self._in_process_runs.run(make_dataset, faults, seed)

    def pause(self) -> None:
        """Show the real files until ``resume()``."""
        self._in_process_runs.close()
        super().pause()
