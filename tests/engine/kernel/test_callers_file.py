"""The supervisor finds a file as its caller would, and nothing that comes in its place."""

import errno
import os

import pytest

from pytest_dataloader_faults._engine.kernel import callers_file, linux
from pytest_dataloader_faults._engine.kernel.caller import Syscall, open_request
from support.attempts import CONTENT


def _open_for_caller(path, flags=os.O_RDONLY):
    """What the supervisor opens for an openat(2) of this process."""
    call = Syscall(1, os.getpid(), "openat", (linux.AT_FDCWD, 0, flags, 0, 0, 0))
    request = open_request(call, os.fsencode(path))
    return callers_file.open_for_caller(call, request, content=True)


def _read_and_close(opened_file):
    try:
        return os.pread(opened_file.source, 1000, 0)
    finally:
        os.close(opened_file.source)


@pytest.fixture(name="path")
def _path(tmp_path):
    path = tmp_path / "file.bin"
    path.write_bytes(CONTENT)
    return path


def _to_fifo(path):
    os.mkfifo(path)


def _to_link(path):
    target = path.with_name("other.bin")
    target.write_bytes(b"other")
    path.symlink_to(target)


@pytest.mark.parametrize("swap", [_to_fifo, _to_link])
def test_what_comes_in_its_place_meanwhile(monkeypatch, path, swap):
    """The file that was looked at is opened: no FIFO can make the supervisor wait."""
    looked = callers_file.data_size

    def look_and_swap(pin):
        size = looked(pin)
        path.unlink()
        swap(path)
        return size

    monkeypatch.setattr(callers_file, "data_size", look_and_swap)
    assert CONTENT == _read_and_close(_open_for_caller(path))


def test_a_fifo(path):
    path.unlink()
    os.mkfifo(path)
    assert None is _open_for_caller(path)


def test_nothing_stays_open(path):
    descriptors = os.listdir("/proc/self/fd")
    _read_and_close(_open_for_caller(path))
    assert (None, None) == _open_for_caller(path.with_name("none.bin"))
    with pytest.raises(NotADirectoryError):
        _open_for_caller(path / "below")
    assert descriptors == os.listdir("/proc/self/fd")


@pytest.mark.parametrize("number", [errno.ENOSYS, errno.EPERM])
def test_a_container_that_refuses_openat2(monkeypatch, path, number):
    folder, name = os.path.split(path)
    monkeypatch.chdir(folder)
    calls = []

    def refuse(*_):
        calls.append(1)
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(linux, "openat2", refuse)
    assert CONTENT == _read_and_close(_open_for_caller(path))
    assert CONTENT == _read_and_close(_open_for_caller(name))
    assert (None, None) == _open_for_caller("none.bin")
    assert [1] * 3 == calls


def test_another_process_gets_its_own_descriptor(path):
    """/proc/PID/fd/N means descriptor N of process PID, whoever opens it."""
    fd = os.open(path, os.O_RDONLY)
    parent = f"/proc/{os.getppid()}/fd/0"
    call = Syscall(1, os.getpid(), "openat", (linux.AT_FDCWD, 0, os.O_RDONLY, 0, 0, 0))
    assert open_request(call, parent.encode()).path == os.readlink(parent)
    assert open_request(call, f"/proc/{os.getpid()}/fd/{fd}".encode()).path == str(path)
    os.close(fd)


def test_files_of_procfs(path):
    """They show something of the process that opens them, so the caller has to."""
    assert None is _open_for_caller("/proc/self/comm")
    path.write_bytes(b"")
    assert b"" == _read_and_close(_open_for_caller(path))
