"""Checks of how a dataset lists its folders. Pure.

A folder is listed in an order that depends on the file system and on the machine, which listdir(3)
promises nothing about. A dataset that does not sort its files works until its data is copied.
"""

from __future__ import annotations

import glob

from pytest_dataloader_faults.battery.checks._base import Check, Scenario
from pytest_dataloader_faults.battery.targets import listed_folders, path_of
from pytest_dataloader_faults.battery.workload import NotApplicable, Workload
from pytest_dataloader_faults.faults import ListingOrder
from pytest_dataloader_faults.outcomes.contract import Cause
from pytest_dataloader_faults.steps import run_epochs

_NO_INDEX = (
    "the samples of a stream have no index: what a worker delivers may depend on the order in which"
    " a folder is listed"
)
_NO_LISTING = "neither its constructor nor its workers list a folder that contains its files"
_UNSORTED = Cause(
    "depends on the order in which a folder is listed",
    fix="sort what is listed: sorted(os.listdir(folder)), sorted(folder.glob('*.jpg'))",
)


def _reverse_listings(workload: Workload) -> Scenario:
    """Every folder above a data file that is listed."""
    if workload.fault_free.kind != "map":
        raise NotApplicable(_NO_INDEX, "it is a stream")
    folders = listed_folders(workload.fault_free, workload.paths)
    if not folders:
        raise NotApplicable(_NO_LISTING)
    return Scenario(faults=(ListingOrder(path_of(tuple(map(glob.escape, folders)))),))


LISTINGS = (
    Check(
        "listing-order",
        "an index means the same sample, whatever order a folder is listed in",
        _reverse_listings,
        scenario=Scenario(
            processes=run_epochs(before_init=True),
            circumstance="when its folders are listed in another order",
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
)
