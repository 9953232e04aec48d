"""A dataset that records the result of each attempt to read, and unusual ways to read a file.

The ways are functions of a path, so that spawned workers can import them. FAMILIES read in
processes and threads that a worker starts itself.
"""

import contextlib
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

import numpy as np
from torch.utils.data import Dataset, get_worker_info

ENOUGH = 1 << 16
THREADS = 8
_OPENAT2, _AT_FDCWD = 437, -100


class Try(NamedTuple):
    """The result of attempt number *index* in that worker: bytes, or an error's message."""

    index: int
    worker: int
    gave: Any


class Reads(Dataset[Any]):
    def __init__(self, sources: list[Any], read: Callable[[Any], Any]) -> None:
        self.sources = sources
        self.read = read

    def __len__(self) -> int:
        return len(self.sources)

    def __getitem__(self, index: int) -> Any:
        return self.read(self.sources[index])


class Tries(Reads):
    """The same; if it raises an error, that is the result."""

    def __getitem__(self, index: int) -> Try:
        info = get_worker_info()
        try:
            gave = super().__getitem__(index)
        except Exception as error:  # noqa: BLE001  # whatever it is, it is the finding
            gave = f"{type(error).__name__}: {error}"
        return Try(index, info.id if info else -1, gave)


class TriesBesideThread(Tries):
    """The same, while a thread of the worker allocates; pickled, it starts in the worker."""

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        threading.Thread(target=_allocate_forever, daemon=True).start()


def _allocate_forever() -> None:
    while True:
        with contextlib.suppress(MemoryError):
            np.empty(5_000_000)


def with_descriptor(use: Callable[[int], Any]) -> Callable[[Any], Any]:
    def read(path: Any) -> Any:
        fd = os.open(path, os.O_RDONLY)
        try:
            return use(fd)
        finally:
            os.close(fd)

    return read


def _vectored(name: str, *offset: int) -> Callable[[int], bytes]:
    def use(fd: int) -> bytes:
        buffer = bytearray(ENOUGH)
        count = getattr(os, name)(fd, [buffer], *offset)
        return bytes(buffer[:count])

    return use


def _through_pipe(kernel_copy: Callable[[int, int], int]) -> Callable[[int], bytes]:
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
        copy = duplicate(fd)
        try:
            return os.pread(copy, ENOUGH, 0)
        finally:
            os.close(copy)

    return use


def _in_a_thread(path: str) -> bytes:
    results: list[Any] = []

    def read() -> None:
        try:
            results.append(Path(path).read_bytes())
        except OSError as error:
            results.append(error)

    thread = threading.Thread(target=read)
    thread.start()
    thread.join()
    if isinstance(results[0], OSError):
        raise results[0]
    return results[0]


def _in_a_program(path: str) -> bytes:
    process = subprocess.run(
        ["/bin/cat", path], capture_output=True, check=False, env={**os.environ, "LC_ALL": "C"}
    )
    if process.returncode:
        raise ChildProcessError(process.stderr.decode())
    return process.stdout


def _creating(path: str) -> bytes:
    """As SQLite opens every database."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT)
    try:
        return os.read(fd, ENOUGH)
    finally:
        os.close(fd)


def _relative(path: str) -> bytes:
    folder = os.getcwd()
    os.chdir(os.path.dirname(path))
    try:
        return Path(os.path.basename(path)).read_bytes()
    finally:
        os.chdir(folder)


def _in_folder(path: str) -> bytes:
    folder = os.open(os.path.dirname(path), os.O_RDONLY)
    fd = os.open(os.path.basename(path), os.O_RDONLY, dir_fd=folder)
    try:
        return os.read(fd, ENOUGH)
    finally:
        os.close(fd)
        os.close(folder)


def _openat2(path: str) -> bytes:
    """By the bare system call, which the C library does not know."""
    libc = ctypes.CDLL(None, use_errno=True)
    open_how = struct.pack("=QQQ", os.O_RDONLY, 0, 0)
    fd = libc.syscall(_OPENAT2, _AT_FDCWD, path.encode(), open_how, ctypes.c_size_t(len(open_how)))
    if fd < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    try:
        return os.read(fd, ENOUGH)
    finally:
        os.close(fd)


def _in_c(path: str) -> bytes:
    """fopen(3) and fread(3), without Python in between."""
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
    """A descriptor that is held, read at its own offset."""
    return os.pread(fd, ENOUGH, 0)


def read_on(fd: int) -> tuple[int, bytes]:
    return os.fstat(fd).st_size, os.read(fd, ENOUGH)


def look_at(place: tuple[mmap.mmap, int]) -> int:
    mapping, offset = place
    return mapping[offset]


def number_of(path: str) -> int:
    fd = os.open(path, os.O_RDONLY)
    os.close(fd)
    return fd


WAYS: dict[str, Callable[[str], bytes]] = {
    "read": with_descriptor(lambda fd: os.read(fd, ENOUGH)),
    "pread": with_descriptor(pread),
    "readv": with_descriptor(_vectored("readv")),
    "preadv": with_descriptor(_vectored("preadv", 0)),
    "sendfile": with_descriptor(_through_pipe(lambda fd, to: os.sendfile(to, fd, 0, ENOUGH))),
    "splice": with_descriptor(_through_pipe(lambda fd, to: os.splice(fd, to, ENOUGH))),
    "copy_file_range": _copied,
    "dup": with_descriptor(_through_duplicate(os.dup)),
    "F_DUPFD": with_descriptor(_through_duplicate(lambda fd: fcntl.fcntl(fd, fcntl.F_DUPFD, 3))),
    "thread": _in_a_thread,
    "cat": _in_a_program,
    "relative path": _relative,
    "dir_fd": _in_folder,
    "openat2": _openat2,
    "O_CREAT": _creating,
    "fread": _in_c,
}


def in_a_child(read: Callable[[], Any]) -> Any:
    """What *read* gives, or raises, in a fork of this process."""
    source, sink = os.pipe()
    pid = _fork()
    if not pid:
        _write_result(sink, read)
    os.close(sink)
    with open(source, "rb") as pipe:
        gave = pickle.loads(pipe.read())
    os.waitpid(pid, 0)
    if isinstance(gave, OSError):
        raise gave
    return gave


def _fork() -> int:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12 on: threads, torch's.
        return os.fork()


def _write_result(sink: int, read: Callable[[], Any]) -> None:
    """Write what *read* gives, and end this process."""
    try:
        gave = read()
    except OSError as error:
        gave = error
    os.write(sink, pickle.dumps(gave))
    os._exit(0)


def child(path: str) -> bytes:
    return in_a_child(lambda: Path(path).read_bytes())


def child_elsewhere(path: str) -> bytes:
    """A fork that has changed to its own folder opens it by its name alone."""
    folder, name = os.path.split(path)

    def read() -> bytes:
        os.chdir(folder)
        return Path(name).read_bytes()

    return in_a_child(read)


def child_of_descriptor(path: str) -> bytes:
    with open(path, "rb", buffering=0) as file:
        return in_a_child(file.read)


def program(path: str) -> bytes:
    return _output(["cat", path])


def inherited_descriptor(path: str) -> bytes:
    """Another program reads what the worker has opened, by the descriptor's number."""
    with open(path, "rb") as file:
        fd = file.fileno()
        code = f"import os, sys; sys.stdout.buffer.write(os.read({fd}, {ENOUGH}))"
        return _output(["python3", "-S", "-E", "-c", code], pass_fds=[fd])


def _output(command: list[str], **options: Any) -> bytes:
    environment = {**os.environ, "LC_ALL": "C"}
    process = subprocess.run(command, capture_output=True, check=False, env=environment, **options)
    if process.stderr:
        raise ChildProcessError(process.stderr.decode(errors="replace"))
    return process.stdout


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
    for way in (child, child_elsewhere, child_of_descriptor, program, inherited_descriptor)
}
