"""pyfakefs' own fixtures, with loaders that have workers, in a suite that has the plugin."""

from __future__ import annotations

import pytest

from support.inner import PYTHONPATH

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


MINIMAL = """
import multiprocessing.connection
import multiprocessing.popen_spawn_posix
import os
import pytest

MINE = os.open(os.devnull, os.O_RDONLY)


def test_pipes(fs):
    pipes = [multiprocessing.Pipe(duplex=False) for _ in range(MINE)]
    for end in [end for pipe in pipes for end in pipe]:
        if end.fileno() == MINE:
            end.close()


def test_a_descriptor_is_still_open():
    os.fstat(MINE)


def test_process(fs):
    process = multiprocessing.get_context("spawn").Process(target=print)
    process.start()
    process.join()
    assert process.exitcode == 0
"""
"""The two crashes: a stranger's descriptor is closed, and no process can be started."""


@pytest.fixture(name="run_pytest")
def _run_pytest(pytester, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", PYTHONPATH)
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.delenv("PYTEST_ADDOPTS", raising=False)

    def run(suite: str, *arguments: str) -> pytest.RunResult:
        pytester.makepyfile(test_inner=suite)
        return pytester.runpytest_subprocess(*arguments, timeout=110)

    return run


@pytest.fixture(name="run")
def _run(run_pytest):
    def run(methods: list[str], *arguments: str) -> pytest.RunResult:
        return run_pytest(SUITE.format(methods=methods), *PLUGINS, "-W", "error", *arguments)

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


@pytest.mark.slow
def test_spread_over_processes(run):
    """With pytest-xdist."""
    pytest.importorskip("xdist")
    _check(run(["fork"], "-p", "xdist", "-n", "2"), 5)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_workers_that_begin_anew(run, method):
    """They get the files, too."""
    _check(run([method]), 5)


@pytest.mark.slow
def test_the_crashes(run_pytest):
    """The session of pytest does not come to its end without the plugin, and does with it."""
    _check(run_pytest(MINIMAL, *PLUGINS), 3)
    without = run_pytest(MINIMAL, *PLUGINS[2:])
    assert without.ret
    assert " passed in" not in without.stdout.str()  # Pytest has lost its own files.
