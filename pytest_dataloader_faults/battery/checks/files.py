"""Checks of files, and of the storage below them. Pure.

Files are damaged at rest: before the dataset is created. Storage fails at run time: in the workers.
Most datasets need one trial for each check, or one for each kind of file if there are several.
"""

from __future__ import annotations

import errno
import glob
import os
from collections.abc import Iterator
from dataclasses import replace

from pytest_dataloader_faults import faults
from pytest_dataloader_faults.battery.checks._base import (
    Scenario,
    at_rest,
    check,
    for_each_kind,
    in_constructor,
    plan_each,
)
from pytest_dataloader_faults.battery.checks._epochs import FAULTS_IN_EACH_EPOCH, FAULTS_IN_EPOCH_1
from pytest_dataloader_faults.battery.targets import path_of
from pytest_dataloader_faults.battery.workload import NotApplicable, Workload
from pytest_dataloader_faults.faults import ListingOrder, ReadError, StrayEntry
from pytest_dataloader_faults.faults.globs import GlobMatcher
from pytest_dataloader_faults.outcomes import Outcome, Reference, Verdict
from pytest_dataloader_faults.outcomes.chains import error_line
from pytest_dataloader_faults.outcomes.contract import Cause, Finding
from pytest_dataloader_faults.outcomes.judge.at_rest import happens_in_passing, is_unlisted
from pytest_dataloader_faults.outcomes.judge.errors import torch_dropped_a_batch
from pytest_dataloader_faults.outcomes.records import Pass
from pytest_dataloader_faults.outcomes.stages import JobKilled
from pytest_dataloader_faults.outcomes.text import pluralize
from pytest_dataloader_faults.steps import run_epochs

_FLIPS, _MANY_FLIPS = 8, 2000
"""The number of damaged bytes in a file."""
_HALF = 0.5
_ALL_CUT = 1000
"""The number of first reads of a worker that are shortened, and about that of later ones."""
_SECOND = 2
_ONE_FOLDER = "it lists no folder next to another one that also contains data files"
_COMPARE = (
    "Compare the file with what you expect: its size, a record count in its header, or a checksum"
    " stored next to it"
)
_BEFORE = (
    "The file was already damaged when make_dataset() was called, so the constructor saw the damage"
    " as well"
)
_MISSING = (
    "The file was already missing when make_dataset() was called, so the constructor could neither"
    " open it nor find it in its folder"
)
_UNLISTED = "The folder could not be listed when make_dataset() was called"
_KILLED = (
    "All processes of the job got SIGKILL after the first batch, as from a scheduler or for lack of"
    " memory. Then a new process called make_dataset() again"
)
_UNREADABLE = (
    "The disk already failed when make_dataset() was called, so the constructor could not read the"
    " files either"
)
_INTERRUPTED = (
    "The fault happened while make_dataset() was called, and was over when it was called again, in"
    " the same folder"
)


def describe_start(outcome: Outcome) -> str:
    """What a trial that damaged files before the dataset was created did, for its advice."""
    if not outcome.before_init:
        return ""
    if outcome.of(JobKilled):
        return _KILLED
    if any(each.hides_file for each in outcome.schedule):
        return _MISSING
    if any(isinstance(each, faults.ListingError) for each in outcome.schedule):
        return _UNLISTED
    if any(map(happens_in_passing, outcome.schedule)):
        return _INTERRUPTED
    is_unreadable = any(isinstance(each, ReadError) for each in outcome.schedule)
    return _UNREADABLE if is_unreadable else _BEFORE


@for_each_kind
def _refuse_files(files: Workload) -> Iterator[Scenario]:
    yield Scenario(faults=(faults.OpenError(files.opened.path, errno.EACCES),))


@in_constructor
def _refuse_folder(workload: Workload) -> Iterator[Scenario]:
    """One of several folders: without the only one, there is no dataset to go on with."""
    folders, _ = _folders_by_content(workload)
    if len(folders) < _SECOND:
        raise NotApplicable(_ONE_FOLDER)
    fault = faults.ListingError(path_of(folders[len(folders) // 2 :][:1]), errno.EACCES)
    yield Scenario(faults=(fault,), title="a folder that cannot be listed")


@check("open-error", "handles files that cannot be opened, and folders that cannot be listed")
def open_error(workload: Workload) -> Iterator[Scenario]:
    """Permission is denied. Another errno would reach the same line of the dataset."""
    yield from plan_each([_refuse_files, _refuse_folder], workload)


def note_on_missing(outcome: Outcome) -> str:
    """That a folder decides how many samples there are, if it does."""
    if outcome.exception is not None or outcome.recovery is None or not is_unlisted(outcome):
        return ""
    left, whole = map(_count, (outcome.epochs[0], outcome.recovery))
    if left >= whole:
        return ""
    return f"the folder decides how many samples there are: {left} of {whole} if it lacks a file"


def _count(epoch: Pass) -> int:
    """How many samples the dataset of *epoch* has, as far as is known."""
    return epoch.length or epoch.sample_count


@check("missing-file", "handles a file that does not exist", note=note_on_missing)
@at_rest
@for_each_kind
def missing_file(files: Workload) -> Iterator[Scenario]:
    """One file only, so that the dataset can use the others instead: that must be visible."""
    chosen = files.read if files.is_at_rest else files.opened
    yield Scenario(faults=(faults.OpenError(chosen.middle, errno.ENOENT),))


@check("empty-file", "handles a file that is empty", advice=_COMPARE)
@at_rest
@for_each_kind
def empty_file(files: Workload) -> Iterator[Scenario]:
    """One file only, so that the dataset can use the others instead: that must be visible."""
    yield Scenario(faults=(faults.TruncatedFile(files.cut.middle, keep=0),))


@check("truncated-file", "handles truncated files", advice=_COMPARE)
@at_rest
@for_each_kind
def truncated_file(files: Workload) -> Iterator[Scenario]:
    """Half of each file is missing; or its end, where what is left looks like a complete file."""
    half = faults.TruncatedFile(files.cut.path, keep=_HALF)
    yield Scenario(faults=(half,), title="the second half is missing")
    if points := files.truncation_points:
        tails = tuple(faults.TruncatedFile(glob.escape(path), keep=end) for path, end in points)
        yield Scenario(faults=tails, title="the end is missing, but the file looks complete")


@check("corrupted-file", "handles files with damaged bytes", advice=_COMPARE)
@at_rest
@for_each_kind
def corrupted_file(files: Workload) -> Iterator[Scenario]:
    """Some files only: a substitute, zeros or the next sample, shows while others are intact."""
    few = faults.CorruptedFile(files.filled.spread, flips=_FLIPS)
    starts_program = any("process" in each.counts_of("starts") for each in files.fault_free.workers)
    yield Scenario(faults=(few,), title=f"{_FLIPS} bytes" if starts_program else "")
    if starts_program:
        # It may print a line for each of them, and waits once the pipe is full.
        yield Scenario(faults=(replace(few, flips=_MANY_FLIPS),), title=f"{_MANY_FLIPS:,} bytes")


def _halfway(files: Workload) -> int:
    """The number of a read in the middle, and not the first one, which reads a header.

    If an even number of items is read, it is the last read of an item. Without a longest read,
    every file is read at once, and its second read only finds its end: so the number is odd.
    """
    if files.longest_read is None:
        return max(1, (files.reads // 2 - 1) | 1)
    return max(_SECOND, files.reads // 2)


@for_each_kind
def _fail_halfway(files: Workload) -> Iterator[Scenario]:
    fault = ReadError(files.read.path, nth=_halfway(files))
    yield Scenario(faults=(fault,), title="from halfway on")


@at_rest
@for_each_kind
def _fail_from_the_start(files: Workload) -> Iterator[Scenario]:
    fault = ReadError(files.read_by_main_process.path)
    yield Scenario(faults=(fault,), title="from the constructor on")


@for_each_kind
def _refuse_mappings(files: Workload) -> Iterator[Scenario]:
    fault = ReadError(files.mapped.path, errno.ENODEV)
    yield Scenario(faults=(fault,), title="no mapping of a file")


def _fail_in_each_epoch(workload: Workload) -> Iterator[Scenario]:
    fault = ReadError(workload.read.middle)
    yield replace(FAULTS_IN_EACH_EPOCH, faults=(fault,), title="in each epoch of kept workers")


@check("read-error", "handles a disk that fails, and leaves nothing open after an error")
def read_error(workload: Workload) -> Iterator[Scenario]:
    """The disk fails halfway, for good; and from the constructor on, if the main process reads.

    Some drives cannot map a file: code that goes on may return a buffer that nothing has filled.
    Errors of one file, again and again, show what each of them leaves behind.
    """
    plans = (_fail_halfway, _refuse_mappings, _fail_from_the_start, _fail_in_each_epoch)
    yield from plan_each(plans, workload)


def _require_read(_: Workload, outcome: Outcome) -> None:
    if not outcome.fired and any(each.matched for each in outcome.faults):
        raise NotApplicable("its workers make fewer reads than in the fault-free run")
    _require_worker_init(outcome)


def _require_worker_init(outcome: Outcome) -> None:
    """Raise NotApplicable if workers lack what ``worker_init_fn`` makes, because it failed.

    torch calls it once for each worker, raises its error with the first batch, and has the worker
    continue.
    """
    firings = outcome.firings
    is_start = all(firing.worker is not None and firing.fetch == 0 for firing in firings)
    errors = {epoch.exception.type for epoch in outcome.epochs if epoch.exception}
    is_another = len(errors) > 1
    if outcome.kind == "map" and outcome.fired and is_start and is_another:
        raise NotApplicable(
            "worker_init_fn fails, and torch calls it only once for each worker, so these workers"
            " cannot recover"
        )


def _find_error_again(outcome: Outcome, _: Reference) -> Finding | None:
    """An error in the second epoch, although only reads of the first epoch failed."""
    raised = outcome.exception
    epochs = {firing.epoch for firing in outcome.firings}
    if raised is None or len(outcome.epochs) == 1 or epochs != {1}:
        return None
    sentence = f"no read failed in epoch 2, but the same workers raised {error_line(raised)}"
    return Finding(Verdict.POISONED, sentence)


@check(
    "read-error-once",
    "recovers from a single read error",
    rule=_find_error_again,
    scenario=replace(FAULTS_IN_EPOCH_1, require_effect=_require_read),
)
@for_each_kind
def read_error_once(files: Workload) -> Iterator[Scenario]:
    """One read fails in epoch 1. The same workers then run epoch 2, in which none fails.

    That is the longest read after the first one of its file: a first read has a header, and a
    dataset that keeps its files open reads it only once.
    """
    title = ""
    fault = ReadError(files.read.path, nth=_halfway(files), times=1)
    if longest := files.longest_read:
        path, counts = longest
        fault = ReadError(glob.escape(path), nth=counts.longest, times=1)
        size = pluralize(counts.longest_bytes, "byte")
        title = (
            f"read {counts.longest} of {os.path.basename(path)}, which is the longest: {size} at"
            f" {counts.longest_offset}"
        )
    yield Scenario(faults=(fault,), title=title)


def _shorten(files: Workload, max_bytes: float) -> tuple[faults.Fault, ...]:
    """Every read is short; if a worker makes very many, the first ones and some of the others."""
    path = files.read.path
    if files.reads <= _ALL_CUT:
        return (faults.ShortRead(path, max_bytes=max_bytes),)
    step = files.reads // _ALL_CUT * 2 + 1  # Odd, because headers and data alternate.
    first_fault = faults.ShortRead(path, max_bytes=max_bytes, times=_ALL_CUT)
    return (first_fault, faults.ShortRead(path, max_bytes=max_bytes, every=step))


def _require_long_read(workload: Workload, outcome: Outcome) -> None:
    if not any(each.matched for each in outcome.faults):
        raise workload.out_of_reach("its workers map their files, or read one byte at a time")


@check(
    "short-read",
    "handles reads that return fewer bytes than requested",
    scenario=Scenario(require_effect=_require_long_read),
)
@for_each_kind
def short_read(files: Workload) -> Iterator[Scenario]:
    """Long reads only, because a reader may check the length of its short header, but not the rest.

    If no read is longer than others, each is halved: then a reader that continues needs few calls.
    """
    longest = files.longest_read[1].longest_bytes if files.longest_read else 0
    most = mean if (mean := files.mean_read) < longest else _HALF
    yield Scenario(faults=_shorten(files, most))


def _require_descriptor(workload: Workload, outcome: Outcome) -> None:
    """A mapping outlives its descriptor, which Arrow closes when it has mapped a file."""
    is_target = GlobMatcher(tuple(path for each in outcome.schedule for path in each.globs))
    if any(each.matched for each in outcome.faults) or any(map(is_target, workload.opened.paths)):
        return
    reason = "its workers open none of these files, and hold no descriptor of them: they are mapped"
    raise workload.out_of_reach(reason)


@check(
    "closed-descriptor",
    "handles a descriptor that is closed while the dataset uses it",
    scenario=Scenario(require_effect=_require_descriptor),
)
@for_each_kind
def closed_descriptor(files: Workload) -> Iterator[Scenario]:
    """In all files: the error is EBADF, wherever it happens."""
    yield Scenario(faults=(faults.ClosedDescriptor(files.read.path),))


def _require_use_of_descriptors(workload: Workload, outcome: Outcome) -> None:
    opens = [each.opens for worker in workload.fault_free.workers for each in worker.files.values()]
    if not outcome.fired and not any(opens):
        if workload.fault_free.unobserved:
            raise workload.no_target("open")
        raise NotApplicable("its workers need no descriptor")
    if torch_dropped_a_batch(outcome):
        raise NotApplicable(
            "its workers need no descriptor for the samples, but torch needs one to share a batch."
            " If that fails, torch's queue thread prints the error and drops the batch, and the"
            " loader waits forever, whatever the dataset does"
        )


@check(
    "descriptor-exhaustion",
    "handles a worker that has run out of file descriptors",
    scenario=Scenario(require_effect=_require_use_of_descriptors),
)
def descriptor_exhaustion(_: Workload) -> Iterator[Scenario]:
    """No more files can be opened, as with "Too many open files" (EMFILE)."""
    yield Scenario(faults=(faults.DescriptorExhaustion(),))


# Some facts about folders. They are listed in an order that depends on the file system and on the
# machine, which listdir(3) promises nothing about. A dataset that does not sort its files works
# until its data is copied. Nor does a folder contain only what its owner put there. macOS adds
# .DS_Store to each folder that is viewed, NFS renames a removed file that is open to .nfs0001, and
# an interrupted copy leaves a part of a file. Ranks make it worse: each of them draws its part of
# the indices. If an index means another sample on one machine, some samples are read twice, and
# others never.


_NO_INDEX = (
    "the samples of a stream have no index: what a worker delivers may depend on the order in which"
    " a folder is listed"
)
_NO_LISTING = "neither its constructor nor its workers list a folder that contains its files"
_NO_ORDER = "no folder of its files that is listed has several entries"
_UNSORTED = Cause(
    "depends on the order in which a folder is listed",
    fix="sort what is listed: sorted(os.listdir(folder)), sorted(folder.glob('*.jpg'))",
)
_UNFILTERED = Cause(
    "treats every entry of a folder as data",
    fix="select files by suffix, as in folder.glob('*.jpg'), and folders by is_dir()",
)


def _require_reversal(_: Workload, outcome: Outcome) -> None:
    """Raise NotApplicable if each listed folder has one entry, or if no rank lists any."""
    faults = [each for rank in outcome.ranks or (outcome,) for each in rank.faults]
    may_be_single = bool(outcome.ranks) or any(each.matched for each in faults)
    if may_be_single and not any(each.fired for each in faults):
        raise NotApplicable(_NO_ORDER)


@check(
    "listing-order",
    "an index means the same sample, whatever order a folder is listed in",
    scenario=Scenario(processes=run_epochs(before_init=True), require_effect=_require_reversal),
    cause=_UNSORTED,
    preface="Folders were listed in reverse when make_dataset() was called, as another file system"
    " may list them",
    advice="Sort the names before you use them, and pair files by their names instead of their"
    " places in two lists. If an index may mean another sample on another machine, promise"
    " Contract(may_reorder=True)",
)
def listing_order(workload: Workload) -> Iterator[Scenario]:
    """In each process, by which an index may mean another sample; and in one of several ranks.

    The samples of a stream have no index. But if its ranks divide the files that they list, each
    sample must still be delivered once.
    """
    if workload.fault_free.kind != "map" and not workload.ranks:
        raise NotApplicable(_NO_INDEX, "it is a stream")
    globs = tuple(map(glob.escape, _list_folders(workload)))
    if workload.fault_free.kind == "map":
        yield Scenario(
            faults=(ListingOrder(path_of(globs)),),
            circumstance="when its folders are listed in another order",
        )
    if workload.ranks:
        for folder in map(glob.escape, workload.own_folders.paths):
            # That of a rank has a number at its end.
            globs = tuple(each.replace(folder, f"{folder}*", 1) for each in globs)
        yield Scenario(
            ranks=True,
            title="in one rank",
            faults=(ListingOrder(path_of(globs)),),
            processes=run_epochs(before_init=True)[:1],
            circumstance="when one rank lists its folders in another order",
        )


@check(
    "stray-entries",
    "handles a hidden file and an interrupted copy in its folders",
    scenario=Scenario(processes=run_epochs(before_init=True)),
    cause=_UNFILTERED,
    preface="When make_dataset() was called, each folder of data files contained one more file: the"
    " first half of another one, as an interrupted copy leaves it (.part). The folders above them"
    " that are listed contained .DS_Store, which macOS creates",
    advice="Select files by suffix, as in sorted(folder.glob('*.jpg')), and classes by"
    " path.is_dir(), or raise an error that names the unexpected file. If a file may have any name,"
    " list the check in expected_failures",
)
def stray_entries(workload: Workload) -> Iterator[Scenario]:
    """Half a file in each folder of data files, and a hidden file in each folder of folders."""
    of_files, of_folders = _folders_by_content(workload)
    strays = [StrayEntry(path_of(of_files), "*.part")] if of_files else []
    strays += [StrayEntry(path_of(of_folders))] if of_folders else []
    yield Scenario(faults=tuple(strays))


def _list_folders(workload: Workload) -> tuple[str, ...]:
    """The listed folders that have a data file in or below them."""
    if not workload.listed:
        raise workload.refusal or NotApplicable(_NO_LISTING)
    return workload.listed.paths


def _folders_by_content(workload: Workload) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Globs for the listed folders that contain data files, and for those above such folders."""
    folders = _list_folders(workload)
    with_files = {os.path.dirname(os.path.realpath(path)) for path in workload.paths}
    of_files = tuple(glob.escape(folder) for folder in folders if folder in with_files)
    return of_files, tuple(glob.escape(folder) for folder in folders if folder not in with_files)


LISTINGS = (listing_order, stray_entries)
FILES = (
    open_error,
    missing_file,
    empty_file,
    truncated_file,
    corrupted_file,
    read_error,
    read_error_once,
    short_read,
    closed_descriptor,
    descriptor_exhaustion,
)
