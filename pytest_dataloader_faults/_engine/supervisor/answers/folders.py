"""The answers about what a folder contains [runs in the supervisor]."""

from __future__ import annotations

import contextlib
import errno
import os
import random
import stat
from collections.abc import Iterator
from typing import NamedTuple

from pytest_dataloader_faults import faults
from pytest_dataloader_faults._engine.file_copies import FileCopies, FileEdit
from pytest_dataloader_faults._engine.kernel import caller, syscalls
from pytest_dataloader_faults._engine.kernel.caller import PathRequest, Syscall
from pytest_dataloader_faults._engine.kernel.calls import Role
from pytest_dataloader_faults._engine.plan import FaultCounter, Operation
from pytest_dataloader_faults._engine.supervisor.answers.workers import SupervisorServices
from pytest_dataloader_faults._engine.supervisor.worker_state import WorkerState
from pytest_dataloader_faults._engine.system import proc

# Some facts about a listing. It takes one call for a few hundred entries, and one more that returns
# none. What a fault changes is decided at the first call, at which the offset of the descriptor is
# 0. The entries are kept for the calls that follow, as the folder may change in between. The kernel
# keeps the number of the next entry, as the offset of the descriptor. Docker's profile refuses
# pidfd_getfd(2), by which we would set it: there, the worker gets a descriptor that we share.
#
# Some facts about an added entry. It is an anonymous copy of another file, or of /dev/null, so
# open(2) gets a descriptor of the copy, stat(2) the facts of the copy, and a listing its inode. All
# of them agree, whichever process makes the call and by whichever path. Once the worker creates a
# file of that name, the folder has one, and the kernel executes all calls again. So it does for
# calls that rename, link or remove the entry, which fail with ENOENT, as if another job had removed
# it: they would change the real folder.
#
# Some facts about copying. shutil.copy2() and copytree() read the extended attributes of each file,
# and programs such as cp also its owner and times. The copy has no extended attributes, as on most
# disks.


_DOTS = (b".", b"..")


def on_list(worker: WorkerState, call: Syscall, services: SupervisorServices) -> bool:
    """Answer a getdents64(2) whose entries a fault changes.

    False if the kernel should execute it.
    """
    number = caller.to_signed(call.arguments[0])
    try:
        is_first = proc.fd_info(number, call.pid).offset == 0
        path = worker.link_at(call.pid, number)
    except OSError:  # No descriptor: the kernel refuses it.
        return False
    if is_first:
        _forget(worker, (call.pid, number))
        if worker.is_exempt(path):
            return False
        operation = Operation(call.name, path, call.pid)
        worker.tallies["listings"][path] += 1
        if due := worker.fire_first_due(faults.ListingError, operation):
            worker.listener.fail(call, due.fault.errno)
            return True
        _begin(worker, call, operation, services.copies)
    entries = worker.listings.get((call.pid, number))
    if entries is not None:
        _return_entries(worker, call, entries)
    return entries is not None


def _begin(worker: WorkerState, call: Syscall, operation: Operation, copies: FileCopies) -> None:
    """Keep the entries of the folder if faults change them."""
    orders = list(worker.counters_for_path(faults.ListingOrder, operation.path))
    counters = worker.counters_of_kind(faults.OpenError)
    hiding = [counter for counter in counters if counter.fault.hides_file]
    strays = any(worker.counters_for_path(faults.StrayEntry, operation.path))
    if not orders and not hiding and not strays:
        return
    number = caller.to_signed(call.arguments[0])
    folder = os.open(f"/proc/{call.pid}/fd/{number}", os.O_RDONLY | os.O_DIRECTORY)
    try:
        entries = syscalls.read_entries(folder)
    finally:
        os.close(folder)
    changed = add_entries(worker, operation, entries, copies) if strays else entries
    changed = list(_remove_hidden(worker, operation, hiding, changed))
    for counter in orders:
        reordered = _reorder(counter.fault, operation.path, changed)
        if counter.reach() and reordered != changed:
            worker.fire(counter, *operation)
            changed = reordered
    if changed != entries:
        worker.listings[call.pid, number] = changed


def _remove_hidden(
    worker: WorkerState,
    operation: Operation,
    hiding: list[FaultCounter[faults.OpenError]],
    entries: list[syscalls.Entry],
) -> Iterator[syscalls.Entry]:
    folders = (operation.path, *worker.folder_links.get(operation.path, ()))
    for entry in entries:
        paths = [os.path.join(folder, os.fsdecode(entry.name)) for folder in folders]
        counter = next((each for each in hiding if any(map(each.matches, paths))), None)
        if counter is None or entry.name in _DOTS or _is_folder(entry, paths[0]):
            yield entry
        elif counter.reach():
            path = next(filter(counter.matches, paths))
            worker.fire(counter, operation.call, path, operation.pid)


def _is_folder(entry: syscalls.Entry, path: str) -> bool:
    """Whether *entry* is a folder, or a link to one: these can be opened under an ``OpenError``."""
    return entry.kind in (syscalls.FOLDER, syscalls.LINK, syscalls.UNKNOWN) and os.path.isdir(path)


def _reorder(
    fault: faults.ListingOrder, path: str, entries: list[syscalls.Entry]
) -> list[syscalls.Entry]:
    """*entries* in the order of *fault*, which does not change from one listing to the next."""
    dots = [entry for entry in entries if entry.name in _DOTS]
    listed = [entry for entry in entries if entry.name not in _DOTS]
    if fault.order == "reversed":
        return [*dots, *reversed(listed)]
    listed.sort(key=lambda entry: entry.name)
    random.Random(f"{fault.seed}/{path}").shuffle(listed)
    return [*dots, *listed]


def _return_entries(worker: WorkerState, call: Syscall, entries: list[syscalls.Entry]) -> None:
    folder = _duplicate(worker, call)
    try:
        worker.listener.return_value(call, syscalls.give_entries(call, entries, folder))
    except OSError as error:
        worker.listener.fail(call, error.errno or 0)
    finally:
        os.close(folder)


def _duplicate(worker: WorkerState, call: Syscall) -> int:
    """A duplicate of the descriptor that *call* lists."""
    number = caller.to_signed(call.arguments[0])
    with contextlib.suppress(PermissionError):
        return caller.duplicate(call.pid, number)
    key, shared = (call.pid, number), worker.shared_folders
    if key not in shared:
        for other in filter(_has_ended, list(shared)):
            _forget(worker, other)
        shared[key] = folder = caller.reopen_at_offset(call.pid, number)
        worker.listener.replace_fd(call, folder, number)
    return os.dup(shared[key])


def _forget(worker: WorkerState, key: tuple[int, int]) -> None:
    """Another listing starts, or there is none any more."""
    worker.listings.pop(key, None)
    if (folder := worker.shared_folders.pop(key, None)) is not None:
        os.close(folder)


def _has_ended(key: tuple[int, int]) -> bool:
    """Whether the process has. A dataset may have a program list a folder for each sample."""
    return proc.is_dead(key[0])


_MODE, _NEW_MODES = 0o644, (0o777, 0o600)
"""What an entry has, and a copy that was just made in memory or on disk."""
_ATTRIBUTE_ERRNOS = {
    **dict.fromkeys(("getxattr", "lgetxattr", "removexattr", "lremovexattr"), errno.ENODATA),
    **dict.fromkeys(("setxattr", "lsetxattr"), errno.EOPNOTSUPP),
    **dict.fromkeys(("readlink", "readlinkat"), errno.EINVAL),
    **dict.fromkeys(("chmod", "fchmodat", "chown", "lchown", "fchownat", "utimensat"), errno.EPERM),
}
"""What a regular file of another user answers, which has no extended attributes."""
_NOTHING = "/dev/null"
_MOST_COPIED = 1 << 24
"""Bytes that an interrupted copy has at most."""


class _Stray(NamedTuple):
    """An entry by its *path*; *copy*: the descriptor of its content, which is not the caller's."""

    path: str
    copy: int


def add_entries(
    worker: WorkerState, operation: Operation, entries: list[syscalls.Entry], copies: FileCopies
) -> list[syscalls.Entry]:
    """*entries* of the folder that *operation* lists, with those that faults add to them."""
    names = {os.fsdecode(entry.name) for entry in entries}
    for counter in _counters_for_folder(worker, operation.path, operation.pid):
        stray = _find_stray(counter.fault, operation.path, copies)
        name = os.path.basename(stray.path) if stray else ""
        if stray is None or name in names or not counter.reach():
            continue
        worker.fire(counter, operation.call, stray.path, operation.pid)
        names.add(name)
        entry = syscalls.Entry(os.fstat(stray.copy).st_ino, syscalls.REGULAR, os.fsencode(name))
        middle = len(entries) // 2
        entries = [*entries[:middle], entry, *entries[middle:]]
    return entries


def _counters_for_folder(
    worker: WorkerState, folder: str, pid: int | None
) -> Iterator[FaultCounter[faults.StrayEntry]]:
    """The faults that add an entry to *folder*; none if *pid* may not see the same folder."""
    counters = list(worker.counters_for_path(faults.StrayEntry, folder))
    if counters and pid is not None and not worker.identities.difference(pid):
        yield from counters


def _find_stray(fault: faults.StrayEntry, folder: str, copies: FileCopies) -> _Stray | None:
    """What *fault* adds to *folder*; None if there is no file to copy."""
    name, source, length = fault.name, _NOTHING, 0
    if fault.is_copy:
        source, length = _find_original(folder)
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


def _find_original(folder: str) -> tuple[str, int]:
    """The first visible file, if possible one with two bytes or more, and half of its size.

    Its path is "" if there is none.
    """
    first = ""
    names: list[str] = []
    with contextlib.suppress(OSError):
        names = sorted(os.listdir(folder), key=os.fsencode)
    for path in (os.path.join(folder, name) for name in names if not name.startswith(".")):
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
    if not any(worker.counters_of_kind(faults.StrayEntry)):
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
    counters = worker.counters_of_kind(faults.StrayEntry)
    if not any(_may_be_named(each.fault, name) for each in counters) or os.path.lexists(path):
        return None
    folder = os.path.realpath(folder)
    for counter in _counters_for_folder(worker, folder, call.pid):
        if _may_be_named(counter.fault, name):
            stray = _find_stray(counter.fault, folder, copies)
            if stray and os.path.basename(stray.path) == name and counter.reach():
                worker.fire(counter, call.name, stray.path, call.pid)
                return stray
    return None


def _may_be_named(fault: faults.StrayEntry, name: str) -> bool:
    """Whether *fault* could add an entry of that *name* to a folder."""
    return bool(fault.copy_of(name)) if fault.is_copy else name == fault.name


def _open_stray(worker: WorkerState, call: Syscall, request: PathRequest, stray: _Stray) -> None:
    worker.count(stray.path, "opens")
    flags = request.flags & (os.O_ACCMODE | os.O_APPEND | os.O_TRUNC)
    source = os.open(f"/proc/self/fd/{stray.copy}", flags | os.O_CLOEXEC)
    worker.listener.return_fd(call, source, request.flags)


def _answer_by_path(worker: WorkerState, call: Syscall, stray: _Stray) -> None:
    """Answer a call that examines *stray*, or would change its attributes."""
    number = _ATTRIBUTE_ERRNOS.get(call.name, 0)
    if "access" in call.name:
        mode = call.arguments[(call.facts.path_at or 0) + 1]
        number = errno.EACCES if mode & os.X_OK else 0
    elif call.facts.result_at is not None:
        try:
            syscalls.write_stat(call, stray.copy, os.fstat(stray.copy).st_size)
        except OSError as error:
            number = error.errno or 0
    if number:
        worker.listener.fail(call, number)
    else:
        worker.listener.return_value(call, 0)
