"""What the workers do in an epoch without a fault, by which checks choose their faults. Pure."""

from __future__ import annotations

import glob
from collections.abc import Iterable
from dataclasses import dataclass

from pytest_dataloader_faults.battery import _targets
from pytest_dataloader_faults.faults._globs import GlobMatcher
from pytest_dataloader_faults.outcomes import Outcome
from pytest_dataloader_faults.outcomes._records import FileCounts


@dataclass(frozen=True)
class NotApplicable:
    """Why a check does not apply to a dataset."""

    reason: str


@dataclass(frozen=True)
class FileSet:
    """Some of the data files, and globs for exactly these."""

    paths: tuple[str, ...]
    globs: tuple[str, ...]

    @property
    def path(self) -> str | tuple[str, ...]:
        """All of them, as a fault takes them."""
        return _targets.path_of(self.globs)

    @property
    def middle(self) -> str:
        """One of them. The files beside it stay whole, and a dataset could use them instead."""
        return glob.escape(self.paths[len(self.paths) // 2])


@dataclass(frozen=True)
class Workload:
    """What the workers do when nothing is wrong.

    Attributes:
        control: One epoch with workers, the engine on and no fault.
        opened: The data files that workers open.
        read: Those that they read or map.
        reads: The reads of the busiest worker.
        mean_read: How many bytes of a file a read gives, on average.
        readers: The workers that read by system calls, and not only in what was mapped before.
        fetches: The batches that worker 0 makes.
        truncation_points: Places where some of these files could end and still look whole.
    """

    control: Outcome
    opened: FileSet
    read: FileSet
    reads: int
    mean_read: int
    readers: tuple[int, ...]
    fetches: int
    truncation_points: tuple[tuple[str, int], ...]

    @property
    def is_python_engine(self) -> bool:
        """Whether code in C may open and read files that the engine does not see."""
        return self.control.engine == "python"

    @property
    def content(self) -> FileSet:
        """The files that are read, or that code in C may read unseen."""
        return self.opened if self.is_python_engine and not self.read.paths else self.read

    def no_target(self, verb: str) -> NotApplicable:
        """Why a check has no target: the workers *verb* no data file."""
        if self.is_python_engine:
            seen = f"the python engine saw its workers {verb} no data file; code in C may do so"
            return NotApplicable(f"{seen} unseen. engine='kernel' sees that, too")
        return NotApplicable(f"its workers {verb} no data file")

    @classmethod
    def of(cls, control: Outcome, globs: tuple[str, ...]) -> Workload:
        """Sum up *control*, as far as files are concerned that *globs* mean."""
        seen = {path for worker in control.workers for path in worker.files}
        meant = _targets.existing_files(filter(GlobMatcher(globs), seen), control.lasting_files)
        used = [
            (worker.worker, {path: each for path, each in worker.files.items() if path in meant})
            for worker in control.workers
        ]
        every = [(path, counts) for _, files in used for path, counts in files.items()]
        opened = tuple(sorted({path for path, counts in every if counts.opens}))
        read = tuple(sorted({path for path, counts in every if counts.reads}))
        return cls(
            control,
            FileSet(opened, _targets.shortest_globs(opened, seen, globs)),
            FileSet(read, _targets.shortest_globs(read, seen, globs)),
            max((sum(each.reads for each in files.values()) for _, files in used), default=0),
            _mean_read(counts for _, counts in every),
            tuple(worker for worker, files in used if _reads(files, control.engine)),
            max((each.fetches for each in control.workers if each.worker == 0), default=0),
            _targets.truncation_points(read),
        )


def _mean_read(every: Iterable[FileCounts]) -> int:
    counts = list(every)
    return sum(each.bytes for each in counts) // max(1, sum(each.reads for each in counts))


def _reads(files: dict[str, FileCounts], engine: str) -> bool:
    """Whether a worker reads by system calls.

    A mapping that was there before counts as one read, of a file that the worker never opened. The
    python engine does not see those.
    """
    return any(
        each.reads and (each.opens or each.bytes or engine == "python") for each in files.values()
    )
