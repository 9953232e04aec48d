"""Files that were open before the replacements came [runs in the worker].

Functions of ``os`` that are given their numbers are replaced and see them. File objects and
mappings made earlier are not: reads by them go unseen, which is told.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator

from pytest_dataloader_faults._engine._python._acts import Closed, Stranger, Substitute
from pytest_dataloader_faults._engine._python._files import Files
from pytest_dataloader_faults._engine._python._stand_in import altered_copy, stranger

_STANDARD_STREAMS = (0, 1, 2)


def take_over(files: Files) -> None:
    """Close, exchange and follow what is open already, where the system can list it."""
    decide = files.decide
    for fd, path in _held(files):
        if decide.leaves_alone(path) or not _exchange(files, fd, path):
            continue
        files.follow(fd, path)
        if decide.judges_reads(path):
            decide.unreached("inherited descriptor")
    for path in _mapped():
        if decide.means(path) or (not decide.leaves_alone(path) and decide.judges_reads(path)):
            decide.unreached("inherited mapping")


def _exchange(files: Files, fd: int, path: str) -> bool:
    """Whether *fd* is open after that."""
    system = files.system
    for act in files.decide.inherited(path, system.fstat(fd).st_size):
        if isinstance(act, Closed):
            system.close(fd)
            return False
        name = f"/proc/self/fd/{fd}"
        if isinstance(act, Stranger):
            _replace(files, fd, stranger(system, name, os.O_RDONLY))
        if isinstance(act, Substitute):
            other = altered_copy(system, path, act.alteration, os.O_RDONLY, source=name)
            _replace(files, fd, other)
    return True


def _replace(files: Files, fd: int, other: int) -> None:
    """Make *fd* the file of *other*, at the same place in it."""
    system = files.system
    system.lseek(other, system.lseek(fd, 0, os.SEEK_CUR), os.SEEK_SET)
    system.dup2(other, fd, system.get_inheritable(fd))
    system.close(other)


def _held(files: Files) -> Iterator[tuple[int, str]]:
    system = files.system
    try:
        names = system.listdir("/proc/self/fd")
    except OSError:
        return
    for fd in sorted(map(int, names)):
        try:
            path = system.readlink(f"/proc/self/fd/{fd}")
            regular = stat.S_ISREG(system.fstat(fd).st_mode)
        except OSError:  # The one that listed the folder.
            continue
        if fd in _STANDARD_STREAMS or path.endswith(" (deleted)"):
            continue  # Where a test's output goes is no dataset's, and the other has no name.
        if regular and path.startswith("/"):
            yield fd, path


def _mapped() -> set[str]:
    try:
        with open("/proc/self/maps", encoding="utf-8", errors="surrogateescape") as lines:
            paths = {line.rstrip("\n").split(maxsplit=5)[-1] for line in lines}
    except OSError:
        return set()
    return {path for path in paths if path.startswith("/")}
