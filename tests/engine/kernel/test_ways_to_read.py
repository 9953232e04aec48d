"""Odd paths, ways to get a descriptor, and calls that the filter cannot follow, under faults."""

import ctypes
import errno
import functools
import mmap
import os
import socket
from pathlib import Path

import pytest

from pytest_dataloader_faults import inject
from pytest_dataloader_faults._engine.kernel.caller import Syscall, resolve_path
from pytest_dataloader_faults._engine.kernel.linux import MACHINE, SYSCALLS
from pytest_dataloader_faults.faults import (
    ClosedDescriptor,
    ConnectError,
    OpenError,
    ReadError,
    TruncatedFile,
    WorkerExited,
)
from support.attempts import CONTENT, attempt, attempt_followed
from support.epochs import alone, epoch
from support.tries import WAYS, Tries, look_at, pread


def _call(name):
    def call(_path):
        ctypes.CDLL(None).syscall(SYSCALLS[MACHINE][name], -1, None, 0)
        return b""

    return call


def _errno_of_queue(name):
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.syscall(SYSCALLS[MACHINE][name], 1, None) == -1
    return ctypes.get_errno()


def _read_plainly(path):
    return Path(path).read_bytes()


OUT_OF_REACH = {
    _call("open_by_handle_at"): (b"", {}),  # It is refused.
    _read_plainly: (CONTENT, {"open of an excluded file": 1}),
}
"""What each gives, and what is told of it."""


@pytest.mark.filterwarnings(
    "ignore:This DataLoader will create:UserWarning"  # More than processors, which is meant.
)
def test_what_is_out_of_reach_is_reported(path, tmp_path):
    """Of each worker. A glob that means everything spares installed packages."""
    inside = tmp_path / "site-packages" / "images" / "a.rec"
    inside.parent.mkdir(parents=True)
    inside.write_bytes(CONTENT)
    ways = list(OUT_OF_REACH)
    with inject(ReadError("*"), require_fired=False) as injection:
        loader = alone(
            Tries(ways, lambda way: way(inside if way is _read_plainly else path)),
            num_workers=len(ways),
        )
        results = epoch(loader).batches

    assert [gave for gave, _ in OUT_OF_REACH.values()] == [each.gave for each in results]
    hidden_by_worker = {each.worker: each.unobserved for each in injection.workers}
    assert dict(enumerate(hidden for _, hidden in OUT_OF_REACH.values())) == hidden_by_worker
    assert "Not visible to the engine: open" in str(injection.explain_unfired())


QUEUES = ["io_uring_setup", "io_setup"]
"""Calls by which a process starts to read and write unseen."""


@pytest.mark.parametrize("fault", [ReadError("*"), WorkerExited(at=99), ConnectError("tcp://*")])
def test_queues_are_refused_under_every_fault(fault):
    """Otherwise a process could change files unseen."""
    with inject(fault, require_fired=False) as injection:
        results = epoch(alone(Tries(QUEUES, _errno_of_queue))).batches

    assert [errno.EPERM] * len(QUEUES) == [each.gave for each in results]
    assert injection.workers[0].unobserved == {}


EIO = os.strerror(errno.EIO)


# Ways to get a descriptor.


def _chosen(fd, _path):
    return os.dup2(fd, 100)


def _received(fd, _path):
    ours, theirs = socket.socketpair()
    with ours, theirs:
        socket.send_fds(ours, [b"1"], [fd])
        return socket.recv_fds(theirs, 1, 1)[1][0]


def _taken(fd, _path):
    pidfd = os.pidfd_open(os.getpid())
    try:
        return ctypes.CDLL(None).syscall(SYSCALLS[MACHINE]["pidfd_getfd"], pidfd, fd, 0)
    finally:
        os.close(pidfd)


def _renamed(fd, path):
    os.rename(path, f"{path}.rec")
    return os.dup(fd)


def _linked(_fd, path):
    os.link(path, f"{path}.rec")
    return os.open(f"{path}.rec", os.O_RDONLY)


def _unlinked(fd, path):
    os.unlink(path)
    return os.dup(fd)


def _linked_elsewhere(fd, path):
    os.link(path, f"{path}.txt")
    return _unlinked(fd, path)


def _through_symlink(_fd, path):
    os.rename(path, f"{path}.blob")
    os.symlink(f"{path}.blob", path)
    return os.open(path, os.O_RDONLY)


def _as_stdin(fd, _path):
    return os.dup2(fd, 0)


GOT = (
    *(_chosen, _received, _taken, _renamed, _linked, _unlinked, _linked_elsewhere),
    *(_through_symlink, _as_stdin),
)


def test_reads_fail_however_the_descriptor_was_got(tmp_path):
    paths = {get: str(tmp_path / f"{get.__name__}.rec") for get in GOT}
    for path in paths.values():
        Path(path).write_bytes(CONTENT)

    def read(get):
        fd = os.open(paths[get], os.O_RDONLY)
        got = get(fd, paths[get])
        if got != fd:
            os.close(fd)
        return os.read(got, 1)

    gave, injection = attempt(list(GOT), read, ReadError("*.rec"))
    assert [f"OSError: [Errno {errno.EIO}] {EIO}"] * len(GOT) == gave
    assert len(GOT) == injection.fired


# Paths.


def _open_in_no_folder(name):
    return os.open(name, os.O_RDONLY, dir_fd=999)


def _open_at_address(address):
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.open(ctypes.c_void_p(address), os.O_RDONLY) == -1
    return os.strerror(ctypes.get_errno())


def test_what_the_kernel_refuses(path):
    ends = ("/", "/.", "/../file.rec")
    refused = [
        *((functools.partial(WAYS["pread"], f"{path}{end}"), errno.ENOTDIR) for end in ends),
        (functools.partial(_open_in_no_folder, "file.rec"), errno.EBADF),
        *((functools.partial(_open_at_address, address), errno.EFAULT) for address in (0, 8)),
    ]
    gave, _ = attempt_followed([call for call, _ in refused], lambda call: call(), "*.rec")
    for text, (_, number) in zip(gave, refused, strict=True):
        assert os.strerror(number) in text


# What is held when the worker is armed.


@pytest.fixture(name="unlinked_file")
def _unlinked_file(tmp_path):
    path = tmp_path / "gone.rec"
    path.write_bytes(CONTENT)
    with open(path, "rb") as file:
        path.unlink()
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapping:
            yield file.fileno(), mapping


def test_a_held_file_that_has_no_name_any_more(unlinked_file):
    fd, mapping = unlinked_file
    calls = [functools.partial(pread, fd), functools.partial(look_at, (mapping, 7))]
    with inject(TruncatedFile("*", keep=1 << 40), require_fired=False) as injection:
        results = epoch(alone(Tries(calls, lambda call: call()))).batches
    assert ([CONTENT, CONTENT[7]], 0) == ([each.gave for each in results], injection.fired)


def test_a_glob_for_everything_spares_what_the_worker_prints_to(tmp_path, capfd):
    (tmp_path / "data.rec").write_bytes(CONTENT)

    def read(path):
        with pytest.raises(OSError, match="Bad file descriptor"):
            Path(path).read_bytes()
        return os.write(1, b"out") + os.write(2, b"error")

    (gave,), _ = attempt([str(tmp_path / "data.rec")], read, ClosedDescriptor("*"))
    assert 8 == gave


_FOLDER, _MODE = -100, 0o600
libc = ctypes.CDLL(None, use_errno=True)
libc.open.argtypes = (ctypes.c_void_p, ctypes.c_int)


@pytest.fixture(name="faulted_path")
def _faulted_path(path):
    """A file beside the first one, whose name begins with the name of that one."""
    with open(f"{path}.faulted", "wb") as file:
        file.write(b"other")
    return file.name


def _open_at(address):
    fd = libc.open(address, os.O_RDONLY)
    if fd < 0:
        return os.strerror(ctypes.get_errno())
    os.close(fd)
    return ""


def test_a_child_with_memory_of_its_own(path, faulted_path):
    """At the same place its worker has the path of a file that is not faulted."""
    buffer = ctypes.create_string_buffer(os.fsencode(path), 4096)

    def open_path(name):
        if name == path:
            return _open_at(ctypes.addressof(buffer))
        child = os.fork()
        if not child:
            buffer.value = os.fsencode(name)
            os._exit(_open_at(ctypes.addressof(buffer)) == EIO)
        return EIO if os.waitpid(child, 0)[1] else ""

    gave, _ = attempt([path, path, faulted_path, path], open_path, OpenError("*.faulted"))
    assert ["", "", EIO, ""] == gave


def test_a_path_that_crosses_a_page(path, faulted_path):
    """Its first page ends where a known path would end; the second one makes it another path."""
    pages = mmap.mmap(-1, 2 * mmap.PAGESIZE)
    start = ctypes.addressof(ctypes.c_char.from_buffer(pages))
    place = mmap.PAGESIZE - len(os.fsencode(path))

    def open_path(name):
        pages[place:] = os.fsencode(name).ljust(len(pages) - place, b"\0")
        return _open_at(start + place)

    gave, _ = attempt([path, path, faulted_path, path], open_path, OpenError("*.faulted"))
    assert ["", "", EIO, ""] == gave


def test_the_descriptor_of_another_process(path):
    """/proc/PID/fd/N means descriptor N of process PID, whoever opens it."""
    call = Syscall(1, os.getpid(), "openat", (_FOLDER, 0, os.O_RDONLY, 0, 0, 0))
    parent = f"/proc/{os.getppid()}/fd/0"
    assert resolve_path(call, parent.encode(), changes=False).path == os.readlink(parent)
    with open(path, "rb") as file:
        own = f"/proc/{os.getpid()}/fd/{file.fileno()}"
        assert resolve_path(call, own.encode(), changes=False).path == str(path)
