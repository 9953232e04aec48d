"""What a trial has for itself while it lasts, and how pytest waits for its warden [in pytest].

The processes of a trial inherit its surroundings by fork.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Collection, Iterable, Iterator
from typing import NamedTuple

from pytest_dataloader_faults._engine.file_copies import copy_folder
from pytest_dataloader_faults._engine.kernel.linux import file_clock
from pytest_dataloader_faults._engine.system import temporary
from pytest_dataloader_faults._engine.system.proc import is_stopped
from pytest_dataloader_faults._engine.system.processes import (
    BETWEEN_LOOKS,
    ChildProcess,
    Patience,
    describe_end,
    has_ended,
)
from pytest_dataloader_faults._engine.system.temporary import (
    AnonymousFile,
    SharedCount,
    SharedMemoryCleaner,
)
from pytest_dataloader_faults._trial.job import Job
from pytest_dataloader_faults._trial.journal import (
    Journal,
    ProcessesStarted,
    failed,
)
from pytest_dataloader_faults._trial.process import environment, fork_server
from pytest_dataloader_faults.exceptions import InvalidArgumentError, LostProcessError

_DYING = 2.0
"""Seconds until a process that was sent SIGKILL has ended, and a supervisor without its trial."""


class Surroundings(NamedTuple):
    """The journal, files for what is printed and for stacks, folders, and a fork server.

    *for_sockets* and *private* are names of folders until the warden makes them. The private one is
    that of the factory, if it has one: a *copy* of another folder, or empty.
    *shared*: the folder of a factory that is the same in all jobs of a group, and lasts as long.
    *fired*: how many faults have fired in the jobs of the group.
    *server* starts workers that are not below the warden; None if the loader has no such workers.
    """

    facts: Journal
    printed: AnonymousFile
    stacks: AnonymousFile
    for_sockets: str
    private: tuple[str, ...]
    shared: tuple[str, ...]
    copy: str | None
    fired: SharedCount
    shared_memory: SharedMemoryCleaner
    server: fork_server.TrialServer | None = None

    @property
    def own_folders(self) -> tuple[str, ...]:
        """The folders whose files belong to the trial, and are removed with it."""
        return (*self.private, *self.shared)

    @property
    def server_pids(self) -> tuple[int, int] | None:
        """The keeper and the fork server, if there is one."""
        return self.server.pids if self.server else None

    def make_folders(self) -> None:
        """Make the folders [in the warden].

        Raises:
            InvalidArgumentError: The folder to copy cannot be copied.
        """
        temporary.make_for_sockets(self.for_sockets)
        _make_folders(self.private, self.copy)

    def remove_folders(self, *, shared: bool = False) -> None:
        """Remove the folders with what is in them; *shared*: for pytest, which was killed."""
        for folder in (self.for_sockets, *self.private, *(self.shared if shared else ())):
            temporary.remove(folder)

    def end_processes(self, warden: int) -> None:
        """End what *warden*, which was killed or has failed, leaves running, and wait for that.

        A spawned worker that imports torch would find out when that is done.
        """
        from pytest_dataloader_faults._trial.resources import end_session  # It imports psutil.

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
        return {pid for event in self.facts.of(ProcessesStarted) for pid in event.pids}


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
        try:
            if copy is None:
                os.mkdir(folder, 0o700)
            else:
                copy_folder(copy, folder)
        except OSError as error:
            if copy is None:
                raise
            message = f"copy={copy!r} could not be copied to {folder}: {error}"
            raise InvalidArgumentError(message) from error


@contextlib.contextmanager
def surroundings_for(
    job: Job, folders: tuple[str, ...], fired: SharedCount
) -> Iterator[Surroundings]:
    """The surroundings of *job*, whose factory gets one of *folders*, if it gets one."""
    is_shared = job.rank is not None and job.rank.shares_folder
    private, shared = ((), folders) if is_shared else (folders, ())
    with contextlib.ExitStack() as scope:
        files = Journal("facts"), AnonymousFile("stderr"), AnonymousFile("stacks")
        for file in files:
            scope.callback(file.close)
        for_sockets, copy = temporary.name_for_sockets(), job.settings.copy
        cleaner = SharedMemoryCleaner()
        around = Surroundings(*files, for_sockets, private, shared, copy, fired, cleaner)
        scope.callback(around.remove_folders)  # Unless it was killed, the warden has done so.
        environment.require_temporary_space()
        server = fork_server.server_for(job, around.printed.fd)
        if server:
            scope.callback(server.close)
        began, is_seen = file_clock(), False
        try:
            yield around._replace(server=server)
            is_seen = not job.is_reference  # Its processes are not filtered.
        finally:
            if not is_seen:
                job.history.unseen.append((began, file_clock()))


# Pytest waits for the warden, which may be killed or stopped like any process.

_GRACE = 30.0
"""Seconds a warden gets beyond its deadline before it counts as broken itself."""
_LOOKS = 5
"""How many times in a row, a second apart, a warden must be seen stopped."""
STOPPED = "was stopped (SIGSTOP, or a debugger)"
NOTHING_SHOWN = (
    " before the trial was finished, so the trial proves nothing about the dataset. Run it again."
    " If it happens again, find out what kills or stops processes on this machine"
)


def wait_for(warden: ChildProcess, deadline: float, facts: Journal) -> int | None:
    """Wait until *warden* has ended, at most *deadline* seconds and a grace; its exit code.

    If it is stopped, it is ended.
    """
    patience, stopped = Patience(deadline + _GRACE, [warden.pid]), 0
    try:
        while not warden.has_ended(BETWEEN_LOOKS):
            stopped = stopped + 1 if is_stopped(warden.pid) else 0
            if stopped == _LOOKS:
                what = f"{describe_warden(warden.pid)} {STOPPED}{NOTHING_SHOWN}"
                facts.write(failed(LostProcessError(f"{what}.")))
                warden.send(signal.SIGTERM)  # It ends its tree first.
                warden.send(signal.SIGCONT)
            if patience.is_over():
                warden.send(signal.SIGKILL)
    except BaseException:  # As at Ctrl-C.
        end(warden)
        raise
    return warden.reap()


def end(warden: ChildProcess) -> None:
    """End *warden*, which ends its tree first, and wait for it."""
    warden.send(signal.SIGTERM)
    if not warden.ends_in_time(_GRACE):
        warden.send(signal.SIGKILL)
    warden.reap()


def describe_warden(warden: int) -> str:
    return f"the process that enforces the trial's deadline (pid {warden})"


def lost_warden_message(warden: int, code: int | None, printed: str) -> str:
    """The message for a trial that did not end itself; *code*: the warden's exit code, if known."""
    ending = "has exited" if code is None else describe_end(code)
    return f"{describe_warden(warden)} {ending}{NOTHING_SHOWN}. The trial printed:\n{printed}"
