"""Inner test suites with Hypothesis, run by a pytest of their own."""

import pytest

from support.inner import PYTHONPATH, run_forked

PLUGINS = ("-p", "dataloader_faults", "-p", "hypothesispytest")


@pytest.fixture
def inner(pytester, monkeypatch, engine):
    """Run a test file in a fork of this process, with this plugin and Hypothesis' alone."""
    monkeypatch.setenv("PYTHONPATH", PYTHONPATH)
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.delenv("CI", raising=False)  # Hypothesis would take another profile.

    def run(source: str, *arguments: str) -> pytest.RunResult:
        pytester.makepyfile(test_inner=source)
        return run_forked(pytester.path, *PLUGINS, *arguments)

    return run
