"""What a run imports, what it says that the machine lacks, and what it does on other systems."""

import json
import os
import subprocess
import sys

import pytest

from pytest_dataloader_faults import _engine
from pytest_dataloader_faults.battery.checks import CHECKS, GROUPS
from support.inner import PYTHONPATH
from support.rows import rows

WHY = "it requires Linux, and this is {}. Run these tests on Linux (in CI, in a container or in a"
OTHERS = """
import unittest
import pytest
from pyfakefs.fake_filesystem_unittest import TestCase
from pytest_dataloader_faults import Contract, Finding, NotApplicable, Outcome, Verdict
from pytest_dataloader_faults import exceptions, faults, strategies

def test_battery(fault_check):
    fault_check(list)

@pytest.mark.gpu
def test_on_a_device(fault_check):
    fault_check(list)

def test_injected(read_errors):
    read_errors("*.rec")

def test_fake_files_of_ours(fake_dataset_fs):
    pytest.fail("not reached")

@pytest.mark.parametrize("name", ["run_trial", "explore", "search", "fake_files"])
def test_of_a_name(name):
    exec("from pytest_dataloader_faults import " + name)

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
    assert "3 passed, 11 skipped" in process.stdout
    skipped = [line for line in process.stdout.splitlines() if line.startswith("SKIPPED")]
    assert all(WHY.format("darwin") in line for line in skipped)


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
from pytest_dataloader_faults._trial.resources import missing_accelerator
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


NAME = "pytest_dataloader_faults"
HEAVY = {"torch", "hypothesis", "pyfakefs", "psutil", "numpy", "jinja2"}
NOT_IN_PYTEST = {"ctypes", "multiprocessing", "pytest_dataloader_faults.battery"}
AT_START = """
    _arguments _settings exceptions plugin plugin._failures plugin._items plugin._options
    plugin._report
""".split()
"""All that a run imports of this package where no test and no header needs more."""
FOR_THE_HEADER = [
    "_engine",
    "_engine.system",
    *(f"_engine.system.{name}" for name in ("proc", "processes", "temporary")),
]
"""The process that looks at the machine imports more, and is thrown away."""


AT_THE_END = """
import json
import sys

def pytest_unconfigure():
    print("\\n@" + json.dumps(sorted(sys.modules)), file=sys.__stdout__)
"""


def _imported(result) -> set[str]:
    (line,) = [line for line in result.outlines if line.startswith("@")]
    return set(json.loads(line[1:]))


@pytest.mark.parametrize("arguments", [("-v",), ("-q",)])
def test_a_run_of_plain_tests_is_light(fresh_suite, arguments):
    fresh_suite.pytester.makeconftest(AT_THE_END)
    result = fresh_suite.run("def test_plain(tmp_path, capsys): pass", *arguments)
    assert result.ret == 0
    imported = _imported(result)
    modules = {name.removeprefix(f"{NAME}.") for name in imported if name.startswith(NAME)}
    has_header = arguments == ("-v",)
    assert modules == {NAME, *AT_START, *(FOR_THE_HEADER if has_header else ())}
    assert not imported & (HEAVY | NOT_IN_PYTEST)


CHECK = """
import sys

import pytest

@pytest.fixture(autouse=True, scope="session")
def collected():
    return set(sys.modules)

@pytest.mark.dataloader_faults(only="workers-agree")
def test_x(fault_check, tmp_path, collected):
    assert "pytest_dataloader_faults.battery.checking" in collected
    assert not collected & {HEAVY}
    from support.datasets import Records

    (tmp_path / "0.rec").write_bytes(bytes(64))
    fault_check(lambda: Records(tmp_path))
"""


def test_a_check_imports_no_library_that_it_does_not_need(fresh_suite, engine):
    """Collecting it imports the battery, and still not torch."""
    fresh_suite.pytester.makeconftest(AT_THE_END)
    source = CHECK.replace("{HEAVY}", repr(HEAVY))
    result = fresh_suite.run(source, "--dataloader-faults-report=r.json")
    assert result.ret == 0
    assert not _imported(result) & {"hypothesis", "pyfakefs", "jinja2"}
