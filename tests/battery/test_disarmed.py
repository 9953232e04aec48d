"""Each check's verdict comes from its fault: disarmed, it shows nothing."""

from __future__ import annotations

from dataclasses import fields, replace

import pytest

from pytest_dataloader_faults._settings import Settings
from pytest_dataloader_faults._settings.jobs import TrialJob
from pytest_dataloader_faults._trial import run_trial_job, take_reference
from pytest_dataloader_faults.battery._battery import Battery
from pytest_dataloader_faults.battery.checks import CHECKS
from pytest_dataloader_faults.battery.checks._base import no_fault
from pytest_dataloader_faults.battery.checks._faults import NETWORK, WRITES
from pytest_dataloader_faults.faults import DescriptorExhaustion, WorkerKilled
from support.datasets import CopiedRecords, write_records
from support.specimens import Packed

_WITHOUT_FAULTS = ("workers-agree", "leftovers")
FAULTY = [
    name
    for name, check in CHECKS.items()
    if check.plan is not no_fault and name not in _WITHOUT_FAULTS and check not in NETWORK
]
"""Those of connections are in test_networks.py."""


@pytest.fixture(scope="module", name="known")
def _known(tmp_path_factory):
    """Healthy datasets, what they give, and what the battery found out about them.

    The second one writes.
    """
    folder = write_records(tmp_path_factory.mktemp("disarmed") / "records")
    every = lambda: Packed(folder), lambda cache: CopiedRecords(folder, cache)
    return [(make, take_reference(make), Battery(make).workload) for make in every]


def _disarmed(fault):
    """*fault*, so that it can never happen."""
    if isinstance(fault, WorkerKilled):
        return replace(fault, at=10**6)
    if isinstance(fault, DescriptorExhaustion):
        return replace(fault, workers=(99,))
    assert "path" in {each.name for each in fields(fault)}
    return replace(fault, path="/nothing/has/this/name")


@pytest.mark.parametrize("name", FAULTY)
def test_check_that_is_disarmed_is_not_exercised(name, known):
    """Each check's verdict comes from its fault: without it, nothing is shown."""
    check = CHECKS[name]
    make, reference, workload = known[check in WRITES]
    schedule = check.plan(workload)[0].faults
    settings = Settings(loader={"num_workers": 2, "batch_size": 4})
    loader = {"settings": settings, "changes": check.changes}
    how = {"make_dataset": make, **loader, "options": check.options}

    verdicts = [
        run_trial_job(TrialJob(faults=tuple(faults), **how)).judge(reference).verdict
        for faults in (schedule, map(_disarmed, schedule))
    ]

    assert verdicts[0] in ("survived", "failed_cleanly")
    assert verdicts[1] == "not_exercised"
