"""What a machine lacks, an engine or an accelerator: one line in the header, and skips."""

from pytest_dataloader_faults import _engine
from pytest_dataloader_faults.battery.checks import CHECKS, GROUPS
from support.rows import rows

BUSY = "already has a seccomp listener*EBUSY*"
REFUSED = """
import pytest
from pytest_dataloader_faults import check_dataset, faults, inject, run_trial

@pytest.mark.dataloader_faults(only="read-error")
def test_battery(fault_check):
    fault_check(None)

def test_injected(read_errors):
    read_errors("*.rec")

@pytest.mark.parametrize("call", [check_dataset, run_trial, inject])
def test_functions(call):
    given = faults.ReadError() if call is inject else list
    with call(given):
        pass

def test_plain():
    pass
"""


def test_items_are_skipped_where_the_kernel_refuses(run_refused):
    """The header and each item that needs the engine give the reason, also of a plain call."""
    result = run_refused(REFUSED, "-rs")
    result.assert_outcomes(passed=1, skipped=5)
    header = f"dataloader-faults: no engine available, so tests that need one are skipped: *{BUSY}"
    result.stdout.fnmatch_lines([header])
    skips = [line for line in result.outlines if line.startswith("SKIPPED")]
    assert all("no engine can run here: this process already has" in line for line in skips)


def test_the_header_says_nothing_if_faults_can_be_injected(light_suite, engine):
    assert _engine.explain_missing_engine() is None
    light_suite.run("def test_plain(): pass").stdout.no_fnmatch_line("dataloader-faults*")


SUITE = """
import pytest

@pytest.mark.gpu
@pytest.mark.dataloader_faults
def test_pinned(): pass

@pytest.mark.gpu
def test_of_another_suite(): pass

def test_plain(): pass

def test_battery(fault_check):
    fault_check(None)
"""
ACCELERATOR = """
import torch
from pytest_dataloader_faults._trial.accelerator import missing_accelerator
from pytest_dataloader_faults.plugin import _items

_items._DEVICE_NODES = ["null"]
missing_accelerator.cache_clear()
torch.accelerator.is_available = lambda: {}
"""
"""What the answer is good for is tested here, not the answer."""
NO_PIDFDS = """
import os
from pytest_dataloader_faults._engine import explain_missing_engine
from pytest_dataloader_faults.plugin import _items

_items._DEVICE_NODES = ["null"]

def refuse(_pid):
    raise PermissionError(1, "Operation not permitted")

explain_missing_engine.cache_clear()
os.pidfd_open = refuse
"""
REQUIRE = "--dataloader-faults-require-gpu"
OF_GPU = "gpu and dataloader_faults"
PIN = "not test_battery or pin-memory"
NONE = "torch * finds no accelerator"


@rows(
    ("conftest", "options", "outcomes", "line"),
    [
        # The marker selects the checks that need one. All are skipped for one reason.
        (
            ACCELERATOR.format(False),
            ["-k", PIN],
            {"passed": 2, "skipped": 2},
            f"SKIPPED ?2? * {NONE}*",
        ),
        (ACCELERATOR.format(False), ["-m", OF_GPU], {"skipped": 2}, f"SKIPPED ?2? * {NONE} here"),
        # A job that skips everything would be green.
        (ACCELERATOR.format(False), [REQUIRE, "-m", OF_GPU], {"errors": 2}, f"*{REQUIRE}: {NONE}*"),
        (ACCELERATOR.format(True), [REQUIRE, "-k", "not battery"], {"passed": 3}, "*3 passed*"),
        # To look for an accelerator takes an engine's means, too.
        (
            NO_PIDFDS,
            ["-k", "pin-memory"],
            {"skipped": 1},
            "SKIPPED * no engine can * pidfd_open(2) *",
        ),
    ],
)
def test_what_needs_an_accelerator(suite, conftest, options, outcomes, line):
    suite.pytester.makeconftest(conftest)
    result = suite.run(SUITE, "-rs", *options)
    deselected = len(CHECKS) - len(GROUPS["ranks"]) + 3 - sum(outcomes.values())
    result.assert_outcomes(**outcomes, deselected=deselected)
    result.stdout.fnmatch_lines([line])
