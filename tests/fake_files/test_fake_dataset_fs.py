"""Fake file systems that workers see: ours, and pyfakefs' own fixtures."""

import gc
import multiprocessing
import os
import re
import shutil
from pathlib import Path

import pytest
from torch.utils.data import ConcatDataset, DataLoader

import pytest_dataloader_faults as package
from pytest_dataloader_faults import inject
from pytest_dataloader_faults.exceptions import InvalidArgumentError
from pytest_dataloader_faults.fake_files import FakeDatasetFs
from pytest_dataloader_faults.faults import ReadError
from support.fake_datasets import (
    COUNT,
    FOLDER,
    SIZE,
    FakeRecords,
    by_look,
    by_number,
    write_fake_records,
)
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


def read_whole(path: Path) -> bytes:
    """By a method of the path object."""
    return path.read_bytes()


class KeepsPaths(FakeRecords):
    """Has path objects of pyfakefs, which were made before the workers."""

    def __init__(self) -> None:
        super().__init__(read=read_whole)
        self.paths = sorted(Path(FOLDER).glob("*.rec"))


@pytest.mark.parametrize("method", ["fork", slow("forkserver")])
def test_path_objects_access_what_workers_see(files, method):
    loader = DataLoader(KeepsPaths(), num_workers=1, multiprocessing_context=method)
    with inject(ReadError("*/03.rec")), pytest.raises(OSError, match="Errno 5"):
        list(loader)


def change_files(path: str) -> bytes:
    """Create, rename, link and remove files, also some that a real system has."""
    os.makedirs("/fake/new/deep")
    Path("/etc/passwd").write_text("fake")
    Path("/cache.bin").write_bytes(bytes(3))
    os.rename("/cache.bin", "/fake/new/cache.bin")
    os.symlink("/fake/new/cache.bin", "/fake/link")
    assert os.path.realpath("/fake/link") == os.readlink("/fake/link") == "/fake/new/cache.bin"
    shutil.copy2("/fake/link", "/fake/copy")
    os.chmod("/fake/copy", 0o400)
    os.chdir("/fake")
    assert os.path.abspath("copy") == "/fake/copy"
    assert os.stat("copy").st_size == len(Path("link").read_bytes()) == 3
    os.unlink("/fake/link")
    shutil.rmtree("/fake/new")
    return bytes(SIZE - len(os.listdir("."))) + bytes(map(len, sorted(os.listdir("/fake"))))


def test_changes_of_a_worker_stay_in_its_copy(files):
    files.create_dir("/etc")
    files.pause()
    users = Path("/etc/passwd").read_bytes()
    files.resume()
    loader = DataLoader(FakeRecords(read=change_files), num_workers=1, batch_size=None)
    assert next(iter(loader))[0].tolist()[-2:] == [len("copy"), len("records")]
    assert os.listdir("/fake") == ["records"]
    assert os.listdir("/etc") == []
    files.pause()
    assert Path("/etc/passwd").read_bytes() == users
    assert not os.path.lexists("/fake")
    assert not os.path.lexists("/cache.bin")


def write_to_mounted(path: str) -> bytes:
    """Write to a real file that pyfakefs shows."""
    with pytest.raises(PermissionError), open(path, "r+b") as file:
        file.write(b"changed")
    with pytest.raises(PermissionError):
        os.unlink(path)
    return by_number(path)


def test_a_worker_does_not_change_a_mounted_file(records, files):
    files.add_real_directory(records, target_path="/mounted")
    loader = DataLoader(FakeRecords("/mounted", read=write_to_mounted), num_workers=1)
    assert len(_bytes_of(loader)) == 16


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
    # One refuses fake files, and the other is excluded from what pyfakefs fakes.
    assert sorted(users) == ["factory.py", "workers.py"]


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
