"""Fake file systems that workers see: ours, and pyfakefs' own fixtures."""

import gc
import multiprocessing
import os
import re
import shutil
import subprocess
import tempfile
from functools import partial
from pathlib import Path

import pytest
from torch.utils.data import ConcatDataset, DataLoader

import pytest_dataloader_faults as package
from pytest_dataloader_faults import inject, run_trial
from pytest_dataloader_faults.exceptions import InvalidArgumentError
from pytest_dataloader_faults.fake_files import FakeDatasetFs
from pytest_dataloader_faults.faults import ReadError, TruncatedFile
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
    return path.read_bytes()


class KeepsPaths(FakeRecords):
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


def attack(real: str) -> list[str]:
    """Try to change the files in the folder *real* in many ways; those that raised nothing."""
    up = "../" * 12
    os.symlink(up + real, "/fake/relative")
    os.symlink(real, "/fake/absolute")
    os.symlink("/proc/self/root" + real, "/fake/by_root")
    opened = os.open(f"{real}/file", os.O_RDONLY)
    folder = os.open(real, os.O_RDONLY)
    ways = ["/fake/relative", "/fake/absolute", "/fake/by_root", real, "/mounted", "/fake/mounted"]
    ways += [f"/proc/self/root{real}", f"/proc/self/fd/{folder}", f"/fake/..{real}"]
    tries = {
        **{f"write {way}": partial(Path(way, "file").write_text, "changed") for way in ways},
        **{f"create {way}": partial(Path(way, "new").write_text, "new") for way in ways},
        **{f"unlink {way}": partial(os.unlink, f"{way}/file") for way in ways},
        **{f"rename {way}": partial(os.rename, f"{way}/file", f"{way}/other") for way in ways},
        **{f"truncate {way}": partial(os.truncate, f"{way}/file", 0) for way in ways},
        **{f"chmod {way}": partial(os.chmod, f"{way}/file", 0) for way in ways},
        "reopen": partial(Path(f"/proc/self/fd/{opened}").write_text, "changed"),
        "reopen by /dev": partial(Path(f"/dev/fd/{opened}").write_text, "changed"),
        "by dir_fd": partial(os.unlink, "file", dir_fd=folder),
        "by a program": partial(subprocess.run, ["sh", "-c", f"rm {real}/file"], check=True),
    }
    return [name for name, action in tries.items() if _succeeds(action)]


def _succeeds(action) -> bool:
    try:
        action()
    except (OSError, subprocess.CalledProcessError):
        return False
    return True


class Attacks(FakeRecords):
    def __init__(self, real: str) -> None:
        super().__init__()
        self.real = real

    def __getitem__(self, index):
        return attack(self.real)


def test_a_worker_changes_no_real_file(tmp_path, files):
    files.pause()
    (tmp_path / "file").write_text("content")
    before = os.stat(tmp_path / "file")
    files.resume()
    files.add_real_directory(tmp_path, target_path="/mounted")
    files.create_symlink("/fake/mounted", "/mounted")
    loader = DataLoader(Attacks(str(tmp_path)), num_workers=1, batch_size=None)
    succeeded = next(iter(loader))
    files.pause()
    assert os.listdir(tmp_path) == ["file"]
    assert (tmp_path / "file").read_text() == "content"
    after = os.stat(tmp_path / "file")
    assert (after.st_mode, after.st_mtime_ns) == (before.st_mode, before.st_mtime_ns)
    assert succeeded == []


def use_links_and_mounts(path: str) -> bytes:
    """What only the walk of a path through links, mounts and descriptors shows."""
    assert sorted(os.listdir("/")) == ["fake", "mounted", "tmp"]
    assert os.listdir("/mounted") == ["a.bin"]
    assert Path("/fake/link/a.bin").read_bytes() == Path("/mounted/a.bin").read_bytes() == b"real"
    os.chdir("/fake")
    assert Path("../mounted/a.bin").read_bytes() == b"real"
    assert Path("../../../fake/loop/../records").is_dir()
    subprocess.run(["touch", "/fake/touched"], check=True)  # noqa: S607
    subprocess.run(["cp", "/fake/touched", "/fake/copied"], check=True)  # noqa: S607
    os.mkfifo("/fake/pipe")
    with pytest.raises(OSError, match="No such device"):
        os.open("/fake/pipe", os.O_RDONLY)
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.stat("a", dir_fd=999)
    assert os.path.exists("/fake/copied")
    return by_number(path)


def test_links_lead_where_they_do_in_pyfakefs(tmp_path, files):
    files.pause()
    (tmp_path / "a.bin").write_bytes(b"real")
    files.resume()
    files.add_real_directory(tmp_path, target_path="/mounted")
    assert os.listdir("/mounted") == ["a.bin"]
    files.create_symlink("/fake/link", "/mounted")
    files.create_symlink("/fake/loop", "../fake/records")
    loader = DataLoader(FakeRecords(read=use_links_and_mounts), num_workers=1, batch_size=None)
    assert next(iter(loader))[0].tolist() == RIGHT[0]


def test_a_trial_removes_its_copies(tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    with FakeDatasetFs() as files:
        write_fake_records(files)
        run_trial(FakeRecords, ReadError("*/03.rec"))
        run_trial(FakeRecords, TruncatedFile("*/03.rec", keep=1))
    assert [each for each in os.listdir(tmp_path) if each.startswith("dlf-")] == []


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
    assert sorted(users) == ["factory.py", "fake_files.py"]


_PATHLIB = re.compile(r"^ *(import pathlib|from pathlib import (?!PurePath$))", re.MULTILINE)


@pytest.mark.parametrize("scope", [FakeDatasetFs(), inject(ReadError("*"))], ids=["fake", "inject"])
def test_it_comes_before_a_patcher_of_one_s_own(scope):
    from pyfakefs.fake_filesystem_unittest import Patcher

    with Patcher(), pytest.raises(InvalidArgumentError, match="before the Patcher"), scope:
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
