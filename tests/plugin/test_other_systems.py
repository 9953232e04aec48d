"""On macOS and Windows nothing can be shown: the plugin says so, skips, and disturbs no test."""

import os
import subprocess
import sys

from support.inner import PYTHONPATH

WHY = "it requires Linux, and this is {}. Run these tests on Linux (in CI, in a container or in a"
IMPORTED = """
from support.other_systems import play; play({!r})
import pytest_dataloader_faults
from pytest_dataloader_faults import Contract, exceptions, faults, inject, Outcome, Verdict
from pytest_dataloader_faults import Finding, NotApplicable, Scenario, check, plugin, strategies

faults.ReadError("*.jpg", nth=2), Contract(may_substitute=True)
for name in ("run_trial", "check_dataset", "explore", "search", "fake_files"):
    try:
        exec("from pytest_dataloader_faults import " + name)
    except exceptions.EngineUnavailableError as error:
        print(name, error)
try:
    with inject(faults.ReadError()):
        print("armed")
except exceptions.EngineUnavailableError as error:
    print("inject", error)
"""
OTHERS = """
import unittest
import pytest
from pyfakefs.fake_filesystem_unittest import TestCase
from pytest_dataloader_faults import Contract, faults

def test_battery(fault_check):
    fault_check(list)

@pytest.mark.gpu
def test_on_a_device(fault_check):
    fault_check(list)

def test_injected(read_errors):
    read_errors("*.rec")

def test_fake_files_of_ours(fake_dataset_fs):
    pytest.fail("not reached")

def test_of_a_function():
    from pytest_dataloader_faults import run_trial

def test_in_my_own_loop():
    from pytest_dataloader_faults import inject

    with inject(faults.ReadError()):
        pytest.fail("not reached")

class TestInUnittest(unittest.TestCase):
    def test_of_a_function(self):
        from pytest_dataloader_faults import check_dataset

def test_plain(tmp_path):
    assert faults.ReadError("*.rec").path == "*.rec"

def test_fake_files(fs):
    fs.create_file("/data/0.rec")
    with open("/data/0.rec") as file:
        assert file.read() == ""

class TestFakeFiles(TestCase):
    def test_fake_files(self):
        self.setUpPyfakefs()
        self.fs.create_file("/data/0.rec")
"""
CONFTEST = """
from pytest_dataloader_faults import Scenario, check
from pytest_dataloader_faults.steps import run_epochs

@check("two-passes", "is read twice")
def two_passes(workload):
    yield Scenario(processes=run_epochs(2))

def pytest_dataloader_faults_checks():
    return [two_passes]
"""
MODULE = """
from pytest_dataloader_faults.search import replay

def test_replay():
    replay(list)
"""


def _run(script, folder):
    process = subprocess.run(
        [sys.executable, "-c", script],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": PYTHONPATH, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert process.stderr == ""
    return process


def test_imports_work_and_use_is_refused(tmp_path):
    output = _run(IMPORTED.format("win32"), tmp_path)

    lines = output.stdout.splitlines()
    assert [line.partition(" ")[0] for line in lines] == [
        *("run_trial", "check_dataset", "explore", "search", "fake_files", "inject"),
    ]
    assert all(f"no engine can run here: {WHY.format('win32')}" in line for line in lines)


def test_pytest_skips_what_needs_linux_and_runs_the_rest(tmp_path):
    """The header and each skip say why; a module that imports what cannot be is skipped whole."""
    (tmp_path / "conftest.py").write_text(CONFTEST, encoding="utf-8")
    (tmp_path / "test_module.py").write_text(MODULE, encoding="utf-8")
    (tmp_path / "test_others.py").write_text(OTHERS, encoding="utf-8")
    plugins = ("no:cacheprovider", "dataloader_faults", "pyfakefs.pytest_plugin")
    arguments = ["-rs", *(f"-p{name}" for name in plugins)]
    play = "from support.other_systems import play; play('darwin'); import pytest;"
    process = _run(f"{play} raise SystemExit(pytest.main({arguments!r}))", tmp_path)

    assert process.returncode == 0, process.stdout
    assert (
        f"no engine available, so tests that need one are skipped: {WHY.format('darwin')}"
        in process.stdout
    )
    assert "3 passed, 8 skipped" in process.stdout
    skipped = [line for line in process.stdout.splitlines() if line.startswith("SKIPPED")]
    assert all(WHY.format("darwin") in line for line in skipped)
