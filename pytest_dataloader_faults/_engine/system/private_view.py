"""A private copy of folders, for one process and those that it starts.

Some facts about such a view. In mounts of its own (mount_namespaces(7)) a process can put an
overlay over a folder: what is below is read from the folder, and what is written, renamed or
removed goes to another place (Documentation/filesystems/overlayfs.rst). Paths, links, locks and
mappings are as before, for code in C, too. No other process sees any of it, and it ends with the
last process that does. To mount takes CAP_SYS_ADMIN, which an ordinary user has in a user namespace
of its own (user_namespaces(7)). There it must ask for "userxattr", and whoever has that capability
may also open what file modes forbid: so it is dropped at once. Containers often forbid all of it.

The merged folder has the owner and the mode of the upper one. What is mounted below the lower
folder is not part of the overlay. The overlay keeps what it needs of the upper file system, which
can be unmounted then, so that its mount point can be removed. A process whose working directory is
the folder has it still, and not the overlay, until it looks up the path again.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import re
import shutil
import struct
from collections.abc import Iterator
from typing import NamedTuple

from pytest_dataloader_faults._engine.system.libc import check, libc

_NEW_MOUNTS, _NEW_USERS = 0x20000, 0x10000000
_RECURSIVE, _PRIVATE = 0x4000, 1 << 18
_DETACHED = 2
_EVERY_USER = "0 0 4294967295"
_CAPABILITIES_V3 = 0x20080522
_ESCAPED = re.compile(rb"\\([0-7]{3})")
"""A space in a path, say, is written as \\040 in /proc/self/mountinfo."""
_MOUNT_POINT = 4
"""Which field of a line there it is, from 0; see proc_pid_mountinfo(5)."""


class PrivateView(NamedTuple):
    """What a process sees in place of *folders*: a copy of each, without the paths *removed*."""

    folders: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()


NO_VIEW = PrivateView()


def enter(view: PrivateView, scratch: str) -> None:
    """Have this process, and those that it will start, see *view*.

    *scratch*: an empty folder, under which the changes lie in memory. The process must have one
    thread. Raises OSError where the view cannot be had.
    """
    for folder in view.folders:
        _require_no_mount_below(folder)
    made_users = _get_own_mounts()
    _mount("none", "/", None, _RECURSIVE | _PRIVATE)
    _mount("tmpfs", scratch, "tmpfs", 0, "mode=700")
    options = ["userxattr"] if _has_own_users() else []
    for number, folder in enumerate(view.folders):
        _cover(folder, os.path.join(scratch, str(number)), *options)
    for path in view.removed:
        _remove(path)
    check(libc.umount2(os.fsencode(scratch), _DETACHED), "umount2", scratch)
    with contextlib.suppress(FileNotFoundError):
        os.chdir(os.getcwd())
    if made_users:
        _drop_capabilities()


def _require_no_mount_below(folder: str) -> None:
    below = os.path.join(os.path.realpath(folder), "")
    for point in _mount_points():
        if point.startswith(below):
            raise OSError(errno.EBUSY, f"{point} is mounted there", folder)


def _mount_points() -> Iterator[str]:
    with open("/proc/self/mountinfo", "rb") as mounts:
        for line in mounts:
            yield os.fsdecode(_ESCAPED.sub(_unescaped, line.split()[_MOUNT_POINT]))


def _unescaped(found: re.Match[bytes]) -> bytes:
    return bytes([int(found[1], 8)])


def _get_own_mounts() -> bool:
    """Leave the mounts of the other processes; whether that took a user namespace."""
    user, group = os.geteuid(), os.getegid()
    with contextlib.suppress(PermissionError):
        _unshare(_NEW_MOUNTS)
        return False
    _unshare(_NEW_MOUNTS | _NEW_USERS)
    mappings = {"setgroups": "deny", "uid_map": f"{user} {user} 1", "gid_map": f"{group} {group} 1"}
    for name, text in mappings.items():
        with open(f"/proc/self/{name}", "wb") as file:
            file.write(text.encode())
    return True


def _has_own_users() -> bool:
    """Whether this process is in a user namespace of its own, which it may have been before."""
    with open("/proc/self/uid_map", "rb") as file:
        return file.read().decode().split() != _EVERY_USER.split()


def _cover(folder: str, changes: str, *options: str) -> None:
    upper, work = os.path.join(changes, "upper"), os.path.join(changes, "work")
    os.makedirs(upper)
    os.mkdir(work)
    found = os.stat(folder)
    with contextlib.suppress(OSError):  # The owner has no number in this user namespace.
        os.chown(upper, found.st_uid, found.st_gid)
    os.chmod(upper, found.st_mode & 0o7777)
    # By their numbers, since a path can have a comma or a colon in it.
    places = {"lowerdir": folder, "upperdir": upper, "workdir": work}
    opened = {name: os.open(path, os.O_PATH | os.O_CLOEXEC) for name, path in places.items()}
    try:
        given = (f"{name}=/proc/self/fd/{fd}" for name, fd in opened.items())
        _mount("overlay", folder, "overlay", 0, ",".join((*given, *options)))
    finally:
        for fd in opened.values():
            os.close(fd)


def _remove(path: str) -> None:
    try:
        if os.path.isdir(path) and not os.path.islink(path):
            shutil.rmtree(path)
        else:
            os.unlink(path)
    except FileNotFoundError:
        return
    except OSError as error:  # Of a folder's entry, it has the name only.
        raise OSError(error.errno, f"remove: {os.strerror(error.errno or 0)}", path) from error


def _unshare(flags: int) -> None:
    check(libc.unshare(flags), "unshare")


def _mount(source: str, target: str, kind: str | None, flags: int, options: str = "") -> None:
    given = (os.fsencode(source), os.fsencode(target), kind and kind.encode())
    result = libc.mount(*given, ctypes.c_ulong(flags), options.encode() or None)
    check(result, f"mount of {kind}", target)


def _drop_capabilities() -> None:
    nothing = struct.pack("=6I", *(0,) * 6)
    header = ctypes.create_string_buffer(struct.pack("=Ii", _CAPABILITIES_V3, 0))
    check(libc.capset(header, ctypes.create_string_buffer(nothing)), "capset")
