"""Files that were open before the replacements came [runs in the worker].

Functions of ``os`` that are given their numbers are replaced and see them. File objects and
mappings made earlier are not: reads by them go unseen, which is told.
"""

from __future__ import annotations

import os

from pytest_dataloader_faults._engine._brought import held_files, mapped_files
from pytest_dataloader_faults._engine._python._acts import Closed, Stranger, Substitute
from pytest_dataloader_faults._engine._python._files import Files
from pytest_dataloader_faults._engine._python._stand_in import altered_copy, stranger


def take_over(files: Files) -> None:
    """Close, exchange and follow what is open already, where the system can list it."""
    decide = files.decide
    for fd, path in _held(files):
        if not _exchange(files, fd, path):
            continue
        files.follow(fd, path)
        if decide.judges_reads(path):
            decide.unreached("inherited descriptor")
    for path in sorted(_mapped()):
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


def _held(files: Files) -> list[tuple[int, str]]:
    try:
        return list(held_files(lambda path: not files.decide.leaves_alone(path)))
    except OSError:  # There is no /proc.
        return []


def _mapped() -> set[str]:
    try:
        return {each.path for each in mapped_files()}
    except OSError:
        return set()
