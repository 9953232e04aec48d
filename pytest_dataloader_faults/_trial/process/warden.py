"""The warden: enforces a trial's deadline and ends all its processes [a process of its own].

Some facts about ending a tree of processes. Killing a session or a group misses those that left it.
A process whose parent dies goes to the nearest ancestor that is a "child subreaper" (prctl(2)), so
with this process as one, everything below stays below, whatever it does. Killing one while another
forks can miss the new one: so stop all first, kill, reap, and look again until none is left.
multiprocessing's resource tracker removes named semaphores when its clients are gone, and torch's
manager of shared memory its segments: both get the time to do so.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple, TypeAlias

import psutil

from pytest_dataloader_faults._engine.protocol import SupervisorHandle
from pytest_dataloader_faults._engine.system import proc
from pytest_dataloader_faults._engine.system.children import reap
from pytest_dataloader_faults._engine.system.libc import Prctl, end_with_parent, prctl
from pytest_dataloader_faults._engine.system.patience import SIGN_OF_LIFE, Patience
from pytest_dataloader_faults._engine.system.processes import (
    STACKS_SIGNAL,
    raise_on_sigint,
    ready,
)
from pytest_dataloader_faults._engine.system.temporary import AnonymousFile
from pytest_dataloader_faults._settings.jobs import Limits
from pytest_dataloader_faults._trial import resources
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
from pytest_dataloader_faults.exceptions import InvalidArgumentError, UnusableDatasetError
from pytest_dataloader_faults.outcomes.stages import DONE
from pytest_dataloader_faults.outcomes.text import printable

_Root: TypeAlias = Callable[[SupervisorHandle | None, int | None], None]
"""What the trial's process does, and each that follows it, by its number from 0."""
_CLEANERS_PATIENCE = 10.0
_STACKS_PATIENCE, _IDLE_PATIENCE = 1.0, 0.1
"""Seconds for the stacks of a process; for those of one that does nothing, as in a held call."""
_CLEANERS = ("multiprocessing.resource_tracker", "torch_shm_manager")
"""They end with their clients, and remove what their clients have left."""
_TO_END = frozenset({signal.SIGTERM, signal.SIGINT})
_UNKILLABLE = 20.0
"""Seconds until the warden gives up on a process that survives SIGKILL, as one in disk sleep."""


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
    count_following: Callable[[], int] = int,
) -> None:
    """Run *root* in a child, with a supervisor if it needs one, and end all that it started.

    Where it came to its end, as many more children follow as *count_following* says then, one after
    the other. The loader may take as long as *limits* say. Folders that are *around* it are
    removed, with what is in them.
    """
    journal = around.facts
    # If it is ignored, or a handler of the user's waits for all children, exit codes are lost.
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.setsid()
    try:
        around.make_folders()
    except InvalidArgumentError as error:
        journal.write(refusal(error))
        return
    parent = os.pidfd_open(os.getppid())
    prctl(Prctl.SET_CHILD_SUBREAPER, 1)
    # Before this process has signal handlers of its own, which the supervisor would inherit.
    supervision = start_supervisor() if start_supervisor else None
    began = time.monotonic()
    clock = TrialClock(journal, limits, supervision, partial(_seconds_without_cpu, around))
    warden = _Warden(around, clock, parent, _pipe_of_signals())
    end = warden.run(partial(root, supervision, None), supervision)
    for number in range(count_following() if warden.is_over else 0):
        around.remove_shared_memory(end_all())
        end = warden.run(partial(root, None, number), None)
        if not warden.is_over:
            break
    if around.server:
        if hurt := harness.how_server_was_killed(around.server.pids[1]):
            journal.write(HarnessFailed(hurt))
        around.server.end()
    around.remove_shared_memory(end_all())
    around.remove_folders()
    duration = round(time.monotonic() - began, 3)
    journal.write(TrialEnded(end.by_deadline, end.exitcode, duration, began))


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
        """Whether the latest process of the trial came to the end of what it had to do."""
        phases = [event.phase for event in self.around.facts.of(PhaseStarted)]
        return phases[-1:] == [DONE]

    def run(self, action: Callable[[], None], supervision: SupervisorHandle | None) -> _End:
        """Run *action* in a child until it ends, or its time is up."""
        journal, clock = self.around.facts, self.clock
        supervisor = harness.SupervisorWatch(supervision.pid, journal) if supervision else None
        child = _start(action)
        if supervision:
            supervision.control.close()  # So that the trial's death ends the connection.
        watched = _Watched(os.pidfd_open(child), self.parent, self.signals, supervisor)
        ended = _wait_until_over(watched, clock, journal)
        stopped = ended == "deadline" and proc.is_stopped(child)
        if ended == "deadline":
            clock.write_activity()
            ours = {supervision.pid} if supervision else set()
            hung = [each for each in _processes(self.around) if each.pid not in ours]
            for process in hung:
                _describe(process, self.around.stacks)
            _send(signal.SIGSTOP, hung)  # Or they would go on once the supervisor has ended.
        exitcode = (reap(child) or 0) if ended == "ended" else 0
        if supervisor and ended == "ended" and not exitcode:
            supervisor.await_end()
        if journal.loss:
            journal.write(refusal(UnusableDatasetError(journal.loss)))
        elif hurt := _stopped(child) if stopped else _harness_failure(ended, exitcode, supervisor):
            printed = supervision.what_it_printed() if supervision else ""
            journal.write(HarnessFailed(hurt, printed))
        return _End(ended == "deadline", exitcode)


def _stopped(child: int) -> str:
    return (
        f"the process that drives the loader (pid {child}) {harness.STOPPED}."
        " Unless the dataset stopped it, the trial shows nothing about the dataset"
    )


def _harness_failure(
    ended: str, exitcode: int, supervisor: harness.SupervisorWatch | None
) -> str | None:
    """What happened to the harness, so that the trial shows nothing."""
    if ended in signal.Signals.__members__:
        return f"{ended} was sent to {harness.name_of_warden(os.getpid())}{harness.NOTHING_SHOWN}"
    if supervisor and ended == "supervisor ended":
        return supervisor.ended_early()
    return supervisor.report() if supervisor and (exitcode or ended == "deadline") else None


def _start(action: Callable[[], None]) -> int:
    warden = os.getpid()
    child = os.fork()
    if not child:
        os.setsid()  # Signals that a worker sends to its group must not reach the warden.
        end_with_parent(warden)
        signal.set_wakeup_fd(-1)  # The trial has signals of its own.
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        raise_on_sigint()
        action()
    return child


def _pipe_of_signals() -> int:
    """A descriptor from which to read the numbers of the signals that came.

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

    ``"abandoned"``: pytest is gone, or the trial's own work takes too long. ``"supervisor ended"``:
    the supervisor ended too early. A signal's name: that signal asked the trial to end.
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
    return resources.trial_processes(around.server.pids if around.server else None)


def _seconds_without_cpu(around: Surroundings) -> float:
    """How long the machine has kept the processes of the trial waiting, as far as that counts."""
    pids = (each.pid for each in _processes(around))
    return min(BUSY_SECONDS, max(map(proc.seconds_without_cpu, pids), default=0.0))


def _wait(watched: _Watched, until: float) -> str | None:
    """Why the wait is over before the time *until*; None if it is not."""
    child, parent, signals, supervisor = watched
    while True:
        # The supervisor's first: if it ended because the trial did, both must be seen as ended.
        first = [supervisor.fd] if supervisor and supervisor.fd is not None else []
        found = ready([*first, child, parent, signals], until - time.monotonic())
        if not found:
            return None
        if child in found:
            return "ended"
        if parent in found:
            return "abandoned"
        if signals in found and (received := _TO_END.intersection(os.read(signals, 1 << 10))):
            return signal.Signals(min(received)).name
        if supervisor and supervisor.fd in found and supervisor.ended_early():
            return "supervisor ended"


def _describe(process: psutil.Process, stacks: AnonymousFile) -> None:
    """Have *process* write its stacks if it can, and wait until it has."""
    with contextlib.suppress(psutil.Error, OSError):
        command = " ".join(process.cmdline())
        if _writes_stacks(process.pid, stacks):
            os.write(stacks.fd, f"\nProcess {process.pid} ({_state(process)}):\n".encode())
            _await_stacks(process, stacks)
        elif not resources.is_infrastructure(command):
            shown = printable(command)[:120]  # File names in it may have any bytes.
            line = f"\nProcess {process.pid} ({_state(process)}): {shown}\n"
            os.write(stacks.fd, line.encode())


def _writes_stacks(pid: int, stacks: AnonymousFile) -> bool:
    """Whether the process *pid* writes its stacks to *stacks* when asked to by signal.

    The handler writes to a number. The user's code may have closed that, and opened another file.
    """
    has_handler = proc.status(pid).caught >> (STACKS_SIGNAL - 1) & 1
    return bool(has_handler) and proc.has_open(pid, stacks.owned.file)


def _await_stacks(process: psutil.Process, stacks: AnonymousFile) -> None:
    """Have *process* write its stacks, and wait until it has, unless it cannot.

    The kernel blocks the signal for the thread that handles it, until that has written all.
    """
    size, blocking = stacks.size, proc.threads_that_block(process.pid, STACKS_SIGNAL)
    most = Patience(_STACKS_PATIENCE, [process.pid])
    least = Patience(_IDLE_PATIENCE, [process.pid], SIGN_OF_LIFE)
    process.send_signal(STACKS_SIGNAL)
    while stacks.size == size or proc.threads_that_block(process.pid, STACKS_SIGNAL) - blocking:
        runs = proc.state_of(process.pid) == "R"
        if most.is_over() or (least.is_over() and not runs):
            break
        time.sleep(0.002)


def _state(process: psutil.Process) -> str:
    """Whether *process* runs or sleeps, and where in the kernel, if this process may know that."""
    where = proc.waits_in(process.pid)
    return f"{process.status()}, in {where}" if where else str(process.status())


def end_all() -> set[int]:
    """End all processes below this one; their pids. Helpers may remove what those have left."""
    killed: set[int] = set()
    for_cleaners, for_all = Patience(_CLEANERS_PATIENCE), Patience(_UNKILLABLE)
    doomed: list[psutil.Process] = []
    while resources.has_children() and not for_all.is_over(each.pid for each in doomed):
        children = psutil.Process().children(recursive=True)
        cleaners = list(filter(_is_cleaner, children))
        may_clean = not for_cleaners.is_over(each.pid for each in cleaners)
        doomed = [each for each in children if not (may_clean and each in cleaners)]
        _send(signal.SIGSTOP, doomed)
        killed.update(each.pid for each in doomed)
        _send(signal.SIGKILL, doomed)
        _reap()
    return killed


def _send(number: signal.Signals, processes: list[psutil.Process]) -> None:
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.send_signal(number)


def _is_cleaner(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.Error):
        command = " ".join(process.cmdline())
        return any(name in command for name in _CLEANERS)
    return False


def _reap() -> None:
    """Wait for the dead; give the dying a moment."""
    for _ in range(20):
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        if not resources.has_children():
            return
        time.sleep(0.002)
