"""Which start method the workers of a loader have, and that nobody but the user settles it."""

from __future__ import annotations

import multiprocessing
import subprocess
import sys
from dataclasses import asdict, is_dataclass
from functools import partial

import pytest

from pytest_dataloader_faults import check_dataset, explore, run_trial
from pytest_dataloader_faults.faults import ReadError
from pytest_dataloader_faults.search import replay
from support.inner import PYTHONPATH
from support.served import ForkedWorkers, KeepsFile

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
OWN = multiprocessing.get_all_start_methods()[0]
"""What the interpreter takes where nothing else is set."""
AS_A_USER = """
import sys
from dataclasses import asdict
from pathlib import Path
from pytest_dataloader_faults import check_dataset, explore, run_trial
from support.served import ForkedWorkers

def make():
    return ForkedWorkers(Path(sys.argv[1]), forked=sys.argv[2] == "fork")

if __name__ == "__main__":
    how = {"seed": 1, "database": None}
    for found in (
        *check_dataset(make, only="workers-agree"),
        explore(make, max_examples=3, **how),
        run_trial(make),
    ):
        print(asdict(found))
"""
ADVICE = "have this one do so: loader={'multiprocessing_context': 'fork'}"


@pytest.fixture(name="default", params=[pytest.param("fork", marks=pytest.mark.slow), "forkserver"])
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
    "search": partial(explore, max_examples=3, seed=1, database=None),
    "replay": replay,
}


def _told(found):
    """All that a result has, or several of them."""
    every = found if isinstance(found, list) else [found]
    return str([asdict(each) if is_dataclass(each) else each for each in every])


@pytest.mark.parametrize("way", WAYS)
def test_a_loader_that_names_none_has_the_default(records, default, way):
    """As it has in torch, whatever runs the loader."""
    found = WAYS[way](lambda: ForkedWorkers(records, forked=default == "fork"))
    assert "another method" not in _told(found)


@pytest.mark.parametrize("way", WAYS)
def test_a_loader_has_the_one_that_it_names(records, default, way):
    """Also where that is not the default."""
    other = {"fork": "forkserver", "forkserver": "fork"}[default]
    make = partial(ForkedWorkers, records, forked=other == "fork")
    found = WAYS[way](make, loader={"multiprocessing_context": other})
    assert "another method" not in _told(found)


@pytest.mark.parametrize("default", ["fork"], indirect=True)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.usefixtures("default")
def test_another_start_method_would_be_seen(records, way):
    """The dataset of these tests raises in a worker that is started in another way."""
    try:
        found = _told(WAYS[way](lambda: ForkedWorkers(records, forked=False)))
    except Exception as error:  # noqa: BLE001  # each way has its own
        found = repr(error)
    assert "another method" in found


def _printed(script, *arguments):
    """What *script* prints in a new interpreter, where it must not fail."""
    done = subprocess.run(
        [sys.executable, "-c", script, *map(str, arguments)],
        env={"PYTHONPATH": PYTHONPATH},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def test_the_default_can_be_set_after_a_battery(records):
    """A battery does not settle it: set_start_method() would be refused after that."""
    _printed(SETS_IT_LATE, records)


def test_a_new_interpreter_has_its_own_default(records):
    """As in a script or a test of a user, where nothing has set another."""
    printed = _printed(AS_A_USER, records, OWN)
    assert "another method" not in printed
    assert f"'start_method': '{OWN}'" in printed


ADVISED = {
    "battery": lambda make, **how: check_dataset(make, only="workers-agree", **how)[0].explanation,
    "search": lambda make, **how: explore(make, **how).failure,
}


@pytest.mark.parametrize("default", ["forkserver"], indirect=True)
@pytest.mark.parametrize("way", ADVISED)
@pytest.mark.usefixtures("default")
def test_what_cannot_be_pickled_gets_advice(records, way):
    """By default from Python 3.14 on: what to change, or how to have workers forked."""
    text = ADVISED[way](lambda: KeepsFile(records), on_fail=None)
    assert "cannot pickle" in text
    assert ADVICE in text
    assert "pytest_dataloader_faults/_" not in text  # No traceback through the plugin.


@pytest.mark.parametrize("default", ["forkserver"], indirect=True)
@pytest.mark.usefixtures("default")
def test_that_advice_is_true(records):
    """Workers that are forked get the dataset as it is."""
    loader = {"num_workers": 1, "multiprocessing_context": "fork"}
    outcome = run_trial(lambda: KeepsFile(records), loader=loader)
    assert (outcome.start_method, outcome.exception) == ("fork", None)
