"""Whether a process opens files as the supervisor does [runs in the supervisor].

Some facts about what a path means. The kernel looks it up from the caller's root folder (chroot(2))
in the caller's mounts (mount_namespaces(7)), and opens what is there if the caller's file system
ids, groups and capabilities allow it (credentials(7), path_resolution(7)). So the same path may
mean another file to the supervisor, or one that the caller must not read. /proc/PID/root, ns and
status show all of that, if the supervisor may read them (ptrace(2), "access mode checking"); to
read them takes longer than an open(2) with all that is done about it. But only a few system calls
can change it (``Role.CHANGES_IDENTITY``), and the filter notifies of those. So reading once
suffices until such a call is made.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

from pytest_dataloader_faults._engine.system import proc

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
