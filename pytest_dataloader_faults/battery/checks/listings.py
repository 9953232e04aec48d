"""Checks of how a dataset lists its folders. Pure.

A folder is listed in an order that depends on the file system and on the machine, which listdir(3)
promises nothing about. A dataset that does not sort its files works until its data is copied.

Nor does a folder contain only what its owner put there. macOS adds .DS_Store to each folder that is
viewed, NFS renames a removed file that is open to .nfs0001, and an interrupted copy leaves a part
of a file. A dataset that treats every entry as data works until one of them appears.

Ranks make it worse: each of them draws its part of the indices. If an index means another sample on
one machine, some samples are read twice, and others never.
"""

from __future__ import annotations

import glob
import os
from collections.abc import Iterator

from pytest_dataloader_faults.battery.checks._base import Scenario, check
from pytest_dataloader_faults.battery.targets import path_of
from pytest_dataloader_faults.battery.workload import NotApplicable, Workload
from pytest_dataloader_faults.faults import ListingOrder, StrayEntry
from pytest_dataloader_faults.outcomes import Outcome
from pytest_dataloader_faults.outcomes.contract import Cause
from pytest_dataloader_faults.steps import run_epochs

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
    folders = _list_folders(workload)
    with_files = {os.path.dirname(os.path.realpath(path)) for path in workload.paths}
    of_files = tuple(glob.escape(folder) for folder in folders if folder in with_files)
    of_folders = tuple(glob.escape(folder) for folder in folders if folder not in with_files)
    strays = [StrayEntry(path_of(of_files), "*.part")] if of_files else []
    strays += [StrayEntry(path_of(of_folders))] if of_folders else []
    yield Scenario(faults=tuple(strays))


def _list_folders(workload: Workload) -> tuple[str, ...]:
    """The listed folders that have a data file in or below them."""
    if not workload.listed:
        raise workload.refusal or NotApplicable(_NO_LISTING)
    return workload.listed.paths


LISTINGS = (listing_order, stray_entries)
