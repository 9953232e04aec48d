"""What a trial has for itself while it lasts [made in pytest, inherited by fork]."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection, Iterable, Iterator
from typing import NamedTuple

from pytest_dataloader_faults._engine.folder_copies import copy_folder
from pytest_dataloader_faults._engine.kernel.linux import file_clock
from pytest_dataloader_faults._engine.system import temporary
from pytest_dataloader_faults._engine.system.patience import has_ended
from pytest_dataloader_faults._engine.system.temporary import (
    AnonymousFile,
    SharedCount,
    SharedMemoryCleaner,
)
from pytest_dataloader_faults._settings.jobs import Job, TrialJob
from pytest_dataloader_faults._trial.journal import Journal, TrialStarted, WorkersStarting
from pytest_dataloader_faults._trial.process import environment, fork_server
from pytest_dataloader_faults.exceptions import InvalidArgumentError

_DYING = 2.0
"""Seconds until a process that was sent SIGKILL has ended, and a supervisor without its trial."""


class Surroundings(NamedTuple):
    """The journal, files for what is printed and for stacks, folders, and a fork server.

    *folders* are names until the warden makes them: one for sockets, and that of the factory, which
    is a *copy* of another folder, or empty.
    *shared* are the folders of a factory that is the same in all jobs of a group, and last as long.
    *fired*: how many faults have fired in the jobs of the group.
    *server* starts workers that are not below the warden; None if the loader has no such workers.
    """

    facts: Journal
    printed: AnonymousFile
    stacks: AnonymousFile
    folders: tuple[str, ...]
    shared_memory: SharedMemoryCleaner
    server: fork_server.TrialServer | None
    fired: SharedCount
    copy: str | None = None
    shared: tuple[str, ...] = ()

    @property
    def own_folders(self) -> tuple[str, ...]:
        """The folders whose files belong to the trial, and are removed with it."""
        return (*self.folders[1:], *self.shared)

    def make_folders(self) -> None:
        """Make the folders [in the warden].

        Raises:
            InvalidArgumentError: The folder to copy cannot be copied.
        """
        for_sockets, *private = self.folders
        temporary.make_for_sockets(for_sockets)
        _make_folders(private, self.copy)

    def end_processes(self, warden: int) -> None:
        """End what *warden*, which was killed or has failed, leaves running, and wait for that.

        A spawned worker that imports torch would find out when that is done.
        """
        from pytest_dataloader_faults._trial.process.tree import end_session  # It imports psutil.

        if self.server:
            self.server.end()
        # The supervisor, which ends with the warden, first ends what workers have started.
        end_session(warden, _DYING, grace=_DYING)
        for pid in self._pids():
            end_session(pid, _DYING)
        for pid in self._pids():  # Workers end with the session of the main process.
            has_ended(pid, _DYING)
        self.remove_shared_memory()

    def remove_shared_memory(self, killed: Collection[int] = ()) -> None:
        """Remove what the trial's processes have left in it, and those *killed*. All are dead."""
        self.shared_memory.remove({*killed, *self._pids()})

    def _pids(self) -> set[int]:
        workers = (event.pids for event in self.facts.of(WorkersStarting))
        return {event.pid for event in self.facts.of(TrialStarted)}.union(*workers)

    def remove_folders(self) -> None:
        """Remove the folders with what is in them."""
        for folder in self.folders:
            temporary.remove(folder)

    def remove_shared_folders(self) -> None:
        """Remove those of the group, for pytest, which was killed."""
        for folder in self.shared:
            temporary.remove(folder)


@contextlib.contextmanager
def shared_folders(folders: tuple[str, ...], copy: str | None) -> Iterator[None]:
    """Make *folders* for a group of jobs, empty or a *copy*, and remove them at the end."""
    try:
        _make_folders(folders, copy)
        yield
    finally:
        for folder in folders:
            temporary.remove(folder)


def _make_folders(folders: Iterable[str], copy: str | None) -> None:
    for folder in folders:
        if copy is None:
            os.mkdir(folder, 0o700)
        else:
            _copy(copy, folder)


def _copy(source: str, folder: str) -> None:
    try:
        copy_folder(source, folder)
    except OSError as error:
        message = f"copy={source!r} could not be copied to {folder}: {error}"
        raise InvalidArgumentError(message) from error


@contextlib.contextmanager
def surroundings_for(
    job: Job, private: tuple[str, ...], fired: SharedCount
) -> Iterator[Surroundings]:
    """The surroundings of *job*, whose factory gets the folder *private*, if it gets one."""
    is_shared = job.rank is not None and job.rank.shares_folder
    own, shared = ((), private) if is_shared else (private, ())
    with contextlib.ExitStack() as scope:
        folders = (temporary.name_for_sockets(), *own)
        facts, printed, stacks = Journal("facts"), AnonymousFile("stderr"), AnonymousFile("stacks")
        shared_memory = SharedMemoryCleaner()
        surroundings = Surroundings(facts, printed, stacks, folders, shared_memory, None, fired)
        surroundings = surroundings._replace(copy=job.settings.copy, shared=shared)
        for file in (facts, printed, stacks):
            scope.callback(file.close)
        scope.callback(surroundings.remove_folders)  # Unless it was killed, the warden has done so.
        environment.require_temporary_space()
        server = fork_server.server_for(job, printed.fd)
        if server:
            scope.callback(server.close)
        began, is_seen = file_clock(), False
        try:
            yield surroundings._replace(server=server)
            is_seen = isinstance(job, TrialJob)  # Processes of other jobs are not filtered.
        finally:
            if not is_seen:
                job.history.unseen.append((began, file_clock()))
