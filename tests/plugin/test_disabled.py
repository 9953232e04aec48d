"""``-p no:dataloader_faults``: as if the plugin were not installed."""

from __future__ import annotations

import pytest

OFF = ("-p", "no:dataloader_faults")

SUITE = """
import sys


def test_plain():
    assert not [name for name in sys.modules if name.startswith("pytest_dataloader_faults")]


def test_battery(fault_check):
    pass


def test_injected(eio_reads):
    pass
"""

MARKED = """
import pytest


@pytest.mark.dataloader_faults
def test_marked():
    pass
"""


@pytest.fixture(name="off")
def _off(suite, monkeypatch):
    """Run with every installed plugin but ours, which is found by its entry point otherwise."""
    monkeypatch.delenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD")

    def run(source: str, *arguments: str) -> pytest.RunResult:
        suite.pytester.makepyfile(test_inner=source)
        return suite.pytester.runpytest_subprocess(*OFF, *arguments, timeout=100)

    return run


def test_it_has_no_fixtures_and_no_header(off):
    """Other tests run, nothing of the package is imported, its fixtures are not there."""
    result = off(SUITE)
    result.assert_outcomes(passed=1, errors=2)
    result.stdout.fnmatch_lines(["E *fixture 'fault_check' not found"])
    result.stdout.fnmatch_lines(["E *fixture 'eio_reads' not found"])
    assert not [line for line in result.outlines if line.startswith("dataloader-faults")]


def test_it_has_no_options(off):
    """Its options are unknown then."""
    result = off("def test_plain(): pass", "--dataloader-faults-seed=1")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*unrecognized arguments: --dataloader-faults-seed=1*"])


@pytest.mark.slow
def test_it_has_no_marker(off):
    """Its marker is unknown then."""
    result = off(MARKED, "--strict-markers")
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*'dataloader_faults' not found in `markers`*"])
