"""Which start method the workers of a loader have, and that nobody but the user settles it."""

from __future__ import annotations

import multiprocessing
import subprocess
import sys
from functools import partial

import pytest

from pytest_dataloader_faults import check_dataset, explore, explore_lifecycle, run_trial
from pytest_dataloader_faults.faults import ReadError
from pytest_dataloader_faults.lifecycle import Iterate, NewLoader
from pytest_dataloader_faults.search import replay
from support.inner import PYTHONPATH
from support.served import ForkedWorkers

SETS_IT_LATE = """
import multiprocessing
import sys
from pathlib import Path
from pytest_dataloader_faults import check_dataset
from support.datasets import Records

if __name__ == "__main__":
    check_dataset(lambda: Records(Path(sys.argv[1])), only=["workers-agree", "pickles"])
    multiprocessing.set_start_method("spawn")
"""


@pytest.fixture(name="default", params=["fork", "forkserver"])
def _default(request):
    """The default of multiprocessing while the test runs."""
    before = multiprocessing.get_start_method(allow_none=True)
    multiprocessing.set_start_method(request.param, force=True)
    yield request.param
    multiprocessing.set_start_method(before, force=True)


WAYS = {
    "battery": partial(check_dataset, only="workers-agree"),
    "trial": run_trial,
    "trial under a fault": lambda make, **how: run_trial(make, ReadError("*/0?.rec"), **how),
    "search": partial(explore, max_examples=3),
    "lifecycles": partial(explore_lifecycle, max_examples=3),
    "one lifecycle": lambda make, **how: replay(make, NewLoader(), Iterate(), **how),
}


@pytest.mark.parametrize("way", WAYS)
def test_a_loader_that_names_none_has_the_default(records, default, way):
    """As it has in torch, whatever runs the loader."""
    found = WAYS[way](lambda: ForkedWorkers(records, forked=default == "fork"))
    assert "another method" not in repr(found)


@pytest.mark.parametrize("way", WAYS)
def test_a_loader_has_the_one_that_it_names(records, default, way):
    """Also where that is not the default."""
    other = {"fork": "forkserver", "forkserver": "fork"}[default]
    make = partial(ForkedWorkers, records, forked=other == "fork")
    assert "another method" not in repr(WAYS[way](make, loader={"multiprocessing_context": other}))


@pytest.mark.parametrize("default", ["fork"], indirect=True)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.usefixtures("default")
def test_another_start_method_would_be_seen(records, way):
    """The dataset of these tests raises in a worker that is started in another way."""
    try:
        found = repr(WAYS[way](lambda: ForkedWorkers(records, forked=False)))
    except Exception as error:  # noqa: BLE001  # each way has its own
        found = repr(error)
    assert "another method" in found


def test_the_default_can_be_set_after_a_battery(records):
    """A battery does not settle it: set_start_method() would be refused after that."""
    done = subprocess.run(
        [sys.executable, "-c", SETS_IT_LATE, str(records)],
        env={"PYTHONPATH": PYTHONPATH},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
