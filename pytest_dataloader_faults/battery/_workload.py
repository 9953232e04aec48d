"""What the workers do in an epoch without a fault, by which checks choose their faults. Pure."""

from __future__ import annotations

import glob
import os
import re
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

from pytest_dataloader_faults._settings import EVERY_FILE
from pytest_dataloader_faults.battery import targets
from pytest_dataloader_faults.globs import GlobMatcher, is_below
from pytest_dataloader_faults.outcomes import Outcome, Reference
from pytest_dataloader_faults.outcomes.fault_facts import unobserved_operations
from pytest_dataloader_faults.outcomes.judge.repeats import Trial
from pytest_dataloader_faults.outcomes.records import FileCounts
from pytest_dataloader_faults.outcomes.text import counted

_SERVED = (
    ". Under loader={'multiprocessing_context': 'forkserver'} this is asked of a dataset that"
    " leaves its handles out of what is pickled, and opens the files at its first sample"
)
_AT_REST = ". Checks of files at rest, such as truncated-at-rest, ask about such files"


_TAKE_FOLDER = "Have make_dataset take a folder, and put there what is written"


_NO_FOLDERS = targets.OwnFolders()
_OPEN_BEFORE = "its files were opened or mapped before the workers started"


@dataclass(frozen=True)
class NotApplicable:
    """Why a check does not apply to a dataset.

    Attributes:
        reason: Why, in a sentence.
        group: The same in a few words, where the dataset has what the check is about, and the check
            cannot reach it. A summary has the checks that were not asked by it.
        fatal: The trial without a fault that the check needs, if a process of it was killed each
            time: then nobody knows whether the check applies, and it fails.
        remedy: What to do so that it applies, for the reader of the summary, too.
    """

    reason: str
    group: str = ""
    fatal: Trial | None = None
    remedy: str = ""

    @property
    def full_reason(self) -> str:
        """The reason and the remedy."""
        return ". ".join(filter(None, (self.reason, self.remedy)))


@dataclass(frozen=True)
class FileSet:
    """Some of the data files, and globs for exactly these."""

    paths: tuple[str, ...]
    globs: tuple[str, ...]

    @property
    def path(self) -> str | tuple[str, ...]:
        """All of them, as a fault takes them."""
        return targets.path_of(self.globs)

    @property
    def middle(self) -> str:
        """One of them. The files beside it stay whole, and a dataset could use them instead."""
        return glob.escape(self.paths[len(self.paths) // 2])


@dataclass(frozen=True)
class Workload:
    """What the workers do when nothing is wrong, as far as some of the data files are concerned.

    Attributes:
        fault_free: One epoch with workers, the engine on and no fault.
        globs: Those that the user asked for.
        paths: The data files that faults may hit.
        own: Folders that are the trial's own, so that writes there may fail.
        cached: Files that the workers read, and that were made while the dataset was read before.
        stream_count: How many samples a stream has; None of one without an end, and of indices.
        in_workers_only: Whether the main process cannot read the dataset.
    """

    fault_free: Outcome
    globs: tuple[str, ...]
    paths: frozenset[str]
    own: targets.OwnFolders = _NO_FOLDERS
    cached: tuple[str, ...] = ()
    stream_count: int | None = None
    in_workers_only: bool = False

    @classmethod
    def of(
        cls,
        fault_free: Outcome,
        globs: tuple[str, ...],
        own: targets.OwnFolders = _NO_FOLDERS,
        cached: tuple[str, ...] = (),
        reference: Reference | None = None,
    ) -> Workload:
        """The workload of *fault_free*, as far as files are concerned that *globs* mean."""
        meant = filter(GlobMatcher(globs), _seen_by(fault_free))
        scratch = targets.scratch_files(fault_free, own)
        found = targets.existing_files(meant, fault_free.lasting_files, scratch)
        workload = cls(fault_free, globs, frozenset(found), own, cached)
        if reference is None:
            return workload
        is_of_worker = reference.is_of_worker
        return replace(workload, stream_count=reference.stream_count, in_workers_only=is_of_worker)

    @cached_property
    def opened(self) -> FileSet:
        """The data files that workers open."""
        return self._files_with(lambda counts: counts.opens)

    @cached_property
    def read(self) -> FileSet:
        """Those that they read or map."""
        return self._files_with(lambda counts: counts.reads)

    @cached_property
    def filled(self) -> FileSet:
        """Those that they read or map, and that are not empty."""
        paths = tuple(each for each in self.read.paths if self._has_content(each))
        if paths == self.read.paths:
            return self.read
        seen = _seen_by(self.fault_free)
        return FileSet(paths, targets.shortest_globs(paths, seen, self.globs))

    def _has_content(self, path: str) -> bool:
        return targets.has_content(self.own.original(path))

    @property
    def written(self) -> FileSet | NotApplicable:
        """The files that workers write in folders of the trial's own, and all others there."""
        paths = sorted({path for files in self._written.values() for path in files})
        if not paths:
            return self._writes_nothing()
        if self.globs != EVERY_FILE:
            return FileSet(tuple(paths), self.globs)
        folders = targets.lasting_folders(paths, self.own.paths)
        return FileSet(tuple(paths), tuple(f"{glob.escape(folder)}/*" for folder in folders))

    @property
    def writers(self) -> tuple[int, ...]:
        """The workers that write such files."""
        return tuple(worker for worker, files in self._written.items() if files)

    @property
    def writes(self) -> int:
        """The writes of the busiest of them."""
        every = (sum(each.writes for each in files.values()) for files in self._written.values())
        return max(every, default=0)

    @cached_property
    def _written(self) -> dict[int, dict[str, FileCounts]]:
        is_meant = GlobMatcher(self.globs)
        return {
            worker.worker: {
                path: each
                for path, each in worker.files.items()
                if each.writes and is_below(path, self.own.paths) and is_meant(path)
            }
            for worker in self.fault_free.workers
            if worker.worker is not None
        }

    def _writes_nothing(self) -> NotApplicable:
        elsewhere = sorted(
            {
                path
                for worker in self.fault_free.workers
                for path, each in worker.files.items()
                if each.writes
            }
        )
        if elsewhere:
            stays = f"its workers write {elsewhere[0]}, and no write fails where its traces stay"
            return NotApplicable(f"{stays}. {_TAKE_FOLDER}")
        if self.cached:
            made = "its workers found what the first reading had written, and wrote no file"
            return NotApplicable(f"{made}. {_TAKE_FOLDER}")
        if self.is_python_engine:
            seen = "the python engine saw its workers write no file; code in C may do so"
            return NotApplicable(f"{seen} unseen. engine='kernel' sees that, too")
        return NotApplicable("its workers write no file")

    @property
    def content(self) -> FileSet:
        """The files that are read, or that code in C may read unseen."""
        return self.opened if self.is_python_engine and not self.read.paths else self.read

    @property
    def cut(self) -> FileSet | NotApplicable:
        """The files that a worker can find cut off: it opens them, or reads them by system calls.

        Where a file is cut off that is mapped already, the kernel gives zeros to the end of the
        page and SIGBUS after that, and no dataset can prevent either.
        """
        if self.is_python_engine:
            return self.content if self.content.paths else self.no_target("read")
        found = self._files_with(lambda counts: counts.reads and (counts.opens or counts.bytes))
        if found.paths or not self.read.paths:
            return found if found.paths else self.no_target("read")
        reason = "its workers read only what was mapped before they began, and find no file cut off"
        return self.not_reached(reason)

    def not_reached(self, reason: str) -> NotApplicable:
        """A check does not apply for that *reason*; what to do where files were open before."""
        if not self.read.paths or self.opened.paths:
            return NotApplicable(reason)
        is_forked = self.fault_free.start_method == "fork"
        at_rest = "" if self.is_python_engine else _AT_REST
        return NotApplicable(reason + at_rest + (_SERVED if is_forked else ""), _OPEN_BEFORE)

    @property
    def reads(self) -> int:
        """The reads of the busiest worker."""
        return max(
            (sum(each.reads for each in files.values()) for files in self.used.values()), default=0
        )

    @property
    def longest_read(self) -> tuple[str, FileCounts] | None:
        """The file of the longest read that is no file's first, and what its worker did to it."""
        every = (item for files in self.used.values() for item in sorted(files.items()))
        found = [(path, counts) for path, counts in every if counts.longest]
        return max(found, key=lambda each: each[1].longest_bytes, default=None)

    @property
    def mean_read(self) -> int:
        """How many bytes of a file a read gives, on average."""
        every = [counts for files in self.used.values() for counts in files.values()]
        return sum(each.bytes for each in every) // max(1, sum(each.reads for each in every))

    @property
    def readers(self) -> tuple[int, ...]:
        """The workers that read by system calls, and not only in what was mapped before."""
        engine = self.fault_free.engine
        used = [each for each in self.used.items() if _reads(each[1], engine)]
        return tuple(worker for worker, _ in used if worker is not None)

    @property
    def fetches(self) -> int:
        """How many batches worker 0 makes of an epoch. It may make some of the next in advance."""
        made = max(
            (each.fetches for each in self.fault_free.workers if each.worker == 0), default=0
        )
        if self.fault_free.kind != "map":
            return made
        given = sum(each.worker == 0 for each in self.fault_free.delivered)
        return min(made, given) if given else made

    @cached_property
    def connections(self) -> FileSet:
        """The TCP connections that workers make, as far as faults may be about them."""
        return FileSet(*targets.connections_of(self.fault_free, self.globs))

    @cached_property
    def truncation_points(self) -> tuple[tuple[str, int], ...]:
        """Places where some of these files could end and still look whole."""
        return targets.truncation_points(self.read.paths, self.own)

    @property
    def is_python_engine(self) -> bool:
        """Whether code in C may open and read files that the engine does not see."""
        return self.fault_free.engine == "python"

    @property
    def kinds(self) -> tuple[Workload, ...]:
        """A workload for each kind of file; this one alone where all are of one kind."""
        found = kinds_of({worker: _sources(files) for worker, files in self.used.items()})
        if len(found) < 2:  # noqa: PLR2004  # kinds
            return (self,)
        return tuple(replace(self, paths=frozenset(each)) for each in found)

    @property
    def title(self) -> str:
        """The files, in a few words."""
        names = sorted(map(os.path.basename, self.paths))
        return (
            names[0]
            if len(names) == 1
            else f"{names[0]} and {counted(len(names) - 1, 'file')} like it"
        )

    def no_target(self, verb: str) -> NotApplicable:
        """Why a check has no target: the workers *verb* no data file."""
        if self.is_python_engine:
            seen = f"the python engine saw its workers {verb} no data file; code in C may do so"
            return NotApplicable(f"{seen} unseen. engine='kernel' sees that, too")
        if self.read.paths and not self.opened.paths:
            used = "its workers only use files that were opened or mapped before they started"
            return self.not_reached(used)
        if self.connections.paths:
            instead = (
                "they connect to a network, which has checks of its own, such as connect-error"
            )
            return NotApplicable(f"its workers {verb} no data file; {instead}")
        if hidden := unobserved_operations(self.fault_free.workers):
            return NotApplicable(f"its workers {verb} no data file that the engine sees: {hidden}")
        return NotApplicable(f"its workers {verb} no data file")

    @cached_property
    def used(self) -> dict[int | None, dict[str, FileCounts]]:
        """What each worker did to each of the files; None stands for the loader's own process."""
        return {
            worker.worker: {path: each for path, each in worker.files.items() if path in self.paths}
            for worker in self.fault_free.workers
        }

    def _files_with(self, count: Callable[[FileCounts], int]) -> FileSet:
        every = {path for files in self.used.values() for path in files if count(files[path])}
        paths = tuple(sorted(every))
        return FileSet(paths, targets.shortest_globs(paths, _seen_by(self.fault_free), self.globs))


def _seen_by(fault_free: Outcome) -> set[str]:
    return {path for worker in fault_free.workers for path in worker.files}


def _sources(files: Mapping[str, FileCounts]) -> dict[str, FileCounts]:
    """Those of *files* that are not only written."""
    return {path: each for path, each in files.items() if each.opens or each.reads}


def _reads(files: Mapping[str, FileCounts], engine: str) -> bool:
    """Whether a worker reads by system calls.

    A mapping that was there before counts as one read, of a file that the worker never opened. The
    python engine does not see those.
    """
    return any(
        each.reads and (each.opens or each.bytes or engine == "python") for each in files.values()
    )


# Some facts about kinds of files. A dataset that reads an index first never reads a shard where
# the index cannot be read: under faults of all files at once, each trial ends at the index, and
# nobody knows how the dataset takes a bad shard. What a file is for is written nowhere. But files
# of one purpose have one extension; images and their masks lie in two folders under the same names;
# the arrays of a shard have names that differ in more than the number of the shard; and an index
# without an extension of its own is read by each worker, while the others read a sample each. Names
# may also be free, as those of people are: then there are many, with one file each.


_Uses = Mapping[int | None, Mapping[str, FileCounts]]
"""What each worker did to each file."""
_MOST = 4
_NUMBER = re.compile(r"\.?\d+$")
_DIGITS = re.compile(r"\d+")


def kinds_of(used: _Uses) -> list[set[str]]:
    """The kinds of the files that workers *used*, at most four; what was read most comes first.

    Where there are more, the last one is all that was read least.
    """
    paths = {path for files in used.values() for path in files}
    by_extension = _grouped((_extension(path), path) for path in paths)
    kinds = [
        kind
        for group in by_extension
        for kind in _by_folder(group) or _by_name(group) or _by_use(group, used)
    ]
    kinds.sort(key=lambda kind: (-_bytes(kind, used), min(kind)))
    return [*kinds[: _MOST - 1], set().union(*kinds[_MOST - 1 :])] if len(kinds) > _MOST else kinds


def _extension(path: str) -> str:
    """Without a number: ``part.0`` and ``part.1`` are alike."""
    return os.path.splitext(_NUMBER.sub("", os.path.basename(path)))[1].lower()


def _by_folder(paths: set[str]) -> list[set[str]]:
    """Those of each folder, if two to four folders have files of the same names; else nothing."""
    folders = _grouped((os.path.dirname(path), path) for path in paths)
    names = {frozenset(map(_stem, folder)) for folder in folders}
    return folders if 1 < len(folders) <= _MOST and len(names) == 1 else []


def _by_name(paths: set[str]) -> list[set[str]]:
    """Those whose names differ only in digits, if these are few kinds of several files each.

    Or if there is a file of each kind for each number.
    """
    kinds = _grouped((_DIGITS.sub("0", os.path.basename(path)), path) for path in paths)
    numbers = [{tuple(_DIGITS.findall(os.path.basename(path))) for path in kind} for kind in kinds]
    has_several = all(len(kind) > 1 for kind in kinds)
    is_complete = all(each == numbers[0] and all(each) for each in numbers)
    return kinds if 1 < len(kinds) <= _MOST and (has_several or is_complete) else []


def _by_use(paths: set[str], used: _Uses) -> list[set[str]]:
    """The only file that each worker reads, and the others, where there is one such; else all."""
    users = [set(files) for files in used.values()]
    common = paths.intersection(*users) if len(users) > 1 else set()
    return [common, paths - common] if len(common) == 1 and len(paths) > 2 else [paths]  # noqa: PLR2004  # an index, and more than one other


def _stem(path: str) -> str:
    return os.path.splitext(os.path.basename(path))[0]


def _grouped(pairs: Iterable[tuple[Hashable, str]]) -> list[set[str]]:
    groups: defaultdict[Hashable, set[str]] = defaultdict(set)
    for key, path in pairs:
        groups[key].add(path)
    return list(groups.values())


def _bytes(paths: set[str], used: _Uses) -> int:
    return sum(
        counts.bytes for files in used.values() for path, counts in files.items() if path in paths
    )
