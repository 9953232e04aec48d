"""Inner test suites, run by a pytest of their own with the plugin active by its entry point.

No other installed plugin is loaded, which saves each inner run a second. Inner suites run in a fork
of this process, those that start no worker in this process itself.
"""

import functools
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from support.inner import PYTHONPATH, run_forked
from support.waiting import allowed

PLUGIN = ("-p", "dataloader_faults")
"""Load it by the name of its entry point."""

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

from pytest_dataloader_faults._engine.kernel import linux
from pytest_dataloader_faults._engine.kernel.calls import program

architecture = linux.ARCHITECTURES[linux.MACHINE]
listener = linux.filter_this_process(program({}, architecture), os.getpid())
os.set_inheritable(listener, True)  # The kernel counts a listener for as long as it is open.
os.execv(sys.executable, [sys.executable, "-m", "pytest", *sys.argv[1:]])
"""


class Suite:
    """One inner suite: a conftest.py with the fixture ``records``, and a test file."""

    def __init__(self, pytester: pytest.Pytester, pytest_run: Callable[..., pytest.RunResult]):
        self.pytester = pytester
        self.path = pytester.path
        self._pytest_run = pytest_run
        pytester.makeconftest(CONFTEST)

    def run(self, source: str, *arguments: str) -> pytest.RunResult:
        """Run *source* as test_inner.py."""
        self.pytester.makepyfile(test_inner=source)
        return self.again(*arguments)

    def add_to_conftest(self, source: str) -> None:
        """Append *source* to conftest.py."""
        with (self.path / "conftest.py").open("a", encoding="utf-8") as conftest:
            conftest.write(source)

    def again(self, *arguments: str) -> pytest.RunResult:
        """Run what is there."""
        return self._pytest_run(*PLUGIN, *arguments)


def _set_inner_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Inner suites find tests/support, and load no other plugin."""
    monkeypatch.setenv("PYTHONPATH", PYTHONPATH)
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.delenv("PYTEST_ADDOPTS", raising=False)


@pytest.fixture(name="_inner_environment")
def _inner_environment_(monkeypatch) -> None:
    _set_inner_environment(monkeypatch)


@pytest.fixture(scope="module")
def run_suite(tmp_path_factory) -> Callable[..., tuple[Path, pytest.RunResult]]:
    """Run an inner suite once for all tests of a module: its folder, and what came of it.

    The summary is as on a terminal: in CI, pytest gives each text in full again.
    """

    def run(source: str, *arguments: str, conftest: str = "") -> tuple[Path, pytest.RunResult]:
        folder = tmp_path_factory.mktemp("suite")
        (folder / "conftest.py").write_text(CONFTEST + conftest, encoding="utf-8")
        (folder / "test_inner.py").write_text(source, encoding="utf-8")
        with pytest.MonkeyPatch.context() as monkeypatch:
            _set_inner_environment(monkeypatch)
            for name in ("CI", "BUILD_NUMBER"):
                monkeypatch.delenv(name, raising=False)
            return folder, run_forked(folder, *PLUGIN, *arguments)

    return run


@pytest.fixture(name="suite")
def _suite(pytester, _inner_environment) -> Suite:
    """A place for an inner suite, which runs in a fork of this process."""
    return Suite(pytester, functools.partial(run_forked, pytester.path))


@pytest.fixture
def fresh_suite(pytester, _inner_environment) -> Suite:
    """A place for an inner suite, which runs in a new interpreter."""
    return Suite(pytester, functools.partial(pytester.runpytest_subprocess, timeout=allowed(100)))


@pytest.fixture
def light_suite(pytester, _inner_environment) -> Suite:
    """A place for an inner suite that starts no worker. It runs in this process."""
    return Suite(pytester, pytester.runpytest_inprocess)


@pytest.fixture
def run_refused(suite, engine) -> Callable[..., pytest.RunResult]:
    """Like ``Suite.run``, in a process that has a listener: the kernel refuses another one."""
    script = suite.pytester.makepyfile(under_a_listener=UNDER_A_LISTENER)

    def run(source: str, *arguments: str) -> pytest.RunResult:
        suite.pytester.makepyfile(test_inner=source)
        return suite.pytester.run(sys.executable, script, *PLUGIN, *arguments, timeout=allowed(100))

    return run
