"""The answers to calls that list a folder [runs in the supervisor].

Some facts about a listing. It takes one call for a few hundred entries, and one more that returns
none. What a fault changes is decided at the first call, at which the offset of the descriptor is 0.
The entries are kept for the calls that follow, as the folder may change in between. The kernel
keeps the number of the next entry, as the offset of the descriptor. Docker's profile refuses
pidfd_getfd(2), by which we would set it: there, the worker gets a descriptor that we share.
"""

from __future__ import annotations

import contextlib
import os
import random
from collections.abc import Iterator

from pytest_dataloader_faults._engine.file_copies import FileCopies
from pytest_dataloader_faults._engine.kernel import caller
from pytest_dataloader_faults._engine.kernel.caller import Syscall
from pytest_dataloader_faults._engine.kernel.syscalls import (
    FOLDER,
    LINK,
    UNKNOWN,
    Entry,
    give_entries,
    read_entries,
)
from pytest_dataloader_faults._engine.plan import FaultCounter
from pytest_dataloader_faults._engine.policy import Operation
from pytest_dataloader_faults._engine.supervisor.answers.services import SupervisorServices
from pytest_dataloader_faults._engine.supervisor.answers.stray_entries import add_entries
from pytest_dataloader_faults._engine.supervisor.worker_state import WorkerState
from pytest_dataloader_faults._engine.system import proc
from pytest_dataloader_faults.faults import (
    ListingError,
    ListingOrder,
    OpenError,
    StrayEntry,
)

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
        if worker.policy.is_exempt(path):
            return False
        operation = Operation(call.name, path, call.pid)
        worker.policy.tallies["listings"][path] += 1
        if fault := worker.policy.fire_first_due(ListingError, operation):
            worker.listener.fail(call, fault.errno)
            return True
        _begin(worker, call, operation, services.copies)
    entries = worker.listings.get((call.pid, number))
    if entries is not None:
        _return_entries(worker, call, entries)
    return entries is not None


def _begin(worker: WorkerState, call: Syscall, operation: Operation, copies: FileCopies) -> None:
    """Keep the entries of the folder if faults change them."""
    orders = list(worker.faults.counters_for_path(ListingOrder, operation.path))
    counters = worker.faults.counters_of_kind(OpenError)
    hiding = [counter for counter in counters if counter.fault.hides_file]
    strays = any(worker.faults.counters_for_path(StrayEntry, operation.path))
    if not orders and not hiding and not strays:
        return
    number = caller.to_signed(call.arguments[0])
    folder = os.open(f"/proc/{call.pid}/fd/{number}", os.O_RDONLY | os.O_DIRECTORY)
    try:
        entries = read_entries(folder)
    finally:
        os.close(folder)
    changed = add_entries(worker, operation, entries, copies) if strays else entries
    changed = list(_remove_hidden(worker, operation, hiding, changed))
    for counter in orders:
        reordered = _reorder(counter.fault, operation.path, changed)
        if counter.reach() and reordered != changed:
            worker.policy.fire(counter, *operation)
            changed = reordered
    if changed != entries:
        worker.listings[call.pid, number] = changed


def _remove_hidden(
    worker: WorkerState,
    operation: Operation,
    hiding: list[FaultCounter[OpenError]],
    entries: list[Entry],
) -> Iterator[Entry]:
    folders = (operation.path, *worker.folder_links.get(operation.path, ()))
    for entry in entries:
        paths = [os.path.join(folder, os.fsdecode(entry.name)) for folder in folders]
        counter = next((each for each in hiding if any(map(each.matches, paths))), None)
        if counter is None or entry.name in _DOTS or _is_folder(entry, paths[0]):
            yield entry
        elif counter.reach():
            path = next(filter(counter.matches, paths))
            worker.policy.fire(counter, operation.call, path, operation.pid)


def _is_folder(entry: Entry, path: str) -> bool:
    """Whether *entry* is a folder, or a link to one: these can be opened under an ``OpenError``."""
    return entry.kind in (FOLDER, LINK, UNKNOWN) and os.path.isdir(path)


def _reorder(fault: ListingOrder, path: str, entries: list[Entry]) -> list[Entry]:
    """*entries* in the order of *fault*, which does not change from one listing to the next."""
    dots = [entry for entry in entries if entry.name in _DOTS]
    others = [entry for entry in entries if entry.name not in _DOTS]
    if fault.order == "reversed":
        return [*dots, *reversed(others)]
    others.sort(key=lambda entry: entry.name)
    random.Random(f"{fault.seed}/{path}").shuffle(others)
    return [*dots, *others]


def _return_entries(worker: WorkerState, call: Syscall, entries: list[Entry]) -> None:
    folder = _duplicate(worker, call)
    try:
        worker.listener.return_value(call, give_entries(call, entries, folder))
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
