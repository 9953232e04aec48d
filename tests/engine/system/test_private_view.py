"""A private copy of a folder: what a process does there, no other one sees."""

from __future__ import annotations

import fcntl
import mmap
import os
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path

import pytest

from pytest_dataloader_faults._engine.processes import fork
from pytest_dataloader_faults._engine.system.birth import birth_time
from pytest_dataloader_faults._engine.system.prctl import Prctl, prctl
from pytest_dataloader_faults._engine.system.private_view import PrivateView, enter
from support import private_views
from support.children import in_a_process

NOBODY = 65534

pytestmark = private_views.needs_view


@pytest.fixture(name="data", params=["data", "a, b: c\\d é"])
def _data(tmp_path, request):
    folder = tmp_path / request.param
    (folder / "deep").mkdir(parents=True)
    for name in ("one", "two", "deep/three"):
        (folder / name).write_text(name)
    (tmp_path / "scratch").mkdir()
    return folder


def _in_view(data, body, removed=(), user=None):
    """The traceback of *body* in a process that has a private copy of *data*; "" if none."""
    if user is not None:
        for path in (data, *data.rglob("*"), data.parent / "scratch"):
            os.chown(path, user, user)
        for folder in data.parents[: -len(Path(tempfile.gettempdir()).parts)]:
            folder.chmod(0o755)

    def run():
        if user is not None:
            os.setgroups([])
            os.setgid(user)
            os.setuid(user)
            prctl(Prctl.SET_DUMPABLE, 1)  # As it is for a user who logs in.
        view = PrivateView((str(data),), tuple(str(data / name) for name in removed))
        enter(view, str(data.parent / "scratch"))
        body()

    before = private_views.contents(data)
    found = in_a_process(run)
    assert private_views.contents(data) == before
    return found


def _writes(data):
    (data / "one").write_text("changed")
    (data / "new").write_text("new")
    (data / "two").rename(data / "deep" / "two")
    (data / "deep" / "three").unlink()
    with open(data / "mapped", "wb+") as file:
        file.truncate(4096)
        mmap.mmap(file.fileno(), 4096)[:4] = b"abcd"
    with open(data / "one", "r+b") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
    assert sorted(os.listdir(data)) == ["deep", "mapped", "new", "one"]
    assert os.listdir(data / "deep") == ["two"]
    assert (data / "mapped").read_bytes()[:4] == b"abcd"


@pytest.mark.parametrize("user", [None, NOBODY])
def test_what_is_written_stays_in_the_view(data, user):
    """Written, renamed, removed, locked and mapped: the folder itself is as it was."""
    if user and os.geteuid():
        pytest.skip("only root can become another user")
    assert _in_view(data, partial(_writes, data), user=user) == ""


def test_a_view_begins_without_what_was_removed(data):
    """A file, and a folder with what is in it; a name that is not there does no harm."""

    def body():
        assert os.listdir(data) == ["two"]
        (data / "deep").mkdir()
        assert os.listdir(data / "deep") == []

    assert _in_view(data, body, removed=("one", "deep", "nothing")) == ""


def test_a_child_has_the_view_too(data):
    """A worker is one."""

    def body():
        child = fork()
        if not child:
            (data / "one").write_text("by the child")
            os._exit(0)
        os.waitpid(child, 0)
        assert (data / "one").read_text() == "by the child"

    assert _in_view(data, body) == ""


def test_the_working_directory_is_the_view(data, monkeypatch):
    """A relative path must not lead behind it."""
    monkeypatch.chdir(data)
    assert _in_view(data, lambda: Path("one").write_text("changed")) == ""


def test_no_capability_is_left_to_a_user(data):
    """The root of a user namespace could open what file modes forbid."""
    if os.geteuid():
        pytest.skip("only root can become another user")

    def body():
        assert "CapEff:\t0000000000000000" in Path("/proc/self/status").read_text()
        (data / "one").chmod(0)
        with pytest.raises(PermissionError):
            (data / "one").read_text()

    assert _in_view(data, body, user=NOBODY) == ""


_AS_ROOT_OF_A_NAMESPACE = """
import os, sys
from pytest_dataloader_faults._engine.system.private_view import PrivateView, enter
data, scratch = sys.argv[1:]
enter(PrivateView((data,), (f"{data}/deep", f"{data}/one")), scratch)
os.mkdir(f"{data}/deep")
assert sorted(os.listdir(data)) == ["deep", "two"] and os.listdir(f"{data}/deep") == []
"""


def test_the_root_of_a_user_namespace_has_a_view(data):
    """As under ``unshare -r``; folders are removed from it, too."""
    unshare = ["/usr/bin/unshare", "-r"]
    command = [*unshare, sys.executable, "-c", _AS_ROOT_OF_A_NAMESPACE]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    if subprocess.run([*unshare, "true"], check=False).returncode:
        pytest.skip("this machine lets nobody have a user namespace")
    before = private_views.contents(data)
    subprocess.run([*command, data, data.parent / "scratch"], check=True, env=env)
    assert private_views.contents(data) == before
    (data.parent / "scratch").rmdir()


def test_a_folder_with_a_mount_in_it_has_no_view(tmp_path):
    """What is mounted there would be missing."""

    def body():
        with pytest.raises(OSError, match="is mounted there"):
            enter(PrivateView(("/dev",)), str(tmp_path))

    assert in_a_process(body) == ""


def test_birth_is_when_a_file_was_made(tmp_path):
    """To write to it changes nothing about that; a file that is not there was not made."""
    path = tmp_path / "file"
    path.write_text("a")
    made = birth_time(str(path))
    os.utime(path, (0, 0))
    path.write_text("b")
    assert made == birth_time(str(path)) <= path.stat().st_ctime_ns
    assert birth_time(str(tmp_path / "nothing")) is None
