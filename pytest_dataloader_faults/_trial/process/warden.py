"""The warden: enforces a trial's deadline and ends all its processes [a separate process]."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple, TypeAlias

import psutil

from pytest_dataloader_faults._engine.protocol import SupervisorHandle, describe_output
from pytest_dataloader_faults._engine.system import proc
from pytest_dataloader_faults._engine.system.children import reap
from pytest_dataloader_faults._engine.system.libc import Prctl, end_with_parent, prctl
from pytest_dataloader_faults._engine.system.processes import (
    accept_signals,
    raise_on_sigint,
    wait_until_readable,
)
from pytest_dataloader_faults._engine.system.stacks import StackRequest
from pytest_dataloader_faults._engine.system.temporary import AnonymousFile
from pytest_dataloader_faults._settings.jobs import Limits
from pytest_dataloader_faults._trial.journal import (
    HarnessFailed,
    InternalError,
    Journal,
    PhaseStarted,
    TrialEnded,
    refusal,
)
from pytest_dataloader_faults._trial.process import harness
from pytest_dataloader_faults._trial.process.activity import TrialClock
from pytest_dataloader_faults._trial.process.deadline import (
    BUSY_SECONDS,
    HARNESS,
    OVERDUE,
)
from pytest_dataloader_faults._trial.process.surroundings import Surroundings
from pytest_dataloader_faults._trial.process.tree import (
    end_all,
    is_infrastructure,
    send,
    trial_processes,
)
from pytest_dataloader_faults.exceptions import InvalidArgumentError, UnusableDatasetError
from pytest_dataloader_faults.outcomes.stages import DONE
from pytest_dataloader_faults.outcomes.text import printable

_Root: TypeAlias = Callable[[SupervisorHandle | None, int], None]
"""What each process of the trial does, by its number from 0."""
_TO_END = frozenset({signal.SIGTERM, signal.SIGINT})


class _Watched(NamedTuple):
    """What the warden waits for: three descriptors, and the supervisor if there is one."""

    child: int
    parent: int
    signals: int
    supervisor: harness.SupervisorWatch | None


def run_under_deadline(
    root: _Root,
    start_supervisor: Callable[[], SupervisorHandle] | None,
    limits: Limits,
    around: Surroundings,
    list_following: Callable[[], Iterable[int]] = tuple,
) -> None:
    """Run *root* in a child, with a supervisor if it needs one, and end all that it started.

    If it completes, more children follow one after the other, with the numbers that
    *list_following* returns.
    The loader may take as long as *limits* allow. Folders that are *around* it are removed, with
    what is in them.
    """
    journal = around.facts
    accept_signals()
    os.setsid()
    try:
        around.make_folders()
    except InvalidArgumentError as error:
        journal.write(refusal(error))
        return
    parent = os.pidfd_open(pytest_pid := os.getppid())
    prctl(Prctl.SET_CHILD_SUBREAPER, 1)
    # Before this process has its own signal handlers, which the supervisor would inherit.
    supervision = start_supervisor() if start_supervisor else None
    supervisor = harness.SupervisorWatch(supervision, journal) if supervision else None
    began = time.monotonic()
    clock = TrialClock(journal, limits, supervision, partial(_seconds_without_cpu, around))
    warden = _Warden(around, clock, parent, _pipe_of_signals())
    spared = [supervisor.pid] if supervisor else []
    end = warden.run(partial(root, supervision, 0), supervisor)
    for number in list_following() if warden.is_over else ():
        around.remove_shared_memory(end_all(spared))
        end = warden.run(partial(root, supervision, number), supervisor)
        if not warden.is_over:
            break
    _end_server(around)
    killed = end_all(spared)
    if supervisor:
        supervisor.end()
    around.remove_shared_memory(killed)
    around.remove_folders()
    if os.getppid() != pytest_pid:
        around.remove_shared_folders()
    duration = round(time.monotonic() - began, 3)
    journal.write(TrialEnded(end.by_deadline, end.exitcode, duration, began))


def _end_server(around: Surroundings) -> None:
    """End the fork server, if there is one, with its workers."""
    if around.server:
        if failure := harness.killed_server_message(around.server.pids[1]):
            around.facts.write(HarnessFailed(failure))
        around.server.end()


class _End(NamedTuple):
    """How a process of the trial ended."""

    by_deadline: bool
    exitcode: int


@dataclass
class _Warden:
    """Runs one process of the trial after the other, and watches it."""

    around: Surroundings
    clock: TrialClock
    parent: int
    signals: int

    @property
    def is_over(self) -> bool:
        """Whether the latest process of the trial completed its work."""
        phases = [event.phase for event in self.around.facts.of(PhaseStarted)]
        return phases[-1:] == [DONE]

    def run(self, action: Callable[[], None], supervisor: harness.SupervisorWatch | None) -> _End:
        """Run *action* in a child until it ends, or its time is up."""
        journal, clock = self.around.facts, self.clock
        child = _start(action)
        if supervisor:
            supervisor.handle.control.close()  # So that the trial's death ends the connection.
        watched = _Watched(os.pidfd_open(child), self.parent, self.signals, supervisor)
        ended = _wait_until_over(watched, clock, journal)
        stopped = ended == "deadline" and proc.is_stopped(child)
        if ended == "deadline":
            clock.write_activity()
            ours = supervisor.pid if supervisor else None
            hung = [each for each in _processes(self.around) if each.pid != ours]
            _write_stacks(hung, self.around.stacks)
            send(signal.SIGSTOP, hung)  # Or they would continue once faults are over.
        exitcode = (reap(child) or 0) if ended == "ended" else 0
        if journal.loss:
            journal.write(refusal(UnusableDatasetError(journal.loss)))
        elif (
            failure := _describe_stop(child)
            if stopped
            else _harness_failure(ended, exitcode, supervisor)
        ):
            printed = describe_output(supervisor.handle.printed) if supervisor else ""
            journal.write(HarnessFailed(failure, printed))
        return _End(ended == "deadline", exitcode)


def _describe_stop(child: int) -> str:
    return (
        f"the main process (pid {child}), which iterates the loader, {harness.STOPPED}."
        " Unless the dataset stopped it, the trial proves nothing about the dataset"
    )


def _harness_failure(
    ended: str, exitcode: int, supervisor: harness.SupervisorWatch | None
) -> str | None:
    """What happened to the harness, so that the trial shows nothing."""
    if ended in signal.Signals.__members__:
        return f"{ended} was sent to {harness.describe_warden(os.getpid())}{harness.NOTHING_SHOWN}"
    if supervisor and ended == "supervisor ended":
        return supervisor.ended_early()
    return supervisor.report() if supervisor and (exitcode or ended == "deadline") else None


def _start(action: Callable[[], None]) -> int:
    warden = os.getpid()
    child = os.fork()
    if not child:
        os.setsid()  # Signals that a worker sends to its group must not reach the warden.
        end_with_parent(warden)
        signal.set_wakeup_fd(-1)  # The trial has its own signals.
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        raise_on_sigint()
        action()
    return child


def _pipe_of_signals() -> int:
    """A descriptor from which to read the numbers of the signals that arrived.

    They include every signal that pytest's process has a handler for. It has one for SIGCHLD once
    torch has started workers in it.
    """
    read, write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.set_wakeup_fd(write)
    for number in _TO_END:
        signal.signal(number, lambda _number, _frame: None)
    return read


def _wait_until_over(watched: _Watched, clock: TrialClock, journal: Journal) -> str:
    """Why the wait is over: ``"ended"``, ``"deadline"``, or one of these.

    ``"abandoned"``: pytest has exited, or the trial's own work takes too long. ``"supervisor
    ended"``: the supervisor ended too early. A signal's name: that signal requested the end of the
    trial.
    """
    while not clock.look():
        if why := _wait(watched, clock.next_look):
            return why
    if clock.whose != HARNESS:
        return "deadline"
    journal.write(InternalError(OVERDUE))
    return "abandoned"


def _processes(around: Surroundings) -> list[psutil.Process]:
    """All of the trial's processes."""
    return trial_processes(around.server.pids if around.server else None)


def _seconds_without_cpu(around: Surroundings) -> float:
    """How long the machine has kept the processes of the trial waiting, as far as that counts."""
    pids = (each.pid for each in _processes(around))
    return min(BUSY_SECONDS, max(map(proc.seconds_without_cpu, pids), default=0.0))


def _wait(watched: _Watched, until: float) -> str | None:
    """Why the wait is over before the time *until*; None if it is not."""
    child, parent, signals, supervisor = watched
    while True:
        supervisor_fds = [supervisor.fd] if supervisor else []
        readable = wait_until_readable(
            [*supervisor_fds, child, parent, signals], until - time.monotonic()
        )
        if not readable:
            return None
        if child in readable:
            return "ended"
        if parent in readable:
            return "abandoned"
        if signals in readable and (received := _TO_END.intersection(os.read(signals, 1 << 10))):
            return signal.Signals(min(received)).name
        if supervisor and supervisor.fd in readable:
            return "supervisor ended"


def _write_stacks(processes: Iterable[psutil.Process], file: AnonymousFile) -> None:
    """Ask *processes* for their stacks, and write these, or what else is known, to *file*."""
    requests: list[tuple[str, StackRequest | None]] = []
    for process in processes:
        with contextlib.suppress(psutil.Error, OSError):
            command = " ".join(process.cmdline())
            title = f"\nProcess {process.pid} ({_state(process)}):"
            try:
                requests.append((title, StackRequest(process.pid)))
            except LookupError:
                if not is_infrastructure(command):
                    command_line = printable(command)[:120]  # File names in it may have any bytes.
                    requests.append((f"{title} {command_line}", None))
    for title, request in requests:
        stacks = request.text() if request else ""
        os.write(file.fd, f"{title}\n{stacks}".encode())


def _state(process: psutil.Process) -> str:
    """Whether *process* runs or sleeps, and where in the kernel, if this process may know that."""
    where = proc.waits_in(process.pid)
    return f"{process.status()}, in {where}" if where else str(process.status())
