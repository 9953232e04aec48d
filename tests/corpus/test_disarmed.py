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
from pytest_dataloader_faults.faults import WorkerKilled
from support.corpus import OF_CHECK
from support.corpus.ranks import RankedStream
from support.datasets import CopiedRecords, write_records
from support.judging import judge_trial
from support.ranked import RankedStreamWithState

_WITHOUT_FAULTS = (
    *("workers-agree", "read-before-fork", "two-epochs", "leftover-files"),
    *("resumes", "resumes-after-death", "ranks-share-folder"),
)
"""Their deaths and holds are no faults of files: see the modules that test them."""
_RARE = (*NETWORK, *HTTP, *LISTINGS, *LOCKS, *THREADS, *MEMORY)
OF_SPECIMENS = [each for each in _RARE if each.name not in ("copy-on-write", "ranks-listing-order")]
"""The healthy stream shows nothing of their faults. For copy-on-write, see test_copy_on_write.py;
ranks-listing-order has the fault of listing-order."""
FAULTY = [
    name
    for name, check in CHECKS.items()
    if check.plan is not no_fault and name not in _WITHOUT_FAULTS and check not in _RARE
]


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
    if "path" not in {each.name for each in fields(fault)}:
        return replace(fault, workers=(99,))
    is_of_connections = "tcp:" in str(fault.path)
    return replace(fault, path="tcp://192.0.2.1:1" if is_of_connections else "/no/such/file")


def _run_disarmed(name, make, faults):
    """A trial as that of a check, with its *faults*, none of which can happen."""
    scenario = CHECKS[name].scenario
    job = TrialJob(
        make_dataset=make,
        faults=tuple(map(_disarmed, faults)),
        settings=Settings(loader={"num_workers": 2, "batch_size": 4}, ranks=2),
        changes=scenario.loader,
        options=scenario.options,
    )
    return run_ranks(job) if scenario.ranks else run_trial_job(job)


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
    make, reference, armed = armed_trials[CHECKS[names[0]] in WRITES]
    assert {armed[name].verdict for name in names} <= {"survived", "failed_cleanly"}
    assert all(armed[name].outcome.schedule for name in names)
    faults = [fault for name in names for fault in armed[name].outcome.schedule]
    outcome = _run_disarmed(names[0], make, faults)
    assert judge_trial(outcome, reference).verdict == "not_exercised"


@pytest.mark.parametrize(
    "case", [OF_CHECK[each.name] for each in OF_SPECIMENS], ids=lambda case: case.check
)
def test_a_specimen_that_is_disarmed_shows_nothing(case, tmp_path, ask_once):
    options = {**case.limits, **case.options}
    armed = ask_once(case.specimen, case.check, fails=True, **options)
    make = functools.partial(case.specimen, case.fill(tmp_path / "records"))

    assert armed.outcome.schedule
    outcome = _run_disarmed(case.check, make, armed.outcome.schedule)
    assert judge_trial(outcome, take_reference(make)).verdict == "not_exercised"
