"""The workload of a fault-free run, by which checks, sweeps and searches choose faults. Pure."""

from __future__ import annotations

import glob
import itertools
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import TypeAlias, TypeVar

from pytest_dataloader_faults._arguments import ArgumentRule
from pytest_dataloader_faults._settings import EVERY_FILE
from pytest_dataloader_faults.battery import targets
from pytest_dataloader_faults.faults.globs import SCHEME, GlobMatcher, is_address, is_below
from pytest_dataloader_faults.outcomes import FileCounts, Outcome, Reference, WorkerFacts
from pytest_dataloader_faults.outcomes.fault_facts import unobserved_operations
from pytest_dataloader_faults.outcomes.repeats import JudgedTrial

_SERVED = (
    ". With loader={'multiprocessing_context': 'forkserver'} this check applies to a dataset that"
    " leaves its handles out of pickling, and opens the files at its first sample"
)
_ELSEWHERE = ". The checks of damaged files, such as truncated-file, cover such files"
_NO_CONNECTION = (
    "its workers open no TCP connection. A connection opened before they started is not visible:"
    " open it in the worker, at its first sample"
)
_ALL_MAPPED = (
    "its workers read only files that were mapped before they started, which a truncation does not"
    " reach"
)
_NO_FILE = "neither its constructor nor its workers read a data file"
_EMPTY = "the files that its constructor and its workers read are empty"
_NOT_IN_MAIN = "only its workers read data files"
NEEDS_REAL_FILES = "it needs real files, but pyfakefs replaces them"
_OUTSIDE = "it writes outside the trial's own folder: pass lambda folder: MyDataset(..., folder)"
_WRITES_NOTHING = "its workers write no file"
_TAKE_FOLDER = "Let make_dataset take a folder, and write to files in it"

_FILE_SETS: Mapping[str, str] = {
    "opens": "opened",
    "reads": "read",
    "writes": "written",
    "connections": "connections",
    "listings": "listed",
}
"""The property with what workers do each operation to."""
_SPREAD = 8
_FEWEST_APART = 2
NOTHING_TO_SWEEP = (
    "these faults match nothing that its workers do to data files or TCP connections, so there is"
    " nothing to sweep. For what its constructor does, pass before_init=True"
)
_NO_FOLDERS, _UNKNOWN = targets.OwnFolders(), Reference("map", ())
_Item = TypeVar("_Item")
_Result = TypeVar("_Result")
_REASON = ArgumentRule(
    lambda value: isinstance(value, str) and bool(value.strip()),
    "a sentence that says why the check does not apply",
)
_OPEN_BEFORE = "its files were opened or mapped before the workers started"
_Explanation: TypeAlias = "Callable[[], NotApplicable]"


@dataclass(eq=False)
class NotApplicable(Exception):  # noqa: N818  # an answer rather than an error
    """A check does not apply to a dataset, as its plan or its own trial shows.

    Attributes:
        reason: Why, as a sentence.
        group: A short form of the reason, by which a summary groups skipped checks. Empty if the
            dataset does not have what the check is about.
        fatal: The fault-free trial that the check needs, if one of its processes was killed each
            time. Then the check fails, because it is unknown whether it applies.
        remedy: How to change the dataset so that the check applies. The summary shows it as well.
    """

    reason: str
    group: str = ""
    fatal: JudgedTrial | None = None
    remedy: str = ""

    def __post_init__(self) -> None:
        _REASON.check("reason", self.reason, owner="NotApplicable")

    @property
    def full_reason(self) -> str:
        """The reason and the remedy."""
        return ". ".join(filter(None, (self.reason, self.remedy)))


def map_applicable(
    function: Callable[[_Item], _Result], items: Iterable[_Item], refusals: list[NotApplicable]
) -> Iterator[_Result]:
    """The results of *function* for the *items* to which it applies; *refusals* get the others.

    If it applies to none of them, the first NotApplicable is raised.
    """
    has_result = False
    for item in items:
        try:
            result = function(item)
        except NotApplicable as refusal:
            refusals.append(refusal)
        else:
            has_result = True
            yield result
    if refusals and not has_result:
        raise refusals[0]


@dataclass(frozen=True)
class FileSet:
    """Some of the data files or connections.

    Attributes:
        paths: In alphabetical order; empty if there are none.
        globs: Globs for exactly these.
        explain_absence: Why there are none.
    """

    paths: tuple[str, ...]
    globs: tuple[str, ...]
    explain_absence: _Explanation

    @property
    def path(self) -> str | tuple[str, ...]:
        """The argument of a fault that hits all of them; raises NotApplicable if there are none."""
        self.require()
        return targets.path_of(self.globs)

    @property
    def middle(self) -> str:
        """A glob for one of them, next to intact files that a dataset could use instead."""
        self.require()
        return glob.escape(self.paths[len(self.paths) // 2])

    @property
    def spread(self) -> str | tuple[str, ...]:
        """Globs for about eight of them, each next to an intact one if there are several."""
        self.require()
        step = max(_FEWEST_APART, len(self.paths) // _SPREAD)
        return targets.path_of(tuple(map(glob.escape, self.paths[::step])))

    def __bool__(self) -> bool:
        return bool(self.paths)

    def require(self) -> None:
        """Raise NotApplicable if there are none."""
        if not self.paths:
            raise self.explain_absence()


@dataclass(frozen=True)
class Workload:
    """What the workers do in the fault-free run with some of the data files.

    If these can be damaged at rest, it is also what the constructor and the main process do.

    Attributes:
        fault_free: One epoch with workers and no fault.
        globs: The globs that the user passed.
        paths: The data files that faults may hit.
        own_folders: Folders that only the trial uses, so writes there may fail.
        cached: Files that the workers read, and that were created while the reference was taken.
        reference: The samples, if they are known.
        ranks: How many processes train together; None without ranks.
        is_at_rest: Whether these are files that can be damaged before the dataset is created.
        refusal: Why there are none, or None.
        at_rest: The workload of the files that can be damaged so, and of the others.
    """

    fault_free: Outcome
    globs: tuple[str, ...]
    paths: frozenset[str]
    own_folders: targets.OwnFolders = _NO_FOLDERS
    cached: tuple[str, ...] = ()
    reference: Reference = _UNKNOWN
    ranks: int | None = None
    is_at_rest: bool = False
    refusal: NotApplicable | None = None
    at_rest: tuple[Workload, ...] = ()

    @classmethod
    def of(
        cls,
        fault_free: Outcome,
        globs: tuple[str, ...],
        own_folders: targets.OwnFolders = _NO_FOLDERS,
        cached: tuple[str, ...] = (),
        reference: Reference = _UNKNOWN,
        ranks: int | None = None,
    ) -> Workload:
        """The workload of *fault_free*, with the files that match *globs*."""
        workload = cls(fault_free, globs, frozenset(), own_folders, cached, reference, ranks)
        matching_paths = filter(GlobMatcher(globs), workload.known_paths)
        scratch = _scratch_files(fault_free, own_folders)
        data_files = targets.existing_files(matching_paths, fault_free.lasting_files, scratch)
        return replace(workload, paths=frozenset(data_files))

    @property
    def monitored(self) -> Workload | None:
        """What the constructor and the main process do as well; None if it is unknown."""
        return next((each for each in self.at_rest if each.is_at_rest), None)

    @cached_property
    def known_paths(self) -> set[str]:
        """All files that workers used, including those that no fault may hit."""
        return {path for each in self.fault_free.processes for path in each.files}

    @cached_property
    def opened(self) -> FileSet:
        """The data files that workers open."""
        return self._files_with(lambda counts: counts.opens, partial(self.no_target, "open"))

    @cached_property
    def read(self) -> FileSet:
        """The data files that workers read or map."""
        return self._files_with(lambda counts: counts.reads, partial(self.no_target, "read"))

    @cached_property
    def mapped(self) -> FileSet:
        """The data files that workers only map."""
        explain = partial(self.no_target, "map")
        return self._files_with(lambda counts: 0 < counts.maps == counts.reads, explain)

    @cached_property
    def read_by_main_process(self) -> FileSet:
        """The data files that the constructor or the main process reads or maps."""
        files = self.used.get(None, {})
        paths = (path for path, counts in files.items() if counts.reads)
        return self._file_set(paths, lambda: NotApplicable(_NOT_IN_MAIN))

    @cached_property
    def written_by_main_process(self) -> FileSet:
        """The files that the constructor writes in the trial's own folders."""
        files = self._written.get(None, {})
        return self._written_set(files, lambda: NotApplicable(_WRITES_NOTHING))

    @cached_property
    def filled(self) -> FileSet:
        """The data files that workers read or map, except for empty ones."""
        original = self.own_folders.original
        paths = (path for path in self.read.paths if targets.has_content(original(path)))
        return self._file_set(paths, partial(self.no_target, "read"))

    @property
    def written(self) -> FileSet:
        """The files that workers write in the trial's own folders; the globs match all of these."""
        files = {path for worker in self.writers for path in self._written[worker]}
        return self._written_set(files, self._writes_nothing)

    def _written_set(self, files: Iterable[str], explain: _Explanation) -> FileSet:
        paths, globs = sorted(files), self.globs
        if globs == EVERY_FILE:
            folders = targets.lasting_folders(paths, self.own_folders.paths)
            globs = tuple(f"{glob.escape(folder)}/*" for folder in folders)
        return FileSet(tuple(paths), globs, explain)

    @property
    def writers(self) -> tuple[int, ...]:
        """The workers that write in the trial's own folders."""
        written = self._written.items()
        return tuple(worker for worker, files in written if files and worker is not None)

    @property
    def writes(self) -> int:
        """How often the busiest worker writes there."""
        return self.count_busiest("writes")

    @cached_property
    def _written(self) -> dict[int | None, dict[str, FileCounts]]:
        is_meant = GlobMatcher(self.globs)
        return {
            worker.worker: {
                path: counts
                for path, counts in worker.files.items()
                if counts.writes and is_below(path, self.own_folders.paths) and is_meant(path)
            }
            for worker in self.fault_free.processes
        }

    def _writes_nothing(self) -> NotApplicable:
        items = (item for worker in self.fault_free.workers for item in worker.files.items())
        if written := [path for path, counts in items if counts.writes]:
            return NotApplicable(
                f"its workers write {min(written)}, but writes only fail in the trial's own folder."
                f" {_TAKE_FOLDER}",
                _OUTSIDE,
            )
        if self.cached:
            return NotApplicable(
                "its workers found the files that the fault-free run had written, and wrote no"
                f" file. {_TAKE_FOLDER}",
                _OUTSIDE,
            )
        return NotApplicable(_WRITES_NOTHING)

    @property
    def cut(self) -> FileSet:
        """The files whose truncation a worker can notice: it opens or reads them by system calls.

        If a mapped file is truncated, the kernel returns zeros up to the end of the page and sends
        SIGBUS after that. A dataset can prevent neither, unless the file is mapped after that.
        """
        if self.is_at_rest:
            return self.filled
        return self._files_with(_is_read, self._no_file_to_cut)

    def _no_file_to_cut(self) -> NotApplicable:
        return self.out_of_reach(_ALL_MAPPED) if self.read else self.no_target("read")

    def out_of_reach(self, reason: str) -> NotApplicable:
        """An error with that *reason*, and advice if files were open before the workers started."""
        if not self.read.paths or self.opened.paths:
            return NotApplicable(reason)
        is_forked = self.fault_free.loader.start_method == "fork"
        return NotApplicable(reason + _ELSEWHERE + (_SERVED if is_forked else ""), _OPEN_BEFORE)

    @property
    def reads(self) -> int:
        """How often the busiest worker reads."""
        return self.count_busiest("reads")

    @property
    def longest_read(self) -> tuple[str, FileCounts] | None:
        """The file with the longest read after its first one, and its worker's counts."""
        items = (item for files in self.used.values() for item in sorted(files.items()))
        candidates = [(path, counts) for path, counts in items if counts.longest]
        return max(candidates, key=lambda candidate: candidate[1].longest_bytes, default=None)

    @property
    def mean_read(self) -> int:
        """The average number of bytes that a read returns."""
        file_counts = [counts for files in self.used.values() for counts in files.values()]
        read_count = sum(each.reads for each in file_counts)
        return sum(each.bytes for each in file_counts) // max(1, read_count)

    @property
    def readers(self) -> tuple[int, ...]:
        """The workers that read by system calls, not only from earlier mappings."""
        workers = (each for each in self.used.items() if any(map(_is_read, each[1].values())))
        return tuple(worker for worker, _ in workers if worker is not None)

    @property
    def fetches(self) -> int:
        """How many batches of the epoch worker 0 makes, without those that it prefetches."""
        counts = (each.fetches for each in self.fault_free.processes if each.worker == 0)
        fetch_count = max(counts, default=0)
        if self.fault_free.kind != "map":
            return fetch_count
        delivery_count = sum(each.worker == 0 for each in self.fault_free.delivered)
        return min(fetch_count, delivery_count) if delivery_count else fetch_count

    @cached_property
    def connections(self) -> FileSet:
        """The TCP connections that workers open; none if the globs mean only files."""
        return self._connections_of(self.fault_free.workers)

    @cached_property
    def connections_of_main_process(self) -> FileSet:
        """The TCP connections that the constructor or the main process opens."""
        main = self.fault_free.main
        return self._connections_of([main] if main else [])

    def _connections_of(self, processes: Iterable[WorkerFacts]) -> FileSet:
        network_globs = tuple(filter(is_address, self.globs))
        globs = (f"{SCHEME}*",) if self.globs == EVERY_FILE else network_globs
        paths = {path for each in processes for path in each.counts_of("connections")}
        matching_paths = tuple(sorted(filter(GlobMatcher(globs), paths)))
        return FileSet(matching_paths, globs, lambda: NotApplicable(_NO_CONNECTION))

    @cached_property
    def listed(self) -> FileSet:
        """The folders that workers list, and that have one of the data files below them."""
        files = {*map(os.path.realpath, self.paths)}
        all_folders = (each.counts_of("listings") for each in self.fault_free.processes)
        folders = tuple(
            folder
            for folder in sorted({*itertools.chain.from_iterable(all_folders)})
            if any(is_below(path, [folder]) for path in files)
        )
        return FileSet(folders, tuple(map(glob.escape, folders)), partial(self.no_target, "list"))

    def path_of(self, operation: str) -> str | tuple[str, ...]:
        """The path of a fault in each *operation* of workers; empty if they have none.

        Of an operation without a property, it is what the user's globs mean.
        """
        if operation not in _FILE_SETS:
            return targets.path_of(self.globs) if self._has_any(operation) else ""
        files: FileSet = getattr(self, _FILE_SETS[operation])
        return files.path if files else ""

    def _has_any(self, operation: str) -> bool:
        """Whether *operation* happens to a file that the globs mean, be it no data file."""
        is_meant = GlobMatcher(self.globs)
        all_counts = (each.counts_of(operation) for each in self.fault_free.processes)
        return any(count and is_meant(path) for each in all_counts for path, count in each.items())

    @cached_property
    def truncation_points(self) -> tuple[tuple[str, int], ...]:
        """Offsets at which some of these files could end and still look complete."""
        return targets.truncation_points(self.cut.paths, self.own_folders)

    @cached_property
    def kinds(self) -> tuple[Workload, ...]:
        """A workload for each kind of file; only this one if all files are of one kind."""
        kinds = targets.kinds_of({worker: _sources(files) for worker, files in self.used.items()})
        if len(kinds) < 2:  # noqa: PLR2004  # kinds
            return (self,)
        return tuple(replace(self, paths=frozenset(each)) for each in kinds)

    def no_target(self, verb: str) -> NotApplicable:
        """An error that says why a check has no target: the workers *verb* no data file."""
        if self.is_at_rest:
            return self.refusal or NotApplicable(_EMPTY if self.read.paths else _NO_FILE)
        if self.read.paths and not self.opened.paths:
            reason = "its workers only use files that were opened or mapped before they started"
            return self.out_of_reach(reason)
        if self.connections.paths:
            return NotApplicable(
                f"its workers {verb} no data file, but they open network connections, which checks"
                " such as connection-error cover"
            )
        if hidden := unobserved_operations(self.fault_free.processes):
            return NotApplicable(f"its workers {verb} no data file that the engine sees: {hidden}")
        return NotApplicable(f"its workers {verb} no data file")

    @cached_property
    def used(self) -> dict[int | None, dict[str, FileCounts]]:
        """What each worker did to each data file; the key None stands for the main process."""
        return {
            worker.worker: {path: each for path, each in worker.files.items() if path in self.paths}
            for worker in self.fault_free.processes
        }

    def _files_with(self, count: Callable[[FileCounts], int], explain: _Explanation) -> FileSet:
        paths = {path for files in self.used.values() for path in files if count(files[path])}
        return self._file_set(paths, explain)

    def _file_set(self, paths: Iterable[str], explain: _Explanation) -> FileSet:
        ordered_paths = tuple(sorted(paths))
        globs = targets.shortest_globs(ordered_paths, self.known_paths, self.globs)
        return FileSet(ordered_paths, globs, explain)

    def count_busiest(self, operation: str) -> int:
        """How often the busiest worker does *operation* in an epoch, to whatever it is."""
        counts_by_worker = self._counts_by_worker(operation)
        return max((sum(counts.values()) for counts in counts_by_worker), default=0)

    def count_per_file(self, operation: str) -> dict[str, int]:
        """How often one worker does that in an epoch, at most, by path, in alphabetical order."""
        highest: Counter[str] = Counter()
        for counts in self._counts_by_worker(operation):
            highest |= Counter(counts)
        return dict(sorted(highest.items()))

    def _counts_by_worker(self, operation: str) -> Iterator[dict[str, int]]:
        if operation in FileCounts._fields:
            for files in (self._written if operation == "writes" else self.used).values():
                yield {path: getattr(counts, operation) for path, counts in files.items()}
            return
        name = _FILE_SETS.get(operation)
        chosen_paths = {*getattr(self, name).paths} if name else None
        for worker in self.fault_free.processes:
            counts = worker.counts_of(operation)
            paths = counts.keys() if chosen_paths is None else counts.keys() & chosen_paths
            yield {path: counts[path] for path in paths}


def has_fake_files() -> bool:
    """Whether pyfakefs replaces the files, so that only Python code sees them."""
    from pytest_dataloader_faults._engine.fake import fake_files

    return fake_files() is not None


def _scratch_files(fault_free: Outcome, own_folders: targets.OwnFolders) -> set[str]:
    """Temporary files that a worker left behind, with names that differ in each trial.

    The trial's *own_folders* start empty, so the same names appear there again.
    """
    leftovers = {path for each in fault_free.processes for path in each.leftover_files}
    return {path for path in leftovers if not is_below(path, own_folders.paths)}


def _sources(files: Mapping[str, FileCounts]) -> dict[str, FileCounts]:
    """The *files* that are opened or read, not only written."""
    return {path: each for path, each in files.items() if each.opens or each.reads}


def _is_read(counts: FileCounts) -> bool:
    """Whether a worker reads a file by system calls, not only from an earlier mapping."""
    # That counts as one read of a file that the worker never opened.
    return bool(counts.reads and (counts.opens or counts.bytes))
