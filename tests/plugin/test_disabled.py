"""The plugin as it is installed, switched off, and without plugins of pytest's own."""

import sys

import pytest

from support.suites import REPORT, results_of
from support.waiting import allowed

pytestmark = pytest.mark.usefixtures("engine")

OFF = ("-p", "no:dataloader_faults")

SUITE = """
import sys

def test_plain():
    assert not [name for name in sys.modules if name.startswith("pytest_dataloader_faults")]

def test_battery(fault_check):
    pass

def test_injected(read_errors):
    pass
"""

COUNTING = """
import importlib.metadata
import sys

count, distributions = 0, importlib.metadata.distributions

def counted(**given):
    global count
    count += 1
    return distributions(**given)

importlib.metadata.distributions = counted
import pytest

status = pytest.main(sys.argv[1:])
print("\\nwalks:", count)
sys.exit(status)
"""


@pytest.fixture(name="run")
def _run(suite, monkeypatch):
    """Run with every installed plugin; ours is found by its entry point."""
    monkeypatch.delenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD")

    def run(source: str, *arguments: str) -> pytest.RunResult:
        suite.pytester.makepyfile(test_inner=source, counting=COUNTING)
        return suite.pytester.run(sys.executable, "counting.py", *arguments, timeout=allowed(100))

    return run


def _lines(result, start):
    return [line for line in result.outlines if line.startswith(start)]


def test_it_has_no_fixtures(run, engine):
    """Other tests run, nothing of the package is imported, its fixtures are not there.

    Where it is on, nothing has to be switched on, pytest loads it once, and looks through all
    installed packages no more often: 5 ms for 100 of them.
    """
    off = run(SUITE, *OFF)
    off.assert_outcomes(passed=1, errors=2)
    off.stdout.fnmatch_lines(["E *fixture 'fault_check' not found"])
    off.stdout.fnmatch_lines(["E *fixture 'read_errors' not found"])
    on = run("def test_plain(): pass")
    assert _lines(on, "walks: ") == _lines(off, "walks: ") != ["walks: 0"]


def test_it_has_no_options(light_suite):
    result = light_suite.pytester.runpytest_inprocess(*OFF, "--dataloader-faults-seed=1")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*unrecognized arguments: --dataloader-faults-seed=1*"])


PLUGINS = (
    "terminal",
    "capture logging skipping reports",
    "warnings cacheprovider junitxml tmpdir debugging",
)
"""None of those in one row is asked for anything by code that looks for another of them."""

WITHOUT = """
import pytest

@pytest.mark.dataloader_faults(only=["open-error", "workers-agree"])
def test_check(fault_check):
    fault_check([1, 2])

def test_plain():
    pass
"""


@pytest.mark.parametrize("plugins", PLUGINS)
def test_some_are_left_out(suite, plugins):
    without = [argument for name in plugins.split() for argument in ("-p", f"no:{name}")]
    result = suite.run(WITHOUT, *without, REPORT)
    assert "Error" not in result.stderr.str()
    assert "INTERNALERROR" not in result.stdout.str()
    assert result.ret == pytest.ExitCode.OK
    assert results_of(suite.path) == {
        "check": {"open-error": "not_applicable", "workers-agree": "passed survived"}
    }


def test_tests_can_be_listed_without_a_terminal(light_suite):
    result = light_suite.run("def test_plain(): pass", "-p", "no:terminal", "--collect-only")
    assert result.ret == pytest.ExitCode.OK
    assert "Error" not in result.stderr.str() + result.stdout.str()
