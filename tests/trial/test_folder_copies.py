"""Copies of a folder, which trials with ``copy=`` get in place of the folder itself."""

import contextlib
import hashlib
import os
import socket
import stat
import tempfile
from itertools import chain
from pathlib import Path

import pytest

from pytest_dataloader_faults._engine.file_copies import copy_folder
from pytest_dataloader_faults._engine.system import temporary
from pytest_dataloader_faults._engine.system.processes import fork
from pytest_dataloader_faults.exceptions import InvalidArgumentError
from support.nobody import become_nobody
from support.refusals import missing_parts, refusal
from support.rows import rows

MB = 1 << 20
ODD = os.fsdecode(b"caf\xe9.bin")
"""A name that is no text: Latin-1 on a system whose names are UTF-8."""


def _facts(path):
    """What of a file would tell that something was done to it."""
    status = os.lstat(path)
    content = Path(path).read_bytes() if stat.S_ISREG(status.st_mode) else b""
    return status.st_mode, status.st_mtime_ns, status.st_nlink, hashlib.sha256(content).hexdigest()


def _folder_facts(folder):
    """The facts of a folder, and of all that is in it, by relative names."""
    inside = (os.path.join(at, name) for at, *names in os.walk(folder) for name in chain(*names))
    return {os.path.relpath(path, folder): _facts(path) for path in [folder, *inside]}


@pytest.fixture(name="data")
def _data(tmp_path):
    """A folder with files in folders; no test may change it."""
    data = tmp_path / "data"
    (data / "train" / "deep").mkdir(parents=True)
    (data / "train" / "values.dat").write_bytes(bytes(range(256)) * 4096)
    (data / "labels.pkl").write_bytes(b"labels")
    (data / "train" / "deep" / "notes.txt").write_text("notes", encoding="utf-8")
    (data / ODD).write_bytes(bytes(100))
    for path in data.rglob("*"):
        os.utime(path, ns=(1, 987_654_321_123_456_789))
    facts = _folder_facts(data)
    yield data
    assert _folder_facts(data) == facts


def _copy(folder):
    copy = Path(tempfile.mkdtemp(dir=folder.parent)) / "copy"
    copy_folder(str(folder), str(copy))
    return copy


def _refusal(folder):
    return refusal(InvalidArgumentError, _copy, folder)


def test_files_and_folders_are_copied_with_their_facts(data):
    facts = _folder_facts(data)
    copy = _copy(data)
    assert _folder_facts(copy) == facts
    (copy / "labels.pkl").write_bytes(b"overwritten")
    (copy / "new.bin").write_bytes(b"new")
    assert _folder_facts(data) == facts


def test_sparse_files_stay_sparse(tmp_path):
    sparse = tmp_path / "sparse"
    sparse.mkdir()
    with open(sparse / "data.bin", "wb") as file:
        file.truncate(64 * MB)
        file.write(b"begin")
    copy = _copy(sparse) / "data.bin"
    assert copy.stat().st_size == 64 * MB
    assert copy.stat().st_blocks * 512 < MB
    assert copy.read_bytes()[:6] == b"begin\0"


def test_links_are_replaced_by_what_they_lead_to(data):
    linked = data.parent / "linked"
    linked.mkdir()
    (linked / "labels").symlink_to(data / "labels.pkl")
    (linked / "train").symlink_to(data / "train")
    copy = _copy(linked)
    assert not any((copy / name).is_symlink() for name in ("labels", "train"))
    (copy / "labels").write_bytes(b"overwritten")
    (copy / "train" / "deep" / "notes.txt").write_bytes(b"overwritten")


@contextlib.contextmanager
def _link(path, target):
    """A link for a while, after which the folder that it is in is as before."""
    status = os.stat(path.parent)
    path.symlink_to(target)
    try:
        yield path
    finally:
        path.unlink()
        os.utime(path.parent, ns=(status.st_atime_ns, status.st_mtime_ns))


@rows("target", ["nothing", "/nothing/at/all", "labels.pkl/nothing", "{outside}"])
def test_a_link_that_leads_nowhere_still_does(data, target):
    outside = data.parent / "outside.bin"
    with _link(data / "way.bin", target.format(outside=outside)) as way:
        copied_link = _copy(data) / way.name
    assert copied_link.is_symlink()
    for mode in ("rb", "wb"):
        with pytest.raises(FileNotFoundError):
            open(copied_link, mode)
    assert not outside.exists()


@rows("target", ["..", "{data}/train", "{data}", "."])
def test_a_loop_of_folders_is_one_in_the_copy(data, target):
    """A link to a folder around itself leads to the copy of that, and never out of it."""
    with _link(data / "train" / "way", target.format(data=data)):
        copy, original = _copy(data), (data / "train" / "way").resolve()
    leads_to = (copy / "train" / "way").resolve()
    assert leads_to == copy / original.relative_to(data)


def test_a_link_to_a_folder_with_the_folder_in_it_is_refused(data):
    with _link(data / "train" / "way", "../.."):
        text = _refusal(data)
    assert (
        missing_parts(text, f"{data}/train/way is a link to {data.parent}", "Remove the link") == []
    )


def test_a_folder_with_the_place_for_copies_in_it_is_refused(data):
    """It would be changed by its own copy."""
    text = refusal(InvalidArgumentError, copy_folder, str(data.parent), str(data / "copy"))
    assert f"does not contain {str(data)!r}" in text


def _bind(path):
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(path)


@rows("make", [os.mkfifo, _bind])
def test_what_is_neither_a_file_nor_a_folder_is_refused(tmp_path, make, monkeypatch):
    folder = Path(tempfile.mkdtemp(dir=tmp_path))
    monkeypatch.chdir(folder)
    (folder / "data.bin").write_bytes(b"data")
    make("odd")
    assert f"{folder}/odd is neither a file nor a folder" in _refusal(folder)


def test_read_only_folders_are_removed_too():
    with tempfile.TemporaryDirectory(dir="/tmp") as shared:
        os.chmod(shared, 0o777)  # noqa: S103  # another user writes there
        child = fork()
        if not child:
            _exit_after(lambda: _copy_a_read_only_folder(Path(shared)))
        assert os.waitpid(child, 0)[1] == 0


def _exit_after(act):
    """End this process: by 0 if *act* raises nothing."""
    status = 1
    try:
        if os.getuid() == 0:
            become_nobody(0)
        act()
        status = 0
    finally:
        os._exit(status)


def _copy_a_read_only_folder(shared):
    data = shared / "data"
    (data / "inner").mkdir(parents=True)
    (data / "inner" / "other.dat").write_bytes(bytes(100))
    (data / "inner" / "other.dat").chmod(0o444)
    for path in (data / "inner", data):
        path.chmod(0o555)
    copy = _copy(data)
    assert stat.S_IMODE((copy / "inner").stat().st_mode) == 0o555
    assert stat.S_IMODE((copy / "inner" / "other.dat").stat().st_mode) == 0o444
    with pytest.raises(PermissionError):
        (copy / "inner" / "new").write_bytes(b"")
    temporary.remove(str(copy))
    assert not copy.exists()
    for path in (data, data / "inner"):
        path.chmod(0o755)
