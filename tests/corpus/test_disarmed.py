"""Each check's verdict comes from its fault: disarmed, it shows nothing."""

import functools
import itertools
from dataclasses import fields, replace

import pytest

from pytest_dataloader_faults import check_dataset
from pytest_dataloader_faults._settings import Settings
from pytest_dataloader_faults._settings.jobs import TrialJob
from pytest_dataloader_faults._trial import run_trial_job, take_reference
from pytest_dataloader_faults._trial.accelerator import missing_accelerator
from pytest_dataloader_faults.battery.checks import CHECKS, run_ranks
from pytest_dataloader_faults.battery.checks._base import no_fault
from pytest_dataloader_faults.battery.checks.listings import LISTINGS
from pytest_dataloader_faults.battery.checks.locks import LOCKS
from pytest_dataloader_faults.battery.checks.memory import MEMORY
from pytest_dataloader_faults.battery.checks.network import HTTP, NETWORK
from pytest_dataloader_faults.battery.checks.threads import THREADS
from pytest_dataloader_faults.battery.checks.writes import WRITES
from pytest_dataloader_faults.faults import DescriptorExhaustion, WorkerKilled
from support.corpus.ranks import RankedStream
from support.datasets import CopiedRecords, write_records
from support.judging import judge_trial
from support.ranked import RankedStreamWithState

_WITHOUT_FAULTS = (
    *("workers-agree", "read-before-fork", "two-epochs", "leftover-files"),
    *("resumes", "resumes-after-death", "ranks-share-folder"),
)
"""Their deaths and holds are no faults of files: see the modules that test them."""
FAULTY = [
    name
    for name, check in CHECKS.items()
    if check.plan is not no_fault and name not in _WITHOUT_FAULTS
    if check not in (*NETWORK, *HTTP, *LISTINGS, *LOCKS, *THREADS, *MEMORY)
]
"""For the others, see test_networks.py, test_http.py, test_listings.py, test_stray_entries.py,
test_locks.py, test_threads.py, test_copy_on_write.py and test_memory_exhaustion.py."""


@pytest.fixture(scope="module", name="records_of_module")
def _records_of_module(tmp_path_factory):
    return write_records(tmp_path_factory.mktemp("disarmed") / "records")


@pytest.fixture(scope="module", name="results")
def _results(records_of_module):
    """What each check finds of a healthy stream."""
    make = functools.partial(RankedStreamWithState, records_of_module)
    results = check_dataset(make, ranks=2, on_fail=None)
    return {each.check: each for each in results}


def test_healthy_dataset_passes_every_check(results):
    assert list(results) == list(CHECKS)
    assert [each.explanation for each in results.values() if each.applies != each.passed] == []
    rare = {each.name for each in (*WRITES, *NETWORK, *HTTP, *LOCKS, *THREADS, *MEMORY)}
    rare |= {"listing-order", "ranks-share-folder"}
    lacking = {
        name
        for name, check in CHECKS.items()
        if check.scenario.uses_accelerator and missing_accelerator()
    }
    assert {name for name, each in results.items() if not each.applies} == rare | lacking


@pytest.fixture(scope="module", name="armed_trials")
def _known(records_of_module, results):
    """Healthy datasets, what they give, and what checks find. The second one writes."""
    folder = records_of_module
    stream = functools.partial(RankedStream, folder)

    def writing(cache):
        return CopiedRecords(folder, cache)

    writes = check_dataset(writing, only=[each.name for each in WRITES])
    return [
        (stream, take_reference(stream), results),
        (writing, take_reference(writing), {each.check: each for each in writes}),
    ]


def _disarmed(fault):
    """*fault*, so that it can never happen."""
    if isinstance(fault, WorkerKilled):
        return replace(fault, at=10**6)
    if isinstance(fault, DescriptorExhaustion):
        return replace(fault, workers=(99,))
    assert "path" in {each.name for each in fields(fault)}
    return replace(fault, path="/nothing/has/this/name")


def _kind_of_trial(name):
    """What decides how the trial of a check runs, apart from its fault."""
    scenario = CHECKS[name].scenario
    return CHECKS[name] in WRITES, repr((scenario.ranks, scenario.loader, scenario.options))


GROUPS = [
    [*names] for _, names in itertools.groupby(sorted(FAULTY, key=_kind_of_trial), _kind_of_trial)
]


@pytest.mark.parametrize("names", GROUPS, ids=" ".join)
def test_checks_that_are_disarmed_are_not_exercised(names, armed_trials):
    """One trial has the faults of all checks that run the same steps, and none of them fires."""
    check = CHECKS[names[0]]
    make, reference, armed = armed_trials[check in WRITES]
    job = TrialJob(
        make_dataset=make,
        faults=tuple(_disarmed(each) for name in names for each in armed[name].outcome.schedule),
        settings=Settings(loader={"num_workers": 2, "batch_size": 4}, ranks=2),
        changes=check.scenario.loader,
        options=check.scenario.options,
    )

    assert {armed[name].verdict for name in names} <= {"survived", "failed_cleanly"}
    assert all(armed[name].outcome.schedule for name in names)
    outcome = run_ranks(job) if check.scenario.ranks else run_trial_job(job)
    assert judge_trial(outcome, reference).verdict == "not_exercised"
