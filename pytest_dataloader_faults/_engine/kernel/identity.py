"""Whether a path means to another process what it means here [runs in the supervisor].

Some facts about what a path means. The kernel looks it up from the caller's root folder (chroot(2))
in the caller's mounts (mount_namespaces(7)), and opens what is there if the caller's file system
ids, groups and capabilities allow it (credentials(7), path_resolution(7)). So the same path may
give the supervisor another file, or one that the caller must not read. /proc/PID/root, ns and
status show all of that, if the supervisor may look at them (ptrace(2), "access mode checking"); to
read them takes longer than an open(2) with all that is done about it. But only a few system calls
can change it (``Role.CHANGES_IDENTITY``), and those are handed over. So one look suffices until
such a call is made.
"""

from __future__ import annotations

import functools
import os
import re
from typing import NamedTuple

from pytest_dataloader_faults._engine.kernel import linux
from pytest_dataloader_faults._engine.kernel.remote_process import Syscall

INVISIBLE = "by a process that the supervisor may not look at"
_ELSEWHERE = "with another root folder or other mounts"
_OTHER_RIGHTS = "as another user, in other groups or with other capabilities"
_RIGHTS = re.compile(rb"^(Uid|Gid|Groups|CapEff):\t(.*)$", re.MULTILINE)
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
        theirs = _identity_of(str(pid))
    except PermissionError:
        return INVISIBLE
    if theirs.place != _ours().place:
        return _ELSEWHERE
    return _OTHER_RIGHTS if theirs.rights != _ours().rights else None


@functools.cache
def _ours() -> _Identity:
    return _identity_of("self")


def _identity_of(pid: str) -> _Identity:
    with open(f"/proc/{pid}/status", "rb") as file:
        found = dict(_RIGHTS.findall(file.read()))
    user, group = (found[name].split()[3] for name in (b"Uid", b"Gid"))  # Those of file systems.
    groups = frozenset(found[b"Groups"].split())
    capabilities = int(found[b"CapEff"], 16) & _FOR_FILES
    root, mounts, users = (os.readlink(f"/proc/{pid}/{name}") for name in _LINKS)
    return _Identity((root, mounts), (user, group, groups, capabilities, users))


_LINKS = ("root", "ns/mnt", "ns/user")
