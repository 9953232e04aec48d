"""The plugin as it is installed, switched off, and without plugins of pytest's own."""

import pytest

from support.suites import REPORT, results_of

pytestmark = pytest.mark.usefixtures("engine")

SUITE = """
import sys

def test_plain():
    assert not [name for name in sys.modules if name.startswith("pytest_dataloader_faults")]

def test_battery(fault_check):
    pass

def test_injected(read_errors):
    pass
"""


def test_nothing_of_it_is_there_if_it_is_switched_off(fresh_suite, monkeypatch):
    """Other tests run. It is found by its entry point, as where all installed plugins are."""
    monkeypatch.delenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD")
    fresh_suite.pytester.makepyfile(test_inner=SUITE)
    off = fresh_suite.pytester.runpytest_subprocess("-p", "no:dataloader_faults")
    off.assert_outcomes(passed=1, errors=2)
    off.stdout.fnmatch_lines(["E *fixture 'fault_check' not found"])
    off.stdout.fnmatch_lines(["E *fixture 'read_errors' not found"])


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
