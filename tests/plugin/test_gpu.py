"""The marker gpu: what becomes of tests that need an accelerator, with one and without."""

from pytest_dataloader_faults.battery.checks import CHECKS

SUITE = """
import pytest

@pytest.mark.gpu
@pytest.mark.dataloader_faults
def test_pinned():
    pass

@pytest.mark.gpu
def test_of_another_suite():
    pass

def test_plain():
    pass
"""
NO_ACCELERATOR = """
import torch
from pytest_dataloader_faults._trial.accelerator import missing_accelerator

missing_accelerator.cache_clear()
torch.accelerator.is_available = lambda: False
"""
AN_ACCELERATOR = """
import torch
from pytest_dataloader_faults._trial.accelerator import missing_accelerator

missing_accelerator.cache_clear()
torch.accelerator.is_available = lambda: True
"""
"""What the answer is good for is tested here, not the answer."""


def test_without_an_accelerator_they_are_skipped_for_one_reason(suite):
    suite.pytester.makeconftest(NO_ACCELERATOR)
    result = suite.run(SUITE, "-rs")
    result.assert_outcomes(passed=2, skipped=1)
    result.stdout.fnmatch_lines(["SKIPPED * torch * finds no accelerator here"])


def test_a_job_for_accelerators_fails_without_one(suite):
    """A job that skips everything would be green."""
    suite.pytester.makeconftest(NO_ACCELERATOR)
    result = suite.run(SUITE, "--dataloader-faults-require-gpu", "-m", "gpu and dataloader_faults")
    result.assert_outcomes(errors=1, deselected=2)
    result.stdout.fnmatch_lines(["*--dataloader-faults-require-gpu: torch * finds no accelerator*"])


def test_with_an_accelerator_they_run(suite):
    suite.pytester.makeconftest(AN_ACCELERATOR)
    suite.run(SUITE, "--dataloader-faults-require-gpu").assert_outcomes(passed=3)


BATTERY = """
def test_battery(fault_check):
    fault_check(None)
"""
NO_PIDFDS = """
import os
from pytest_dataloader_faults._engine import explain_missing_engine

def refuse(_pid):
    raise PermissionError(1, "Operation not permitted")

explain_missing_engine.cache_clear()
os.pidfd_open = refuse
"""


def test_without_an_engine_they_are_skipped_for_that_reason(suite):
    """To look for an accelerator takes an engine's means, too."""
    suite.pytester.makeconftest(NO_PIDFDS)
    result = suite.run(BATTERY, "-rs", "-k", "pin-memory")
    result.assert_outcomes(skipped=1, deselected=len(CHECKS) - 1)
    result.stdout.fnmatch_lines(["SKIPPED * no engine can run here: pidfd_open(2) *"])


def test_the_marker_selects_the_checks_that_need_one(suite):
    suite.pytester.makeconftest(NO_ACCELERATOR)
    result = suite.run(SUITE + BATTERY, "-m", "gpu and dataloader_faults", "-rs")
    result.assert_outcomes(skipped=2, deselected=len(CHECKS) + 1)
    result.stdout.fnmatch_lines(["SKIPPED ?2? * torch * finds no accelerator here"])
