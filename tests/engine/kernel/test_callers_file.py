"""The supervisor finds a file as its caller would, and nothing that comes in its place."""

from __future__ import annotations

import errno
import os

import pytest

from pytest_dataloader_faults._engine.kernel import callers_file, linux
from pytest_dataloader_faults._engine.kernel.caller import Syscall, open_request
from support.attempts import CONTENT


def _opened(path, flags=os.O_RDONLY):
    """What the supervisor opens for an openat(2) of this process."""
    call = Syscall(1, os.getpid(), "openat", (linux.AT_FDCWD, 0, flags, 0, 0, 0))
    wanted = open_request(call, os.fsencode(path))
    return callers_file.opened(call, wanted, content=True)


def _content(found):
    try:
        return os.pread(found.source, 1000, 0)
    finally:
        os.close(found.source)


@pytest.fixture(name="path")
def _path(tmp_path):
    path = tmp_path / "file.bin"
    path.write_bytes(CONTENT)
    return path


def _to_fifo(path):
    os.mkfifo(path)


def _to_link(path):
    other = path.with_name("other.bin")
    other.write_bytes(b"other")
    path.symlink_to(other)


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
    assert CONTENT == _content(_opened(path))


def test_a_fifo(path):
    """Nobody waits for one who would write to it."""
    path.unlink()
    os.mkfifo(path)
    assert None is _opened(path)


def test_nothing_stays_open(path):
    """Whether there is a file, none, or an error."""
    before = os.listdir("/proc/self/fd")
    _content(_opened(path))
    assert (None, None) == _opened(path.with_name("none.bin"))
    with pytest.raises(NotADirectoryError):
        _opened(path / "below")
    assert before == os.listdir("/proc/self/fd")


@pytest.mark.parametrize("number", [errno.ENOSYS, errno.EPERM])
def test_a_container_that_refuses_openat2(monkeypatch, path, number):
    """Files are found without it."""
    folder, name = os.path.split(path)
    monkeypatch.chdir(folder)
    asked = []

    def refused(*_):
        asked.append(1)
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(linux, "openat2", refused)
    assert CONTENT == _content(_opened(path))
    assert CONTENT == _content(_opened(name))
    assert (None, None) == _opened("none.bin")
    assert [1] * 3 == asked


def test_another_process_is_asked_for_its_own_descriptor(path):
    """/proc/PID/fd/N means descriptor N of process PID, whoever opens it."""
    other = os.open(path, os.O_RDONLY)
    parent = f"/proc/{os.getppid()}/fd/0"
    call = Syscall(1, os.getpid(), "openat", (linux.AT_FDCWD, 0, os.O_RDONLY, 0, 0, 0))
    assert open_request(call, parent.encode()).path == os.readlink(parent)
    assert open_request(call, f"/proc/{os.getpid()}/fd/{other}".encode()).path == str(path)
    os.close(other)


def test_files_of_procfs(path):
    """They show something of the process that opens them, so the caller has to."""
    assert None is _opened("/proc/self/comm")
    path.write_bytes(b"")
    assert b"" == _content(_opened(path))
