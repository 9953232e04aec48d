"""Shared by the tests of strategies: a machine that can run trials, and inner suites."""

from __future__ import annotations

from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parents[1]
PLUGINS = ("-p", "dataloader_faults", "-p", "hypothesispytest")


@pytest.fixture
def inner(pytester, monkeypatch, engine):
    """Run a test file in a pytest of its own, with this plugin and Hypothesis' alone."""
    monkeypatch.setenv("PYTHONPATH", str(TESTS))
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.delenv("CI", raising=False)  # Hypothesis would take another profile.

    def run(source: str, *arguments: str) -> pytest.RunResult:
        pytester.makepyfile(test_inner=source)
        return pytester.runpytest_subprocess(*PLUGINS, *arguments, timeout=200)

    return run
