"""The path of each call is read from the memory of the process that makes it."""

import ctypes
import errno
import mmap
import os

import pytest

from pytest_dataloader_faults._engine.kernel.caller import (
    Syscall,
    resolve_path,
)
from pytest_dataloader_faults.faults import OpenError
from support.attempts import attempt
from support.tries import WAYS

EIO = os.strerror(errno.EIO)
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
    """Open the path that is at *address*; "" or the error."""
    fd = libc.open(address, os.O_RDONLY)
    if fd < 0:
        return os.strerror(ctypes.get_errno())
    os.close(fd)
    return ""


def _attempt_without_faults(sources, way):
    gave, injection = attempt(sources, way, OpenError("*.nothing"), require_fired=False)
    return gave, injection.workers[0]


def test_every_open_is_counted(path):
    names = [*WAYS, *WAYS, *WAYS]
    gave, worker = _attempt_without_faults(names, lambda name: WAYS[name](path))
    assert len(names) == worker.files[path].opens
    assert not [each for each in gave if isinstance(each, str)]


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


def test_a_long_path(path, faulted_path):
    deep = os.path.join(os.path.dirname(path), *["d" * 250] * 3)
    os.makedirs(deep)
    names = [os.path.join(deep, name) for name in ("a", "a.faulted")]
    for name in names:
        os.link(faulted_path, name)
    plain, faulted = names

    def open_path(name):
        buffer = ctypes.create_string_buffer(os.fsencode(name))
        return _open_at(ctypes.addressof(buffer))

    paths = [plain, plain, faulted, plain]
    gave, injection = attempt(paths, open_path, OpenError("*/a.faulted"))
    assert ["", "", EIO, ""] == gave
    assert 3 == injection.workers[0].files[plain].opens


def test_the_descriptor_of_another_process(path):
    """/proc/PID/fd/N means descriptor N of process PID, whoever opens it."""
    call = Syscall(1, os.getpid(), "openat", (_FOLDER, 0, os.O_RDONLY, 0, 0, 0))
    parent = f"/proc/{os.getppid()}/fd/0"
    assert resolve_path(call, parent.encode(), changes=False).path == os.readlink(parent)
    with open(path, "rb") as file:
        own = f"/proc/{os.getpid()}/fd/{file.fileno()}"
        assert resolve_path(call, own.encode(), changes=False).path == str(path)
