"""A dataset that tells what each attempt to read gave, and unusual ways to read a file.

The ways are functions of a path, so that spawned workers can import them. FAMILIES read in
processes and threads that a worker starts itself.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import mmap
import os
import pickle
import struct
import subprocess
import threading
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

from torch.utils.data import Dataset, get_worker_info

ENOUGH = 1 << 16
THREADS = 8
_OPENAT2, _AT_FDCWD = 437, -100


class Try(NamedTuple):
    """What attempt number *index* gave in that worker: bytes, or an error's text."""

    index: int
    worker: int
    gave: Any


class Tries(Dataset[Try]):
    """Sample *i* is what ``read(sources[i])`` gives."""

    def __init__(self, sources: list[Any], read: Callable[[Any], Any]) -> None:
        self.sources = sources
        self.read = read

    def __len__(self) -> int:
        return len(self.sources)

    def __getitem__(self, index: int) -> Try:
        info = get_worker_info()
        source = self.sources[index]
        try:
            gave = self.read(source)
        except Exception as error:  # noqa: BLE001  # whatever it is, it is the finding
            gave = f"{type(error).__name__}: {error}"
        return Try(index, info.id if info else -1, gave)


def _with_descriptor(use: Callable[[int], bytes]) -> Callable[[str], bytes]:
    def read(path: str) -> bytes:
        fd = os.open(path, os.O_RDONLY)
        try:
            return use(fd)
        finally:
            os.close(fd)

    return read


def _vectored(call: Callable[..., int], *offset: int) -> Callable[[int], bytes]:
    def use(fd: int) -> bytes:
        buffer = bytearray(ENOUGH)
        return bytes(buffer[: call(fd, [buffer], *offset)])

    return use


def _by_way_of(kernel_copy: Callable[[int, int], int]) -> Callable[[int], bytes]:
    """The kernel moves the bytes into a pipe; they are never in a buffer of the reader's."""

    def use(fd: int) -> bytes:
        read, write = os.pipe()
        try:
            return os.read(read, kernel_copy(fd, write))
        finally:
            os.close(read)
            os.close(write)

    return use


def _copied(path: str) -> bytes:
    """Into a file of the same file system; across file systems by read(2), as everybody does."""
    with open(path, "rb", buffering=0) as file, open(f"{path}.copy", "w+b") as copy:
        try:
            os.copy_file_range(file.fileno(), copy.fileno(), ENOUGH)
        except OSError as error:
            if error.errno != errno.EXDEV:
                raise
            return file.read()
        copy.seek(0)
        return copy.read()


def _through_duplicate(duplicate: Callable[[int], int]) -> Callable[[int], bytes]:
    def use(fd: int) -> bytes:
        other = duplicate(fd)
        try:
            return os.pread(other, ENOUGH, 0)
        finally:
            os.close(other)

    return use


def _in_a_thread(path: str) -> bytes:
    found: list[Any] = []

    def read() -> None:
        try:
            found.append(Path(path).read_bytes())
        except OSError as error:
            found.append(error)

    thread = threading.Thread(target=read)
    thread.start()
    thread.join()
    if isinstance(found[0], OSError):
        raise found[0]
    return found[0]


def _in_a_program(path: str) -> bytes:
    """A grandchild, which runs other code."""
    done = subprocess.run(
        ["/bin/cat", path], capture_output=True, check=False, env={**os.environ, "LC_ALL": "C"}
    )
    if done.returncode:
        raise ChildProcessError(done.stderr.decode())
    return done.stdout


def _creating(path: str) -> bytes:
    """As SQLite opens every database."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT)
    try:
        return os.read(fd, ENOUGH)
    finally:
        os.close(fd)


def _relative(path: str) -> bytes:
    before = os.getcwd()
    os.chdir(os.path.dirname(path))
    try:
        return Path(os.path.basename(path)).read_bytes()
    finally:
        os.chdir(before)


def _in_folder(path: str) -> bytes:
    folder = os.open(os.path.dirname(path), os.O_RDONLY)
    fd = os.open(os.path.basename(path), os.O_RDONLY, dir_fd=folder)
    try:
        return os.read(fd, ENOUGH)
    finally:
        os.close(fd)
        os.close(folder)


def _roundabout(path: str) -> bytes:
    folder, name = os.path.split(path)
    return Path(f"{folder}/../{os.path.basename(folder)}/./{name}").read_bytes()


def _openat2(path: str) -> bytes:
    """By the bare system call, which the C library does not know."""
    libc = ctypes.CDLL(None, use_errno=True)
    how = struct.pack("=QQQ", os.O_RDONLY, 0, 0)
    fd = libc.syscall(_OPENAT2, _AT_FDCWD, path.encode(), how, ctypes.c_size_t(len(how)))
    if fd < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    try:
        return os.read(fd, ENOUGH)
    finally:
        os.close(fd)


def _in_c(path: str) -> bytes:
    """fopen(3) and fread(3), with no Python in between."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.fopen.restype = ctypes.c_void_p
    file = ctypes.c_void_p(libc.fopen(path.encode(), b"rb"))
    buffer = ctypes.create_string_buffer(ENOUGH)
    libc.fread.restype = ctypes.c_size_t
    count = libc.fread(buffer, ctypes.c_size_t(1), ctypes.c_size_t(ENOUGH), file)
    number = ctypes.get_errno() if libc.ferror(file) else 0
    libc.fclose(file)
    if number:
        raise OSError(number, os.strerror(number))
    return buffer.raw[:count]


def pread(fd: int) -> bytes:
    """A descriptor that is held, read at a place of its own."""
    return os.pread(fd, ENOUGH, 0)


def read_on(fd: int) -> tuple[int, bytes]:
    """Its size, and what follows its own offset."""
    return os.fstat(fd).st_size, os.read(fd, ENOUGH)


def look_at(place: tuple[mmap.mmap, int]) -> int:
    """One byte of a mapping that is held."""
    mapping, offset = place
    return mapping[offset]


def number_of(path: str) -> int:
    """The descriptor number that the kernel gives it."""
    fd = os.open(path, os.O_RDONLY)
    os.close(fd)
    return fd


WAYS: dict[str, Callable[[str], bytes]] = {
    "read": _with_descriptor(lambda fd: os.read(fd, ENOUGH)),
    "pread": _with_descriptor(pread),
    "readv": _with_descriptor(_vectored(os.readv)),
    "preadv": _with_descriptor(_vectored(os.preadv, 0)),
    "sendfile": _with_descriptor(_by_way_of(lambda fd, to: os.sendfile(to, fd, 0, ENOUGH))),
    "splice": _with_descriptor(_by_way_of(lambda fd, to: os.splice(fd, to, ENOUGH))),
    "copy_file_range": _copied,
    "dup": _with_descriptor(_through_duplicate(os.dup)),
    "F_DUPFD": _with_descriptor(_through_duplicate(lambda fd: fcntl.fcntl(fd, fcntl.F_DUPFD, 3))),
    "F_DUPFD_CLOEXEC": _with_descriptor(
        _through_duplicate(lambda fd: fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 3))
    ),
    "thread": _in_a_thread,
    "cat": _in_a_program,
    "relative path": _relative,
    "dir_fd": _in_folder,
    "roundabout path": _roundabout,
    "openat2": _openat2,
    "O_CREAT": _creating,
    "fread": _in_c,
}


def in_a_child(read: Callable[[], Any], meanwhile: Callable[[], object] = lambda: None) -> Any:
    """What *read* gives, or raises, in a fork of this process, which does *meanwhile*."""
    source, sink = os.pipe()
    pid = _fork()
    if not pid:
        _tell(sink, read)
    os.close(sink)
    meanwhile()
    with open(source, "rb") as pipe:
        gave = pickle.loads(pipe.read())  # noqa: S301  # our own child wrote it
    os.waitpid(pid, 0)
    if isinstance(gave, OSError):
        raise gave
    return gave


def _fork() -> int:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12 on: threads, torch's.
        return os.fork()


def _tell(sink: int, read: Callable[[], Any]) -> None:
    """Write what *read* gives, and end this process."""
    try:
        gave = read()
    except OSError as error:
        gave = error
    os.write(sink, pickle.dumps(gave))
    os._exit(0)


def child(path: str) -> bytes:
    """A fork opens and reads it."""
    return in_a_child(lambda: Path(path).read_bytes())


def grandchild(path: str) -> bytes:
    """A fork of a fork does."""
    return in_a_child(lambda: child(path))


def child_elsewhere(path: str) -> bytes:
    """A fork that has gone to a folder of its own opens it by its name alone."""
    folder, name = os.path.split(path)

    def read() -> bytes:
        os.chdir(folder)
        return Path(name).read_bytes()

    return in_a_child(read)


def child_of_descriptor(path: str) -> bytes:
    """The worker opens it, a fork reads it."""
    with open(path, "rb", buffering=0) as file:
        return in_a_child(file.read)


def program(path: str) -> bytes:
    """Another program opens and reads it."""
    return _output(["cat", path])


def shell(path: str) -> bytes:
    """So does a program's own child."""
    return _output(["sh", "-c", 'cat "$0"; true', path])


def inherited_descriptor(path: str) -> bytes:
    """Another program reads what the worker has opened, by the descriptor's number."""
    with open(path, "rb") as file:
        fd = file.fileno()
        code = f"import os, sys; sys.stdout.buffer.write(os.read({fd}, {ENOUGH}))"
        return _output(["python3", "-S", "-E", "-c", code], pass_fds=[fd])


def standard_input(path: str) -> bytes:
    """Another program reads it at number 0, where dup2(2) has put it."""
    with open(path, "rb") as file:
        return _output(["cat"], stdin=file)


def _output(command: list[str], **options: Any) -> bytes:
    environment = {**os.environ, "LC_ALL": "C"}
    done = subprocess.run(command, capture_output=True, check=False, env=environment, **options)
    if done.stderr:
        raise ChildProcessError(done.stderr.decode(errors="replace"))
    return done.stdout


def in_threads(paths: list[str]) -> list[bytes | str]:
    """What eight threads at once get out of these files, in their order."""
    with ThreadPoolExecutor(THREADS) as pool:
        return list(pool.map(_bytes_or_error, paths))


def _bytes_or_error(path: str) -> bytes | str:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        return str(error)


def direct(path: str) -> bytes:
    """Past the page cache, into a buffer that is aligned."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECT)
    try:
        with mmap.mmap(-1, ENOUGH) as buffer:
            return buffer[: os.preadv(fd, [buffer], 0)]
    finally:
        os.close(fd)


FAMILIES: dict[str, Callable[[str], bytes]] = {
    way.__name__: way
    for way in (
        child,
        grandchild,
        child_elsewhere,
        child_of_descriptor,
        program,
        shell,
        inherited_descriptor,
    )
}
