"""Plugins of pytest's own can be left out, and their options are not there then."""

import json

import pytest

pytestmark = pytest.mark.usefixtures("engine")

PLUGINS = (
    "terminal",
    "capture logging",
    "skipping reports",
    "warnings cacheprovider junitxml tmpdir debugging",
)
"""None of those in one row is asked for anything by code that looks for another of them."""

SUITE = """
import pathlib
import tempfile

import pytest
from support.datasets import write_records
from support.plugin_datasets import ZerosOnError


@pytest.fixture
def files():
    with tempfile.TemporaryDirectory() as folder:
        yield write_records(pathlib.Path(folder) / "records")


@pytest.mark.dataloader_faults(only=["open-error", "workers-agree", "connect-error"])
def test_check(fault_check, files):
    fault_check(lambda: ZerosOnError(files))


def test_plain():
    pass
"""
STATUSES = {"open-error": "failed", "workers-agree": "passed", "connect-error": "not_applicable"}


@pytest.mark.parametrize("plugins", PLUGINS)
def test_some_are_left_out(suite, plugins):
    without = [argument for name in plugins.split() for argument in ("-p", f"no:{name}")]
    result = suite.run(SUITE, *without, "--dataloader-faults-report=r.json")
    assert "Error" not in result.stderr.str()
    assert "INTERNALERROR" not in result.stdout.str()
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    items = json.loads((suite.path / "r.json").read_text(encoding="utf-8"))["items"]
    assert {each["check"]: each["status"] for each in items} == STATUSES


def test_tests_can_be_listed_without_a_terminal(suite):
    result = suite.run("def test_plain(): pass", "-p", "no:terminal", "--collect-only")
    assert result.ret == pytest.ExitCode.OK
    assert "Error" not in result.stderr.str() + result.stdout.str()
