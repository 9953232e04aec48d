"""Plugins of pytest's own can be left out, and their options are not there then."""

import pytest

from support.suites import REPORT, results_of

pytestmark = pytest.mark.usefixtures("engine")

PLUGINS = (
    "terminal",
    "capture logging skipping reports",
    "warnings cacheprovider junitxml tmpdir debugging",
)
"""None of those in one row is asked for anything by code that looks for another of them."""

SUITE = """
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
    result = suite.run(SUITE, *without, REPORT)
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
