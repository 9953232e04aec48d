"""The answers about an entry that a fault adds to a folder [runs in the supervisor].

Some facts about such an entry. It is an anonymous copy of another file, or of /dev/null, so open(2)
gets a descriptor of the copy, stat(2) the facts of the copy, and a listing its inode. All of them
agree, whichever process makes the call and by whichever path. Once the worker creates a file of
that name, the folder has one, and the kernel executes all calls again. So it does for calls that
rename, link or remove the entry, which fail with ENOENT, as if another job had removed it: they
would change the real folder.

Some facts about copying. shutil.copy2() and copytree() read the extended attributes of each file,
and programs such as cp also its owner and times. The copy has none of the former, as on most disks.
Others can be changed, as those of a file of the worker's own, for as long as the copy exists.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from pytest_dataloader_faults._engine.calls import Role
from pytest_dataloader_faults._engine.file_copies import FileCopies, FileEdit
from pytest_dataloader_faults._engine.kernel import caller, linux
from pytest_dataloader_faults._engine.kernel.caller import PathRequest, Syscall
from pytest_dataloader_faults._engine.kernel.syscalls import (
    LINK,
    REGULAR,
    UNKNOWN,
    Entry,
    write_stat,
)
from pytest_dataloader_faults._engine.plan import FaultCounter
from pytest_dataloader_faults._engine.policy import Operation
from pytest_dataloader_faults._engine.supervisor.answers.opens import return_fd
from pytest_dataloader_faults._engine.supervisor.answers.services import SupervisorServices
from pytest_dataloader_faults._engine.supervisor.worker_state import WorkerState
from pytest_dataloader_faults.faults import StrayEntry

_MODE, _NEW_MODES = 0o644, (0o777, 0o600)
"""What an entry has, and a copy that was just made in memory or on disk."""
_PERMISSIONS = 0o7777
_ATTRIBUTE_ERRNOS = {
    **dict.fromkeys(("getxattr", "lgetxattr", "removexattr", "lremovexattr"), errno.ENODATA),
    **dict.fromkeys(("setxattr", "lsetxattr"), errno.EOPNOTSUPP),
    **dict.fromkeys(("readlink", "readlinkat"), errno.EINVAL),
}
"""What a regular file without extended attributes answers."""
_TIMES_SIZE = 32
"""Of two struct timespec, in bytes."""
_NOTHING = "/dev/null"
_MOST_COPIED = 1 << 24
"""Bytes that an interrupted copy has at most."""


class _Stray(NamedTuple):
    """An entry by its *path*; *copy*: the descriptor of its content, which is not the caller's."""

    path: str
    copy: int


def add_entries(
    worker: WorkerState, operation: Operation, entries: list[Entry], copies: FileCopies
) -> list[Entry]:
    """*entries* of the folder that *operation* lists, with those that faults add to them."""
    names = {os.fsdecode(entry.name) for entry in entries}
    for counter in _counters_for_folder(worker, operation.path, operation.pid):
        stray = _find_stray(counter.fault, operation.path, entries, copies)
        name = os.path.basename(stray.path) if stray else ""
        if stray is None or name in names or not counter.reach():
            continue
        worker.policy.fire(counter, operation.call, stray.path, operation.pid)
        names.add(name)
        entry = Entry(os.fstat(stray.copy).st_ino, REGULAR, os.fsencode(name))
        middle = len(entries) // 2
        entries = [*entries[:middle], entry, *entries[middle:]]
    return entries


def _counters_for_folder(
    worker: WorkerState, folder: str, pid: int | None
) -> Iterator[FaultCounter[StrayEntry]]:
    """The faults that add an entry to *folder*; none if *pid* may not see the same folder."""
    counters = list(worker.faults.counters_for_path(StrayEntry, folder))
    if counters and pid is not None and not worker.identities.difference(pid):
        yield from counters


def _find_stray(
    fault: StrayEntry, folder: str, entries: Iterable[Entry], copies: FileCopies
) -> _Stray | None:
    """What *fault* adds to *folder*, which has these *entries*; None if it has no file to copy."""
    name, source, length = fault.name, _NOTHING, 0
    if fault.is_copy:
        source, length = _find_original(folder, entries)
        name = fault.entry_for(os.path.basename(source)) if source else ""
    if not name:
        return None
    path = os.path.join(folder, name)
    try:
        copy = copies.get_copy(path, FileEdit(length), source)
    except OSError:
        return None  # The original was removed meanwhile.
    if stat.S_IMODE(os.fstat(copy).st_mode) in _NEW_MODES:
        os.fchmod(copy, _MODE)
    return _Stray(path, copy)


def _find_original(folder: str, entries: Iterable[Entry]) -> tuple[str, int]:
    """The first visible file, if possible one with two bytes or more, and half of its size.

    Its path is "" if there is none.
    """
    names = (entry.name for entry in entries if entry.kind in (REGULAR, LINK, UNKNOWN))
    first = ""
    for name in sorted(name for name in names if not name.startswith(b".")):
        path = os.path.join(folder, os.fsdecode(name))
        half = _half_of(path)
        if half:
            return path, half
        if half is not None:
            first = first or path
    return first, 0


def _half_of(path: str) -> int | None:
    """Half of the size of the file; None if it is none, or cannot be read."""
    try:
        status = os.stat(path)
    except OSError:
        return None
    is_file = stat.S_ISREG(status.st_mode) and os.access(path, os.R_OK)
    return min(status.st_size // 2, _MOST_COPIED) if is_file else None


def on_stray(worker: WorkerState, call: Syscall, services: SupervisorServices) -> bool:
    """Answer a call that names an entry which a fault adds; False if it names something else."""
    if not any(worker.faults.counters_of_kind(StrayEntry)):
        return False
    is_open = call.facts.role is Role.OPENS
    try:
        request = caller.open_request(call) if is_open else caller.stat_request(call)
    except PermissionError:
        return False
    if request.is_descriptor or (is_open and request.flags & os.O_CREAT):
        return False
    if stray := _fire(worker, call, request.path, services.copies):
        if request.raw.endswith("/") or (is_open and request.flags & os.O_DIRECTORY):
            worker.listener.fail(call, errno.ENOTDIR)
        elif is_open:
            _open_stray(worker, call, request, stray)
        else:
            _answer_by_path(worker, call, stray)
        return True
    if _fire(worker, call, os.path.dirname(request.path), services.copies):
        worker.listener.fail(call, errno.ENOTDIR)
        return True
    return False


def _fire(worker: WorkerState, call: Syscall, path: str, copies: FileCopies) -> _Stray | None:
    """The entry that *path* is, if a fault adds it; the fault fires by that."""
    folder, name = os.path.split(path)
    counters = worker.faults.counters_of_kind(StrayEntry)
    if not any(_may_be_named(each.fault, name) for each in counters) or os.path.lexists(path):
        return None
    folder = os.path.realpath(folder)
    for counter in _counters_for_folder(worker, folder, call.pid):
        if _may_be_named(counter.fault, name):
            entries = _list_files(folder) if counter.fault.is_copy else ()
            stray = _find_stray(counter.fault, folder, entries, copies)
            if stray and os.path.basename(stray.path) == name and counter.reach():
                worker.policy.fire(counter, call.name, stray.path, call.pid)
                return stray
    return None


def _may_be_named(fault: StrayEntry, name: str) -> bool:
    """Whether *fault* could add an entry of that *name* to a folder."""
    return bool(fault.copy_of(name)) if fault.is_copy else name == fault.name


def _list_files(folder: str) -> Iterable[Entry]:
    """The files in *folder*."""
    try:
        with os.scandir(folder) as entries:
            names = [os.fsencode(entry.name) for entry in entries if entry.is_file()]
    except OSError:
        return ()
    return [Entry(0, REGULAR, name) for name in names]


def _open_stray(worker: WorkerState, call: Syscall, request: PathRequest, stray: _Stray) -> None:
    worker.policy.count(stray.path, "opens")
    flags = request.flags & (os.O_ACCMODE | os.O_APPEND | os.O_TRUNC)
    source = os.open(f"/proc/self/fd/{stray.copy}", flags | os.O_CLOEXEC)
    return_fd(worker, call, source, request.flags)


def _answer_by_path(worker: WorkerState, call: Syscall, stray: _Stray) -> None:
    """Answer a call that examines *stray*, or changes its attributes."""
    try:
        if call.facts.role is Role.ATTRIBUTES:
            _apply_attributes(call, stray.copy)
        elif call.facts.result_at is not None:
            write_stat(call, stray.copy, os.fstat(stray.copy).st_size)
        elif _argument_behind_path(call) & os.X_OK:
            raise PermissionError(errno.EACCES, "not executable")
    except OSError as error:
        worker.listener.fail(call, error.errno or 0)
    else:
        worker.listener.return_value(call, 0)


def _apply_attributes(call: Syscall, copy: int) -> None:
    """Do to *copy* what *call* does to the file by its path; OSError if it fails."""
    argument = _argument_behind_path(call)
    if call.name in _ATTRIBUTE_ERRNOS:
        number = _ATTRIBUTE_ERRNOS[call.name]
        raise OSError(number, os.strerror(number))
    if call.name in ("chmod", "fchmodat"):
        os.fchmod(copy, argument & _PERMISSIONS)
    elif call.name in ("chown", "lchown", "fchownat"):
        os.fchown(
            copy, caller.to_signed(argument), caller.to_signed(_argument_behind_path(call, 2))
        )
    elif call.name == "utimensat":
        times = linux.read_memory(call.pid, argument, _TIMES_SIZE) if argument else None
        linux.raw_call("utimensat", copy, None, times, 0)


def _argument_behind_path(call: Syscall, distance: int = 1) -> int:
    """An argument after the path, such as what an access(2) asks for."""
    assert call.facts.path_at is not None
    return call.arguments[call.facts.path_at + distance]
