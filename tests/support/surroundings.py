"""A machine that lacks something: limits and file systems that only one process sees."""

import ctypes
import errno
import os
import resource
import subprocess
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import NoReturn

from support.children import in_a_process

_NEWNS = 0x00020000
_SET_DUMPABLE, _SET_KEEPCAPS = 4, 8
_CAPABILITIES = 0x20080522  # The version of capset(2)'s structures.
_READ_ALL = 1 << 1 | 1 << 2  # CAP_DAC_OVERRIDE and CAP_DAC_READ_SEARCH.
SOMEBODY = 54321
"""A user without other processes."""


def refuse_duplicate(_pid: int, _fd: int) -> NoReturn:
    """What comes of pidfd_getfd(2) in a container of Docker."""
    raise PermissionError(errno.EPERM, "pidfd_getfd: Operation not permitted")


def traceback_under(body: Callable[[], object], prepare: Callable[[], object]) -> str:
    """The traceback of *body* in its own process, after *prepare*; "" if there is none."""

    def both() -> None:
        prepare()
        body()

    return in_a_process(both)


def mount_tmpfs(mounts: Mapping[str, str]) -> Callable[[], None]:
    """Mount a fresh tmpfs, with these options, over each folder."""
    return partial(_mount, mounts)


def mount_overlay(folder: Path) -> Callable[[], None]:
    """Mount ``merged`` in *folder*: what is in ``lower`` there, with changes in another folder."""
    return partial(_mount_overlay, folder)


def with_processes(limit: int) -> Callable[[], None]:
    """Be a user with this many processes, including threads; root is not limited."""
    return partial(_be_somebody, limit)


def mounts_are_refused() -> str:
    """Why this machine lets nobody mount; "" where it does."""
    return traceback_under(lambda: None, mount_tmpfs({"/dev/shm": "size=1m"}))[-300:]


def _mount(mounts: Mapping[str, str]) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(_NEWNS):
        raise OSError(ctypes.get_errno(), "unshare")
    _do("mount --make-rprivate /")
    for folder, options in mounts.items():
        _do(f"mount -t tmpfs -o {options} tmpfs {folder}")


def _mount_overlay(folder: Path) -> None:
    _mount({})
    for name in ("merged", "upper", "work"):
        (folder / name).mkdir()
    layers = f"lowerdir={folder}/lower,upperdir={folder}/upper,workdir={folder}/work"
    _do(f"mount -t overlay -o {layers} overlay {folder}/merged")


def _do(command: str) -> None:
    subprocess.run(["/bin/sh", "-c", command], check=True)


def _be_somebody(limit: int) -> None:
    """And still read every file, since Python may be at home where only root is.

    A process that changes its user without exec(2) may not even inspect itself, unless it says so.
    """
    libc = ctypes.CDLL(None)
    resource.setrlimit(resource.RLIMIT_NPROC, (limit, limit))
    libc.prctl(_SET_KEEPCAPS, 1, 0, 0, 0)
    os.setgroups([])
    os.setgid(SOMEBODY)
    os.setuid(SOMEBODY)
    header, data = (ctypes.c_uint * 2)(_CAPABILITIES, 0), (ctypes.c_uint * 6)(_READ_ALL, _READ_ALL)
    assert libc.capset(header, data) == 0
    libc.prctl(_SET_DUMPABLE, 1, 0, 0, 0)
