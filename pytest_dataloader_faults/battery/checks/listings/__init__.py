"""Checks of how a dataset lists its folders. Pure.

A folder is listed in an order that depends on the file system and on the machine, which listdir(3)
promises nothing about. A dataset that does not sort its files works until its data is copied.

Nor does a folder contain only what its owner put there. macOS adds .DS_Store to each folder that is
viewed, NFS renames a removed file that is open to .nfs0001, and an interrupted copy leaves a part
of a file. A dataset that treats every entry as data works until one of them appears.
"""

from __future__ import annotations

import glob
import os
from collections.abc import Iterator

from pytest_dataloader_faults.battery.checks._base import Check, Scenario
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


def _require_folders(workload: Workload) -> tuple[str, ...]:
    """The listed folders that have a data file in or below them."""
    if not workload.listed:
        raise NotApplicable(_NO_LISTING)
    return workload.listed.paths


def _reverse_listings(workload: Workload) -> Scenario:
    if workload.fault_free.kind != "map":
        raise NotApplicable(_NO_INDEX, "it is a stream")
    folders = _require_folders(workload)
    return Scenario(faults=(ListingOrder(path_of(tuple(map(glob.escape, folders)))),))


def _add_entries(workload: Workload) -> Scenario:
    """Half a file in each folder of data files, and a hidden file in each folder of folders."""
    folders = _require_folders(workload)
    with_files = {os.path.dirname(os.path.realpath(path)) for path in workload.paths}
    of_files = tuple(glob.escape(folder) for folder in folders if folder in with_files)
    of_folders = tuple(glob.escape(folder) for folder in folders if folder not in with_files)
    return Scenario(faults=tuple(_strays(of_files, of_folders)))


def _reverse_in_one_rank(workload: Workload) -> Scenario:
    """In every folder that has data files in or below it: which are listed is not known."""
    if not workload.paths:
        raise NotApplicable("its workers open no data file")
    folder = os.path.commonpath(
        [os.path.dirname(os.path.realpath(each)) for each in workload.paths]
    )
    name = glob.escape(folder)
    return Scenario(faults=(ListingOrder((name, os.path.join(name, "*"))),))


def _require_reversal(_: Workload, outcome: Outcome) -> None:
    """Raise NotApplicable if each listed folder has one entry, or if no rank lists any."""
    faults = [each for rank in outcome.ranks or (outcome,) for each in rank.faults]
    may_be_single = bool(outcome.ranks) or any(each.matched for each in faults)
    if may_be_single and not any(each.fired for each in faults):
        raise NotApplicable(_NO_ORDER)


def _strays(of_files: tuple[str, ...], of_folders: tuple[str, ...]) -> Iterator[StrayEntry]:
    if of_files:
        yield StrayEntry(path_of(of_files), "*.part")
    if of_folders:
        yield StrayEntry(path_of(of_folders))


LISTINGS = (
    Check(
        "listing-order",
        "an index means the same sample, whatever order a folder is listed in",
        _reverse_listings,
        scenario=Scenario(
            processes=run_epochs(before_init=True),
            circumstance="when its folders are listed in another order",
            require_effect=_require_reversal,
        ),
        cause=_UNSORTED,
        preface=(
            "Folders were listed in reverse when make_dataset() was called, as another file system"
            " may list them"
        ),
        advice=(
            "Sort the names before you use them, and pair files by their names instead of their"
            " places in two lists. If an index may mean another sample on another machine, promise"
            " Contract(may_reorder=True)"
        ),
    ),
    Check(
        "ranks-listing-order",
        "each sample is delivered exactly once, although one rank lists its folders in another"
        " order",
        _reverse_in_one_rank,
        scenario=Scenario(
            ranks=True,
            processes=run_epochs(before_init=True)[:1],
            circumstance="when one rank lists its folders in another order",
            require_effect=_require_reversal,
        ),
        cause=_UNSORTED,
        preface=(
            "Folders were listed in reverse when make_dataset() was called in one rank, as if its"
            " machine had another file system"
        ),
        advice=(
            "Sort the names before you use them. DistributedSampler divides indices, so if an index"
            " means another sample on one machine, some samples are read twice and others never"
        ),
    ),
    Check(
        "stray-entries",
        "handles a hidden file and an interrupted copy in its folders",
        _add_entries,
        scenario=Scenario(processes=run_epochs(before_init=True)),
        cause=_UNFILTERED,
        preface=(
            "When make_dataset() was called, each folder of data files contained one more file:"
            " the first half of another one, as an interrupted copy leaves it (.part). The folders"
            " above them that are listed contained .DS_Store, which macOS creates"
        ),
        advice=(
            "Select files by suffix, as in sorted(folder.glob('*.jpg')), and classes by"
            " path.is_dir(), or raise an error that names the unexpected file. If a file may have"
            " any name, list the check in expected_failures"
        ),
    ),
)
