"""pyfakefs' own fixtures, with loaders that have workers, in a suite that has the plugin."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parents[1]
PLUGINS = ("-p", "dataloader_faults", "-p", "pyfakefs.pytest_plugin")

SUITE = """
import os
import pytest
from torch.utils.data import DataLoader
from support.fake_datasets import COUNT, FakeRecords, write_fake_records
from pyfakefs.fake_filesystem_unittest import TestCase


@pytest.mark.parametrize("method", {methods})
@pytest.mark.parametrize("fixture", ["fs", "fs_class"])
def test_loader(request, fixture, method):
    files = request.getfixturevalue(fixture)
    if not files.exists("/fake"):
        write_fake_records(files)
    loader = DataLoader(FakeRecords(), num_workers=2, multiprocessing_context=method)
    assert len(list(loader)) == COUNT
    print("printed by", method)


class TestOfPyfakefs(TestCase):
    def setUp(self):
        self.setUpPyfakefs()

    def test_loader(self):
        write_fake_records(self.fs)
        assert len(list(DataLoader(FakeRecords(), num_workers=1))) == COUNT


def test_captures_are_whole(capfd):
    os.write(1, b"by number")
    assert capfd.readouterr().out == "by number"


def test_tmp_path_is_real(tmp_path, pytestconfig):
    (tmp_path / "file").write_text("text")
    assert os.listdir(tmp_path) == ["file"]
    if hasattr(pytestconfig, "cache"):
        pytestconfig.cache.set("some/thing", 1)
        assert pytestconfig.cache.get("some/thing", None) == 1
"""


@pytest.fixture(name="run")
def _run(pytester, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(TESTS))
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.delenv("PYTEST_ADDOPTS", raising=False)

    def run(methods: list[str], *arguments: str) -> pytest.RunResult:
        pytester.makepyfile(test_inner=SUITE.format(methods=methods))
        return pytester.runpytest_subprocess(*PLUGINS, "-W", "error", *arguments, timeout=110)

    return run


def _check(result: pytest.RunResult, passed: int) -> None:
    result.assert_outcomes(passed=passed)
    everything = result.stdout.str() + result.stderr.str()
    assert result.ret == 0
    assert "INTERNALERROR" not in everything
    assert "Traceback" not in everything


def test_forked_workers(run):
    """The fixtures, the TestCase, and what pytest itself needs afterwards."""
    _check(run(["fork"]), 5)


def test_spread_over_processes(run):
    """With pytest-xdist."""
    pytest.importorskip("xdist")
    _check(run(["fork"], "-p", "xdist", "-n", "2"), 5)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_workers_that_begin_anew(run, method):
    """They get the files, too."""
    _check(run([method]), 5)


def test_the_cause(tmp_path):
    """Without the plugin: numbers of the fake table close real descriptors of the same numbers."""
    script = tmp_path / "minimal.py"
    script.write_text(REPRODUCTION, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, script], capture_output=True, text=True, check=False, timeout=60
    )
    assert "is closed: [Errno 9] Bad file descriptor" in done.stdout


REPRODUCTION = """
import multiprocessing.connection
import os

from pyfakefs.fake_filesystem_unittest import Patcher

mine = os.open("/dev/null", os.O_RDONLY)
with Patcher():
    reader, writer = multiprocessing.connection.Pipe(duplex=False)
    reader.close()
    writer.close()
try:
    os.fstat(mine)
except OSError as error:
    print(mine, "is closed:", error)
"""
