"""Inner test suites, run by a pytest of their own with the plugin active by its entry point.

Other installed plugins are left out, which saves each inner run a second.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

PLUGIN = ("-p", "dataloader_faults")
"""Load it by the name of its entry point."""
TESTS = Path(__file__).resolve().parents[1]

CONFTEST = """
import pytest


@pytest.fixture
def records(tmp_path):
    from support.datasets import write_records  # Here, so that suites without it need no torch.

    return write_records(tmp_path / "records")
"""

UNDER_A_LISTENER = """
import os
import sys

from pytest_dataloader_faults._engine import _linux
from pytest_dataloader_faults._engine._bpf import program

architecture = _linux.ARCHITECTURES[_linux.MACHINE]
listener = _linux.filter_this_process(program({}, architecture, base=1 << 20), os.getpid())
os.set_inheritable(listener, True)  # The kernel counts a listener for as long as it is open.
os.execv(sys.executable, [sys.executable, "-m", "pytest", *sys.argv[1:]])
"""


class Suite:
    """One inner suite: a conftest.py with the fixture ``records``, and a test file."""

    def __init__(self, pytester: pytest.Pytester) -> None:
        self.pytester = pytester
        self.path = pytester.path
        pytester.makeconftest(CONFTEST)

    def run(self, source: str, *arguments: str) -> pytest.RunResult:
        """Run *source* as test_inner.py."""
        self.pytester.makepyfile(test_inner=source)
        return self.again(*arguments)

    def again(self, *arguments: str) -> pytest.RunResult:
        """Run what is there."""
        return self.pytester.runpytest_subprocess(*PLUGIN, *arguments, timeout=100)


@pytest.fixture(name="suite")
def _suite(pytester, monkeypatch) -> Suite:
    """A place for an inner suite, which finds tests/support."""
    monkeypatch.setenv("PYTHONPATH", str(TESTS))
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.delenv("PYTEST_ADDOPTS", raising=False)
    return Suite(pytester)


@pytest.fixture
def run_refused(suite, engine) -> Callable[..., pytest.RunResult]:
    """Like ``Suite.run``, in a process that has a listener: the kernel refuses another one."""
    script = suite.pytester.makepyfile(under_a_listener=UNDER_A_LISTENER)

    def run(source: str, *arguments: str) -> pytest.RunResult:
        suite.pytester.makepyfile(test_inner=source)
        return suite.pytester.run(sys.executable, script, *PLUGIN, *arguments, timeout=100)

    return run
