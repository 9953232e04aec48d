"""Files that change while a dataset is read: those of a cache, and those that each run rewrites.

Some facts about what can be seen of a cache. The first reading fills it, which is mostly that of
the reference, before there is any worker; from then on workers read the cache alone. So each
file that the workers read without a fault is asked when it was changed last, and that is compared
with the time at which the baseline began. The time is ctime, since a program may set mtime to
what it likes. The stamps of files are a few milliseconds behind that time, and never ahead: what
a test wrote just before is not taken for a cache. The clock of a file server may be ahead, and
then it is. So the text says what was seen, and no verdict depends on it. A cache that an earlier
run has filled cannot be told from any other file.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from pytest_dataloader_faults.globs import GlobMatcher, is_below
from pytest_dataloader_faults.outcomes import Outcome, WorkerFacts
from pytest_dataloader_faults.outcomes.text import counted, printable

_SHOWN = 3
_TAKE_FOLDER = (
    "To try the dataset without its cache, have make_dataset take a folder, and put the cache there"
)
BY_FACTORY = "make_dataset writes the files that it reads"
BY_WORKERS = "the workers write the files that they read"
_REMEDIES = {
    BY_FACTORY: "Write them before, as in a fixture, so that make_dataset only opens them",
    BY_WORKERS: "Have the workers leave the data files as they are",
}


def files_made_since(began: int, fault_free: Outcome) -> tuple[str, ...]:
    """The files that the workers of *fault_free* read and that changed after *began*, in ns."""
    is_python = fault_free.engine == "python"  # It does not see what C reads, but most opens.
    every = (each for worker in fault_free.workers for each in worker.files.items())
    read = {path for path, counts in every if counts.reads or (is_python and counts.opens)}
    return tuple(path for path in sorted(read) if _last_change(path) > began)


def note_on_cache(made: Sequence[str]) -> str:
    """What to say about the files that were *made*, and what to do."""
    files, were = ("file", "was") if len(made) == 1 else ("files", "were")
    return (
        f"{len(made)} {files} that the workers read ({_names(made)}) {were} made or changed after"
        " the first reading began, as a cache is. Faults happen to files that are read, and not to"
        f" the sources of a cache. {_TAKE_FOLDER}"
    )


@dataclass(frozen=True)
class FollowedRun:
    """An epoch without a fault, in which files are followed from the constructor on. Plain data.

    What a run rewrites, or makes in a folder of its own, cannot be bad when the next one begins.

    Attributes:
        outcome: Its facts, without these files.
        rewritten: Those of them that it read, but for *own*.
        own: Those that it read in a folder of its own.
        writer: BY_FACTORY or BY_WORKERS.
    """

    outcome: Outcome
    rewritten: tuple[str, ...] = ()
    own: tuple[str, ...] = ()
    writer: str = BY_FACTORY

    @classmethod
    def of(cls, run: Outcome, began: int, folders: Sequence[str]) -> FollowedRun:
        """What *run* shows, which *began* at that time, in ns, with *folders* of its own."""
        used = {path for each in run.processes for path in each.files}
        own = {path for path in used if is_below(path, folders)}
        changed = {path for path in used - own if _last_change(path) > began}
        without = partial(_without, own | changed)
        main = None if run.main is None else without(run.main)
        kept = replace(run, main=main, workers=tuple(map(without, run.workers)))
        read, written = _paths(run.processes, "reads"), _paths(run.workers, "writes")
        by_main = _paths([run.main] if run.main else [], "writes")
        is_by_workers = (own | changed) & read <= written - by_main
        writer = BY_WORKERS if is_by_workers else BY_FACTORY
        return cls(kept, tuple(sorted(changed & read)), tuple(sorted(own & read)), writer)

    def refusal(self, globs: tuple[str, ...]) -> tuple[str, str] | None:
        """Why no file that *globs* mean can be damaged beforehand, and what to do; or None."""
        is_meant = GlobMatcher(globs)
        meant = tuple(filter(is_meant, (*self.rewritten, *self.own)))
        if not meant or any(map(is_meant, _paths(self.outcome.processes, "reads"))):
            return None
        why = f"{self.writer} ({_names(meant)}), so they cannot be damaged before it is called"
        return why, _REMEDIES[self.writer]

    def notes(self, globs: tuple[str, ...]) -> tuple[str, ...]:
        """What to say where others than these can be damaged beforehand."""
        meant = tuple(filter(GlobMatcher(globs), self.rewritten))
        if not meant:
            return ()
        which = f"{counted(len(meant), 'file')} that each run writes ({_names(meant)})"
        return (f"{which} cannot be damaged before make_dataset() is called",)


def _without(paths: Collection[str], process: WorkerFacts) -> WorkerFacts:
    files = {path: counts for path, counts in process.files.items() if path not in paths}
    return replace(process, files=files)


def _paths(processes: Iterable[WorkerFacts], did: str) -> set[str]:
    """The files to which *processes* did that: a field of ``FileCounts``."""
    every = (item for each in processes for item in each.files.items())
    return {path for path, counts in every if getattr(counts, did)}


def _last_change(path: str) -> int:
    with contextlib.suppress(OSError):  # It is gone: a temporary file, or one of another trial.
        return os.stat(path).st_ctime_ns
    return 0


def _names(paths: Sequence[str]) -> str:
    """The first of *paths*, each with its folder."""
    names = ["/".join(path.split("/")[-2:]) for path in paths[:_SHOWN]]
    return printable(", ".join([*names, *(["..."] if len(paths) > _SHOWN else [])]))
