"""Find and open a file as the caller of a system call would [runs in the supervisor].

Some facts about a path that one process opens for another. Relative paths start at the caller's
folders, which /proc/PID/cwd and /proc/PID/fd lead to, whatever became of their names. /proc/self is
the process that looks, and the links in /proc/PID ("magic links", proc(5)) lead to what only that
process has, so behind a symbolic link, either of them would lead to something of the supervisor's.
openat2(2) with RESOLVE_NO_MAGICLINKS refuses the latter, and a file of procfs itself is known by
its file system. The file under a name can change between two calls, even into a FIFO, whose open(2)
waits for a writer. A descriptor made with O_PATH neither waits nor needs any right to the file. It
pins the file, and open(2) of its link in /proc/self/fd opens that very file, with the same checks
of rights as by its name.

A container's seccomp filter may refuse openat2(2) with ENOSYS or EPERM. In that case magic links
are followed as the supervisor's own.
"""

from __future__ import annotations

import errno
import functools
import os
import stat
from typing import NamedTuple

from pytest_dataloader_faults._engine.kernel import linux
from pytest_dataloader_faults._engine.kernel.caller import (
    BadSyscallError,
    PathRequest,
    Syscall,
    folder_link,
)
from pytest_dataloader_faults._engine.system import proc
from pytest_dataloader_faults.faults.base import MAX_NAME

_LOOKUP = os.O_NOFOLLOW | os.O_DIRECTORY
_REFUSED = (errno.ENOSYS, errno.EPERM)
_MOST_LINKS = 40


class MagicLinkError(Exception):
    """A link of /proc is on the way, which leads elsewhere for each process."""


class OpenedFile(NamedTuple):
    """The size of a file, None if there is none; *source*: a descriptor of it, if one was made."""

    size: int | None
    source: int | None


def open_for_caller(call: Syscall, request: PathRequest, *, content: bool) -> OpenedFile | None:
    """The file of *request*; None if it is not a data file. *content*: open it as well.

    Raises MagicLinkError, or the OSError that the caller would get. A file that the caller may not
    open counts as not a data file.
    """
    try:
        pin = pin_file(call, request)
    except FileNotFoundError as error:
        if os.path.realpath(request.raw).startswith(f"/proc/{os.getpid()}/"):
            raise MagicLinkError from error
        return OpenedFile(None, None)
    try:
        size = data_size(pin)
        if size is None or not content:
            return None if size is None else OpenedFile(size, None)
        return OpenedFile(size, _open_pinned(pin, request.flags))
    except PermissionError:
        return OpenedFile(None, None)
    finally:
        os.close(pin)


def pin_file(call: Syscall, request: PathRequest) -> int:
    """A descriptor of what *request* names, which only pins it (O_PATH)."""
    flags = request.flags & _LOOKUP | os.O_PATH | os.O_CLOEXEC
    if request.is_descriptor:
        return os.open(request.raw, flags)
    if request.name.startswith(b"/"):
        return _look_up(None, request, flags)
    folder = os.open(folder_link(call), os.O_PATH | os.O_CLOEXEC)
    try:
        return _look_up(folder, request, flags)
    finally:
        os.close(folder)


def _look_up(folder: int | None, request: PathRequest, flags: int) -> int:
    start = linux.AT_FDCWD if folder is None else folder
    resolve = request.resolve | linux.RESOLVE_NO_MAGICLINKS
    try:
        return linux.openat2(start, request.name, flags, resolve)
    except OSError as error:
        if error.errno == errno.ELOOP and request.resolve == 0 and not _is_endless(request.raw):
            raise MagicLinkError from error
        if error.errno not in _REFUSED or request.resolve:
            raise
        return os.open(request.name, flags, dir_fd=folder)


def walk(start: str, name: str, root: str, thread: int, *, follows: bool) -> str:
    """The path that *name* leads the caller to from *start*, without links.

    A link of /proc to "self" means the caller's process, and an absolute link starts at its *root*.
    """
    path, names, links = start, name.rstrip("/").split("/")[::-1], 0
    while names:
        part = names.pop()
        if part in ("", "."):
            continue
        if len(os.fsencode(part)) > MAX_NAME:
            raise BadSyscallError
        path = os.path.dirname(path) if part == ".." else os.path.join(path, part)
        if path == "/proc/self":
            path = f"/proc/{proc.status(thread).process}"
        elif path == "/proc/thread-self":
            path = f"/proc/{proc.status(thread).process}/task/{thread}"
        elif (names or follows) and os.path.islink(path):
            links += 1
            if links > _MOST_LINKS:
                raise BadSyscallError
            target = os.readlink(path)
            names += target.rstrip("/").split("/")[::-1]
            path = root if target.startswith("/") else os.path.dirname(path)
    return path


def _is_endless(path: str) -> bool:
    """Whether too many symbolic links are on the way, for a process that follows them."""
    try:
        os.stat(path)
    except OSError as error:
        return error.errno == errno.ELOOP
    return False


def data_size(pin: int) -> int | None:
    """The size of a regular file that is the same for all processes; None for anything else."""
    status = os.fstat(pin)
    if not stat.S_ISREG(status.st_mode) or (not status.st_size and linux.is_on_procfs(pin)):
        return None
    return status.st_size


def _open_pinned(pin: int, flags: int) -> int:
    open_flags = flags & ~(_LOOKUP | os.O_CREAT)
    return os.open(f"/proc/self/fd/{pin}", open_flags | os.O_CLOEXEC | os.O_NOCTTY)


# Some facts about what a path means. The kernel looks it up from the caller's root folder
# (chroot(2)) in the caller's mounts (mount_namespaces(7)), and opens what is there if the caller's
# file system ids, groups and capabilities allow it (credentials(7), path_resolution(7)). So the
# same path may give the supervisor another file, or one that the caller must not read.
# /proc/PID/root, ns and status show all of that, if the supervisor may read them (ptrace(2),
# "access mode checking"); to read them takes longer than an open(2) with all that is done about it.
# But only a few system calls can change it (``Role.CHANGES_IDENTITY``), and the filter notifies of
# those. So reading once suffices until such a call is made.


INVISIBLE = "by a process that the supervisor may not inspect"
_ELSEWHERE = "with a different root folder or different mounts"
_OTHER_RIGHTS = "as a different user, or with different groups or capabilities"
_FOR_FILES = 0b1110
"""CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH and CAP_FOWNER: those that let open(2) pass."""


class _Identity(NamedTuple):
    place: tuple[str, ...]
    rights: tuple[object, ...]


class Identities:
    """The identities of a worker and its descendants, compared with the supervisor's own."""

    def __init__(self) -> None:
        self._may_differ = True
        self._changed = False

    def note_change(self) -> None:
        """A call that may change one is about to be made."""
        self._changed = True

    def difference(self, pid: int) -> str | None:
        """How *pid* opens files unlike the supervisor, as text; None if it does not."""
        if not self._may_differ and not self._changed:
            return None
        difference = _difference(pid)
        self._may_differ = difference is not None
        return difference


def _difference(pid: int) -> str | None:
    try:
        theirs = _identity_of(pid)
    except PermissionError:
        return INVISIBLE
    if theirs.place != _own_identity().place:
        return _ELSEWHERE
    return _OTHER_RIGHTS if theirs.rights != _own_identity().rights else None


@functools.cache
def _own_identity() -> _Identity:
    return _identity_of("self")


def _identity_of(pid: proc.Pid) -> _Identity:
    status = proc.status(pid)
    root, mounts, users = (proc.link(pid, name) for name in ("root", "ns/mnt", "ns/user"))
    capabilities = status.capabilities & _FOR_FILES
    return _Identity(
        (root, mounts), (status.user, status.group, status.groups, capabilities, users)
    )
