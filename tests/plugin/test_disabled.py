"""The plugin as it is installed; and ``-p no:dataloader_faults``: as if it were not."""

import sys

import pytest

from support.waiting import allowed

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
