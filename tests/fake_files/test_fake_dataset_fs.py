"""Fake file systems that workers see: ours, and pyfakefs' own fixtures."""

import gc
import multiprocessing
import os
import re
from pathlib import Path

import pytest
from torch.utils.data import ConcatDataset, DataLoader

import pytest_dataloader_faults as package
from pytest_dataloader_faults import inject, run_trial
from pytest_dataloader_faults.exceptions import InvalidArgumentError
from pytest_dataloader_faults.fake_files import FakeDatasetFs
from pytest_dataloader_faults.faults import ReadError
from support.fake_datasets import COUNT, SIZE, FakeRecords, by_look, by_number, write_fake_records
from support.inner import PYTHONPATH, run_forked
from support.rows import slow
from support.waiting import allowed


def _bytes_of(loader) -> list[list[int]]:
    return [row for data, _ in loader for row in data.tolist()]


RIGHT = [list(range(number, number + SIZE)) for number in range(COUNT)]


@pytest.mark.parametrize("method", ["fork", slow("forkserver")])
def test_workers_see_the_files(files, method):
    options = {"multiprocessing_context": method, "persistent_workers": True}
    loader = DataLoader(FakeRecords(), batch_size=2, num_workers=2, **options)
    assert _bytes_of(loader) == RIGHT
    assert _bytes_of(loader) == RIGHT


def test_a_loader_is_no_garbage_for_the_collector(files):
    """Or its workers would be told to end late, and each would cost five seconds."""
    loader = DataLoader(FakeRecords(), num_workers=1, persistent_workers=True)
    (worker,) = _workers_after_an_epoch(loader)
    gc.disable()
    try:
        del loader
        assert not worker.is_alive()
    finally:
        gc.enable()


def _workers_after_an_epoch(loader):
    assert len(list(loader)) == COUNT
    return loader._iterator._workers


@pytest.mark.parametrize("method", ["forkserver", slow("fork")])
def test_the_copy_is_a_full_one(files, method):
    files.create_file("/fake/secret", contents="x")
    files.chmod("/fake/secret", 0o640)
    files.create_symlink("/fake/link", "/fake/secret")
    files.create_link("/fake/secret", "/fake/twin")
    files.cwd = "/fake"
    loader = DataLoader(FakeRecords(read=by_look), num_workers=1, multiprocessing_context=method)
    with inject(ReadError("*/secret")):
        content = bytes(_bytes_of(loader)[0]).decode().strip()
    assert content == "0o640;/fake;/fake/secret;2;Input/output error"


def test_real_files_can_be_mounted_beside_them(records, files):
    files.add_real_directory(records)
    dataset = ConcatDataset([FakeRecords(), FakeRecords(str(records))])
    assert len(_bytes_of(DataLoader(dataset, num_workers=2))) == COUNT + 16
    with open(records / "00.rec", "wb") as file:
        file.write(b"in memory")
    files.pause()
    assert (records / "00.rec").read_bytes() == bytes(range(SIZE))


def test_pyfakefs_own_faults_are_there(files):
    files.set_disk_usage(files.get_disk_usage().used + 10)

    def spill(path: str) -> bytes:
        with open("/fake/more", "wb") as file:
            file.write(bytes(100))
        return bytes(SIZE)

    outcome = run_trial(lambda: FakeRecords(read=spill))
    assert "No space left" in outcome.exception.text


def test_permissions_hold_in_workers():
    from pyfakefs.fake_filesystem import set_uid

    with FakeDatasetFs() as files:
        write_fake_records(files)
        files.chmod("/fake/records/03.rec", 0)
        set_uid(1000)
        iterator = iter(DataLoader(FakeRecords(read=by_number), num_workers=1))
        with pytest.raises(PermissionError) as caught:
            list(iterator)
        iterator._shutdown_workers()  # The garbage collector would take 5 s for it.
    assert "03.rec" in str(caught.value)


@pytest.mark.parametrize("order", [("fs", "fake_dataset_fs"), ("fake_dataset_fs", "fs")])
def test_together_with_pyfakefs_own_fixture(request, order):
    outer, second = map(request.getfixturevalue, order)
    assert outer is second
    write_fake_records(outer)
    assert _bytes_of(DataLoader(FakeRecords(), num_workers=1)) == RIGHT


def test_nothing_of_it_stays(tmp_path):
    opened, spawn = os.open, multiprocessing.get_context("spawn")
    with FakeDatasetFs() as files:
        write_fake_records(files)
        assert not Path(tmp_path).exists()
        assert _bytes_of(DataLoader(FakeRecords(), num_workers=1)) == RIGHT
    assert os.open is opened
    assert "open" not in vars(multiprocessing.util)
    assert DataLoader._get_iterator.__module__ == "torch.utils.data.dataloader"
    (tmp_path / "real").write_text("real")
    assert spawn.Queue().empty()


def test_no_module_of_ours_takes_its_files_from_pathlib():
    """Pyfakefs fakes pathlib for every caller, since all modules share it."""
    root = Path(package.__file__).parent
    users = [path.name for path in root.rglob("*.py") if _PATHLIB.search(path.read_text("utf-8"))]
    assert users == ["factory.py"]  # It refuses fake files.


_PATHLIB = re.compile(r"^ *(import pathlib|from pathlib import (?!PurePath$))", re.MULTILINE)


def test_it_comes_before_a_patcher_of_one_s_own():
    from pyfakefs.fake_filesystem_unittest import Patcher

    with (
        Patcher(),
        pytest.raises(InvalidArgumentError, match="before the Patcher"),
        FakeDatasetFs(),
    ):
        pass


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


@pytest.fixture(name="environment")
def _environment(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", PYTHONPATH)
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.delenv("PYTEST_ADDOPTS", raising=False)


def _check(result: pytest.RunResult, passed: int) -> None:
    result.assert_outcomes(passed=passed)
    everything = result.stdout.str() + result.stderr.str()
    assert result.ret == 0
    assert "INTERNALERROR" not in everything
    assert "Traceback" not in everything


def test_forked_workers(pytester, environment):
    pytester.makepyfile(test_inner=SUITE.format(methods=["fork"]))
    _check(run_forked(pytester.path, *PLUGINS, "-W", "error"), 5)


@pytest.mark.slow
def test_workers_that_begin_anew(pytester, environment):
    pytester.makepyfile(test_inner=SUITE.format(methods=["forkserver"]))
    arguments = (*PLUGINS, "-W", "error")
    _check(pytester.runpytest_subprocess(*arguments, timeout=allowed(110)), 5)
