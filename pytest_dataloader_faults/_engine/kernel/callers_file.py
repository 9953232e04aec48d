"""Find and open a file as the caller of a system call would [runs in the supervisor].

Some facts about a path that one process opens for another. Relative paths begin at the caller's
folders, which /proc/PID/cwd and /proc/PID/fd give, whatever became of their names. /proc/self is
the process that looks, and the links in /proc/PID ("magic links", proc(5)) lead to what only that
process has, so behind a symbolic link either of them would give something of the supervisor's.
openat2(2) with RESOLVE_NO_MAGICLINKS refuses the latter, and a file of procfs itself is known by
its file system. What lies under a name can change between two looks, into a FIFO even, whose
open(2) waits for a writer. A descriptor made with O_PATH neither waits nor needs any right to the
file. It pins the file, and open(2) of its link in /proc/self/fd opens that very file, with the same
checks of rights as by its name.

A seccomp filter of a container may know no openat2(2) and refuse it with ENOSYS or EPERM. Magic
links are then followed as the supervisor's own.
"""

from __future__ import annotations

import errno
import functools
import os
import stat
from typing import NamedTuple

from pytest_dataloader_faults._engine.kernel import linux
from pytest_dataloader_faults._engine.kernel.caller import PathRequest, Syscall, folder_link
from pytest_dataloader_faults._engine.system import proc

_LOOKUP = os.O_NOFOLLOW | os.O_DIRECTORY
_REFUSED = (errno.ENOSYS, errno.EPERM)


class MagicLinkError(Exception):
    """A link of /proc is on the way, which leads elsewhere for each process."""


class OpenedFile(NamedTuple):
    """The size of a file, None if there is none; *source*: a descriptor of it, if one was made."""

    size: int | None
    source: int | None


def opened(call: Syscall, wanted: PathRequest, *, content: bool) -> OpenedFile | None:
    """The file that *wanted* is; None if it is no file of data. *content*: open it, too.

    Raises MagicLinkError, or the OSError that the caller would get. What the caller may not open
    counts as no file.
    """
    try:
        pin = pinned(call, wanted)
    except FileNotFoundError as error:
        if os.path.realpath(wanted.raw).startswith(f"/proc/{os.getpid()}/"):
            raise MagicLinkError from error
        return OpenedFile(None, None)
    try:
        size = data_size(pin)
        if size is None or not content:
            return None if size is None else OpenedFile(size, None)
        return OpenedFile(size, _open_pinned(pin, wanted.flags))
    except PermissionError:
        return OpenedFile(None, None)
    finally:
        os.close(pin)


def pinned(call: Syscall, wanted: PathRequest) -> int:
    """A descriptor of what *wanted* names, which only pins it (O_PATH)."""
    flags = wanted.flags & _LOOKUP | os.O_PATH | os.O_CLOEXEC
    if wanted.is_descriptor:
        return os.open(wanted.raw, flags)
    if wanted.name.startswith(b"/"):
        return _looked_up(None, wanted, flags)
    folder = os.open(folder_link(call), os.O_PATH | os.O_CLOEXEC)
    try:
        return _looked_up(folder, wanted, flags)
    finally:
        os.close(folder)


def _looked_up(folder: int | None, wanted: PathRequest, flags: int) -> int:
    start = linux.AT_FDCWD if folder is None else folder
    resolve = wanted.resolve | linux.RESOLVE_NO_MAGICLINKS
    try:
        return linux.openat2(start, wanted.name, flags, resolve)
    except OSError as error:
        if error.errno == errno.ELOOP and wanted.resolve == 0 and not _is_endless(wanted.raw):
            raise MagicLinkError from error
        if error.errno not in _REFUSED or wanted.resolve:
            raise
        return os.open(wanted.name, flags, dir_fd=folder)


def _is_endless(path: str) -> bool:
    """Whether too many symbolic links are on the way, for a process that follows them."""
    try:
        os.stat(path)
    except OSError as error:
        return error.errno == errno.ELOOP
    return False


def data_size(pin: int) -> int | None:
    """The size of a regular file that is the same for all processes; None for anything else."""
    found = os.fstat(pin)
    if not stat.S_ISREG(found.st_mode) or (not found.st_size and linux.is_on_procfs(pin)):
        return None
    return found.st_size


def _open_pinned(pin: int, flags: int) -> int:
    kept = flags & ~(_LOOKUP | os.O_CREAT)
    return os.open(f"/proc/self/fd/{pin}", kept | os.O_CLOEXEC | os.O_NOCTTY)


# Some facts about what a path means. The kernel looks it up from the caller's root folder
# (chroot(2)) in the caller's mounts (mount_namespaces(7)), and opens what is there if the caller's
# file system ids, groups and capabilities allow it (credentials(7), path_resolution(7)). So the
# same path may give the supervisor another file, or one that the caller must not read.
# /proc/PID/root, ns and status show all of that, if the supervisor may look at them (ptrace(2),
# "access mode checking"); to read them takes longer than an open(2) with all that is done about
# it. But only a few system calls can change it (``Role.CHANGES_IDENTITY``), and those are handed
# over. So one look suffices until such a call is made.


INVISIBLE = "by a process that the supervisor may not look at"
_ELSEWHERE = "with another root folder or other mounts"
_OTHER_RIGHTS = "as another user, in other groups or with other capabilities"
_FOR_FILES = 0b1110
"""CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH and CAP_FOWNER: those that let open(2) pass."""


class _Identity(NamedTuple):
    place: tuple[str, ...]
    rights: tuple[object, ...]


class Identities:
    """The identities of a worker and its descendants, beside the supervisor's own."""

    def __init__(self) -> None:
        self._may_differ = True
        self._changed = False

    def note_change(self, call: Syscall) -> None:
        """*call*, which may change one, is about to be made."""
        self._changed = self._changed or call.name != "clone3" or _makes_namespaces(call)

    def difference(self, pid: int) -> str | None:
        """How *pid* opens files unlike the supervisor, in words; None if it does not."""
        if not self._may_differ and not self._changed:
            return None
        difference = _difference(pid)
        self._may_differ = difference is not None
        return difference


def _makes_namespaces(call: Syscall) -> bool:
    try:
        flags = int.from_bytes(linux.read_memory(call.pid, call.arguments[0], 8), "little")
    except OSError:  # The kernel refuses the call, or the supervisor may not look at the caller.
        return True
    return bool(flags & (linux.CLONE_NEWNS | linux.CLONE_NEWUSER))


def _difference(pid: int) -> str | None:
    try:
        theirs = _identity_of(pid)
    except PermissionError:
        return INVISIBLE
    if theirs.place != _ours().place:
        return _ELSEWHERE
    return _OTHER_RIGHTS if theirs.rights != _ours().rights else None


@functools.cache
def _ours() -> _Identity:
    return _identity_of("self")


def _identity_of(pid: proc.Pid) -> _Identity:
    found = proc.status(pid)
    root, mounts, users = (proc.link(pid, name) for name in ("root", "ns/mnt", "ns/user"))
    capabilities = found.capabilities & _FOR_FILES
    return _Identity((root, mounts), (found.user, found.group, found.groups, capabilities, users))
