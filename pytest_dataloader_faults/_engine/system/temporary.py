"""Folders, files and memory that must not outlive what they are for, whatever is killed."""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os
import re
import signal
import stat
import struct
import tempfile
from collections.abc import Collection, Iterable

from pytest_dataloader_faults._engine.system.proc import file_of, link_of, mount_points
from pytest_dataloader_faults.exceptions import HarnessError, UnusableEnvironmentError

# Some facts about who makes a folder. Between mkdtemp(3) and the next line a process can be killed,
# and then the name is lost. So the process that needs the folder chooses a name that no other one
# will have, and another process makes the folder and removes it in the end. If that one is killed,
# the first one removes the folder, by its name.
#
# multiprocessing puts the sockets by which workers pass tensors on into such a folder. A worker of
# root may drop its privileges before it makes one, so root's folder is like /tmp, but cannot be
# listed; names in it are random, and a client must know a key (multiprocessing.connection).
#
# The path of a socket has at most 107 bytes (unix(7)). multiprocessing adds 18 to that of its
# folder. If TMPDIR is longer than the rest, workers cannot pass tensors on, and a loader waits
# forever.


# A dataset that closes descriptors that it did not open, as ``os.closerange(3, 256)`` does, frees
# the numbers of ours, and the next files that it opens get them. A write to such a number would
# land in the user's file, and a close would take that file away from the dataset.


_CLOSED = (
    "file descriptors were closed by code that did not open them: {} belonged to"
    " pytest-dataloader-faults and {}. Close only descriptors that your code opened: a call such as"
    " os.closerange(3, 256) also closes those of torch and pytest"
)


class ClosedByUserError(HarnessError):
    """User code closed a descriptor of this package. The message says what has its number now."""


class OwnedDescriptor:
    """The descriptor *number*, while it refers to the same file as now."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.file = file_of(number)

    @property
    def is_open(self) -> bool:
        """Whether *number* still stands for the same file."""
        with contextlib.suppress(OSError):
            return file_of(self.number) == self.file
        return False

    def require(self) -> int:
        """The number; raises ClosedByUserError unless it still stands for the same file."""
        if not self.is_open:
            state = "is closed now"
            with contextlib.suppress(FileNotFoundError):
                state = f"is now {link_of('self', self.number)}"
            raise ClosedByUserError(_CLOSED.format(self.number, state))
        return self.number

    def close(self) -> None:
        """Close the descriptor, unless its number belongs to another file by now."""
        if self.is_open:
            os.close(self.number)


_SHORT = "/tmp"
_LONGEST = 107 - len("/dlf-" + 12 * "x") - len("/listener-" + 8 * "x")


def name_for_sockets() -> str:
    """The path of a folder that is not there, short enough for the sockets in it."""
    usual = tempfile.gettempdir()
    if len(os.fsencode(usual)) <= _LONGEST:
        return _name_below(usual)
    if not os.access(_SHORT, os.W_OK | os.X_OK):
        message = (
            f"the path for temporary files is too long: it is {usual}, and no file can be created"
            f" in {_SHORT}. The workers' sockets need a path of at most {_LONGEST} bytes. Set"
            " TMPDIR to a folder with a shorter path. No dataset was judged"
        )
        raise UnusableEnvironmentError(message, "the path for temporary files is too long")
    return _name_below(_SHORT)


def _name_below(folder: str) -> str:
    return os.path.join(folder, f"dlf-{os.urandom(6).hex()}")


def make_for_sockets(path: str) -> None:
    """Make the folder *path*, for sockets of this user's processes."""
    os.mkdir(path, 0o700)
    if not os.geteuid():
        os.chmod(path, 0o1733)  # noqa: S103  # as /tmp, less reading


def remove(path: str) -> None:
    """Remove the folder *path*, even if it contains copies of read-only folders.

    A dataset may have put a link, a file or a socket in its place, or mounted something: nothing
    behind a link or a mount is touched.
    """
    with contextlib.suppress(FileNotFoundError):
        if not stat.S_ISDIR(os.lstat(path).st_mode):
            os.unlink(path)
            return
    for folder in reversed(_folders_to_empty(path)):
        for entry in os.scandir(folder):
            if not entry.is_dir(follow_symlinks=False):
                with contextlib.suppress(OSError):
                    os.unlink(entry.path)
        with contextlib.suppress(OSError):  # What is mounted there stays.
            os.rmdir(folder)


def _folders_to_empty(path: str) -> list[str]:
    """The folder *path* and those below it, made writable, without what is mounted there."""
    mounts = mount_points()
    pending, folders = [path] if os.path.isdir(path) else [], []
    while pending:
        folder = pending.pop()
        if os.path.realpath(folder) in mounts:
            continue
        folders.append(folder)
        with contextlib.suppress(OSError):
            os.chmod(folder, 0o700)
            entries = list(os.scandir(folder))
            pending += [each.path for each in entries if each.is_dir(follow_symlinks=False)]
    return folders


# Some facts about the names there. torch calls a segment torch_<pid>_..., after the process that
# made it, and unlinks it once it is received; never, if one of the two exits before. sem_open(3) of
# glibc writes a semaphore to sem.XXXXXX, and links that to its final name. That is sem.mp-XXXXXXXX
# for multiprocessing, which unlinks it at once, or has its resource tracker do so; once joblib is
# imported, which patches multiprocessing, it is sem.loky-<pid>-XXXXXXXX. A process that is killed
# in between leaves the one or the other, which does not show whose it was.
#
# A write lease (F_SETLEASE, fcntl(2)) is granted only on a file that no other process has open or
# mapped, whatever namespace those are in. A semaphore that is not half made is mapped by the one
# who made it. So one that appeared meanwhile, that is this user's, and on which there can be a
# lease, is nobody's. Who opens the file in that moment waits; the holder of the lease gets a
# signal, SIGIO by default, which ends a process.


_FOLDER = "/dev/shm"
_SEMAPHORE = re.compile(r"sem\.(\w{6}|mp-\w{8}|loky-\d+-\w{8})")
_OF_TORCH = re.compile(r"torch_(\d+)_")


class SharedMemoryCleaner:
    """Removes the files of dead processes that were not there when this object was made."""

    def __init__(self) -> None:
        self._before = set(os.listdir(_FOLDER))

    def remove_segments(self, names: Iterable[str]) -> None:
        """Remove the shared memory *names* of dead processes."""
        for name in {*names} - self._before:
            with contextlib.suppress(OSError):
                os.unlink(os.path.join(_FOLDER, name))

    def remove(self, dead: Collection[int]) -> None:
        """Remove what the processes *dead* have left."""
        for name in set(os.listdir(_FOLDER)) - self._before:
            owner = _OF_TORCH.match(name)
            is_left = int(owner[1]) in dead if owner else _is_lost_semaphore(name)
            if is_left:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(os.path.join(_FOLDER, name))


def _is_lost_semaphore(name: str) -> bool:
    if not _SEMAPHORE.fullmatch(name):
        return False
    with contextlib.suppress(OSError):  # It was removed, is another user's, or is in use.
        fd = os.open(os.path.join(_FOLDER, name), os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            if os.fstat(fd).st_uid == os.geteuid():
                fcntl.fcntl(fd, fcntl.F_SETSIG, signal.SIGURG)  # That one does nothing.
                fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_WRLCK)
                return True
        finally:
            os.close(fd)
    return False


_LONGEST_TEXT = 1 << 30
"""Bytes; a process of the user's can make a file of a trial larger than any memory."""


class AnonymousFile:
    """Each process that has it writes at its end. Closed by ``close``, and at exec(2).

    Its memory goes with the last process that has it open.
    """

    def __init__(self, name: str) -> None:
        self.fd = os.memfd_create(f"pytest-dataloader-faults-{name}", os.MFD_CLOEXEC)
        fcntl.fcntl(self.fd, fcntl.F_SETFL, os.O_APPEND)
        self.owned = OwnedDescriptor(self.fd)

    @property
    def size(self) -> int:
        """How many bytes are in it."""
        return os.fstat(self.owned.require()).st_size

    def text(self, max_bytes: int | None = None) -> str:
        """The whole text, or its last *max_bytes* bytes.

        Raises:
            HarnessError: The whole text was requested, and cannot be what was written.
        """
        size = self.size
        if max_bytes is None and size > _LONGEST_TEXT:
            raise HarnessError(f"a file of a trial was overwritten: its size is {size} B")
        start = 0 if max_bytes is None else max(0, size - max_bytes)
        return os.pread(self.fd, size - start, start).decode(errors="replace")

    def close(self) -> None:
        self.owned.close()


class SharedNote:
    """A short text, shared by the process that makes the note and those that are forked from it.

    It does not need a descriptor, which the user's code could close.
    """

    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, mmap.PAGESIZE)

    @property
    def text(self) -> str:
        return self._memory[:].rstrip(b"\0").decode(errors="replace")

    def write(self, text: str) -> None:
        data = text.encode(errors="replace")[: mmap.PAGESIZE]
        self._memory[: len(data)] = data


_NUMBER = struct.Struct("=Q")


class SharedCount:
    """Shared by the process that makes it and those that are forked from it."""

    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, _NUMBER.size)

    @property
    def value(self) -> int:
        value: int = _NUMBER.unpack(self._memory)[0]
        return value

    def add(self, count: int) -> None:
        """Of what several processes add at the same time, some may be lost."""
        self._memory[:] = _NUMBER.pack(self.value + count)
