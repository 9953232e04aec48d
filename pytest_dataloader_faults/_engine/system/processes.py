"""Processes: start one, wait for one, read its stacks, describe its end, end this one."""

from __future__ import annotations

import contextlib
import faulthandler
import os
import select
import signal
import struct
import time
import warnings
from collections.abc import Callable, Iterable
from types import FrameType
from typing import TYPE_CHECKING, NamedTuple, NoReturn

from pytest_dataloader_faults._engine.system import proc
from pytest_dataloader_faults._engine.system.proc import family
from pytest_dataloader_faults._engine.system.temporary import OwnedDescriptor
from pytest_dataloader_faults.exceptions import UnusableEnvironmentError

if TYPE_CHECKING:
    from typing_extensions import Self


# Some facts about the end of a process. waitid(2) with WNOWAIT shows a parent how its child ended
# and leaves it to be waited for; other processes cannot know.


def describe_child_exit(pid: int) -> str | None:
    """How this process's child *pid* ended; "" as it should, and None if it runs."""
    try:
        end = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return ""
    if end is None:
        return None
    code = end.si_status if end.si_code == os.CLD_EXITED else -end.si_status
    return describe_end(code) if code else ""


def describe_end(code: int) -> str:
    """How a process ended that has this exit status or, if it is negative, got this signal."""
    from pytest_dataloader_faults.outcomes import text  # On use: it is slow to import.

    return text.describe_end(code)


MORE_PROCESSES = (
    "Stop processes that are not needed, or raise the limit: ulimit -u, docker run --pids-limit, or"
    " pids.max of the control group"
)


def main_code(main_module: str) -> str:
    """What a new interpreter, by ``-c``, runs to call ``main`` of that module of this package.

    It does not collect garbage while it imports, which does not make any: that would take a tenth
    of the CPU.
    """
    above = os.path.realpath(os.path.join(os.path.dirname(__file__), *[".."] * 3))
    import_main = f"sys.path.insert(0, {above!r}); from {main_module} import main"
    return f"import gc, sys; gc.disable(); {import_main}; gc.enable(); main()"


def fork() -> int:
    """os.fork(2) without the warning of Python 3.12 about other threads, which we know of."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        try:
            return os.fork()
        except OSError as error:
            raise UnusableEnvironmentError(
                f"too few processes: another one cannot start ({error}). {MORE_PROCESSES}",
                "too few processes",
            ) from error


LONGEST_WAIT = 1_000_000.0
"""Seconds, 11 days: poll(2) takes milliseconds as an int, and time.sleep() nanoseconds as another.
A longer wait starts again."""


def wait_until_readable(descriptors: Iterable[int], seconds: float) -> list[int]:
    """Those of *descriptors* that can be read, or have ended, at the latest after *seconds*.

    select(2) does not accept numbers above 1023, and pytest may have them: hence poll(2).
    """
    poll = select.poll()
    for descriptor in descriptors:
        poll.register(descriptor, select.POLLIN)
    wait = min(max(0.0, seconds), LONGEST_WAIT)
    return [descriptor for descriptor, _ in poll.poll(1000 * wait)]


def accept_signals() -> None:
    """Block no signal, and let this process wait for its own children.

    Every process that pytest forks inherits what pytest inherited. If SIGCHLD is ignored, or a
    handler of the user's waits for all children, exit codes are lost. If it is blocked, a loader
    that reads a batch of which a dead worker sent one half waits forever.
    """
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


# Some facts about SIGINT. Ctrl-C goes to pytest's process group, which a trial has left, so a trial
# gets the signal only from another program. Python's handler raises KeyboardInterrupt in whatever
# code runs, and code may catch that: some clients implement a timeout by it. If nobody catches it,
# Python ends its own process by the same signal, so that a parent sees what happened. A dataset may
# also raise KeyboardInterrupt without a signal, which is then an error like any other.


_interrupted: list[int] = []
"""This process, once it got the signal. Its children inherit the list, and have other pids."""


def raise_on_sigint() -> None:
    """Have SIGINT raise KeyboardInterrupt, as in any Python program."""
    signal.signal(signal.SIGINT, _interrupt)


def _interrupt(number: int, frame: FrameType | None) -> None:
    _interrupted.append(os.getpid())
    signal.default_int_handler(number, frame)


def end_if_interrupted(error: BaseException) -> None:
    """End this process as Python does, if *error* is an interrupt by SIGINT that was not caught."""
    if isinstance(error, KeyboardInterrupt) and os.getpid() in _interrupted:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)


def kill_with_children(pid: int) -> None:
    """Kill a process and all below it. One that is stopped cannot start another meanwhile."""
    doomed = [pid]
    for process in doomed:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, signal.SIGSTOP)
        doomed += [child for child in family(process) if child not in doomed]
    for process in doomed:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)


# How long a process waits for another one, on a machine that may be busy.
#
# Some facts about a busy machine. If forty processes want two processors, each has one for a
# twentieth of the time: what takes half a second takes ten. One that is stopped, or waits for a
# lock that nobody releases, has none and needs none. /proc/PID/task/TID/schedstat (proc(5))
# distinguishes them: it has the time for which a thread ran, and that for which it was ready to run
# and had no processor. The latter is added up when it gets one. If the kernel does not count it
# (without CONFIG_SCHED_INFO), all time counts.
#
# While this process itself is stopped, as by Ctrl-Z or docker pause, the other one usually is too,
# but the clock is not.


BETWEEN_LOOKS = 1.0
"""Seconds between two checks of a process, at most."""
_LATE = 0.5
"""Seconds by which a check may be late although this process runs."""
SIGN_OF_LIFE = 0.1
"""What a second of work counts if work shows progress, which an endless loop does not."""


class Patience:
    """Seconds for other processes, not counting those in which one of them waits for a processor.

    *work*: what a second counts in which one has a processor.

    Attributes:
        left: How many of the seconds are left.
    """

    def __init__(self, seconds: float, pids: Iterable[int] = (), work: float = 1.0) -> None:
        self.left = seconds
        self._work = work
        self._looked, self._times = time.monotonic(), _times_of(pids)

    def is_over(self, pids: Iterable[int] | None = None) -> bool:
        """Whether none of the seconds are left. Call it every second.

        *pids*: the processes from now on, if they are not those of before.
        """
        now, times = time.monotonic(), _times_of(self._times if pids is None else pids)
        passed = min(now - self._looked, BETWEEN_LOOKS + _LATE)
        counted = (self._count_time(pid, times[pid], passed) for pid in times)
        self.left -= min(passed, max(0.0, min(counted, default=passed)))
        self._looked, self._times = now, times
        return self.left <= 0

    def _count_time(self, pid: int, times: _Times, passed: float) -> float:
        """How much of the time that has *passed* counts, if *pid* is the only process."""
        waited, on_cpu = (
            new - old for new, old in zip(times, self._times.get(pid, times), strict=True)
        )
        if proc.state_of(pid) == "R":  # The wait is not added up yet.
            return self._work * on_cpu
        return passed - waited - (1 - self._work) * on_cpu


class _Times(NamedTuple):
    """For how long a process waited for a processor, and had one."""

    waited: float
    on_cpu: float


def _times_of(pids: Iterable[int]) -> dict[int, _Times]:
    return {pid: _Times(proc.seconds_without_cpu(pid), proc.seconds_used(pid)) for pid in pids}


def ready_in_time(
    descriptors: Iterable[int], seconds: float, pids: Iterable[int], work: float = 1.0
) -> list[int]:
    """The *descriptors* that can be read, or have ended, before ``Patience`` is over."""
    watched, patience = tuple(descriptors), Patience(seconds, pids, work)
    ready_fds = wait_until_readable(watched, min(BETWEEN_LOOKS, seconds))
    while not ready_fds and not patience.is_over():
        ready_fds = wait_until_readable(watched, min(BETWEEN_LOOKS, patience.left))
    return ready_fds


def has_ended(pid: int, seconds: float) -> bool:
    """Whether the process *pid* ends within *seconds*, as ``Patience`` counts them.

    One that does not exist has ended. Raises OSError if all descriptors are in use.
    """
    try:
        watched = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(ready_in_time([watched], seconds, [pid]))
    finally:
        os.close(watched)


# Children of a process, for which other code may wait as well.
#
# Some facts about children. If SIGCHLD is ignored, which a process inherits from its parent, the
# kernel forgets a child at its end: waitpid(2) raises ChildProcessError then, and the number of the
# child may be that of another process. A handler of the user's that waits for all children has the
# same effect. So pytest's process sends signals to its children by pidfd, and copes with a child
# that has been waited for.


_LENGTH = struct.Struct("=Q")
"""What precedes an answer: the pipe has no end while another process has it open as well."""


class ChildProcess:
    """A child of this process, until it is reaped."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._pidfd: int | None = None
        with contextlib.suppress(ProcessLookupError):  # It has ended, and was waited for.
            self._pidfd = os.pidfd_open(pid)

    def has_ended(self, seconds: float) -> bool:
        """Whether it ends within *seconds* of the clock."""
        return self._pidfd is None or bool(wait_until_readable([self._pidfd], seconds))

    def ends_in_time(self, seconds: float) -> bool:
        """Whether it ends within *seconds*, as ``Patience`` counts them."""
        return self._pidfd is None or bool(ready_in_time([self._pidfd], seconds, [self.pid]))

    def send(self, number: signal.Signals) -> None:
        """Send it a signal, unless it has ended."""
        if self._pidfd is not None:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._pidfd, number)

    def reap(self) -> int | None:
        """Wait for it, as ``reap`` does, and let go of it."""
        if self._pidfd is not None:
            os.close(self._pidfd)
            self._pidfd = None
        return reap(self.pid)


def reap(pid: int) -> int | None:
    """Wait until the child *pid* has ended: its exit code, or the negative number of its signal.

    None if that is not known, because the kernel or other code has waited for it.
    """
    try:
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    except ChildProcessError:
        return None


def run_in_child(action: Callable[[], bytes], seconds: float) -> bytes:
    """What *action* returns in a child process; b"" if that failed, was stopped or was too slow.

    *seconds*: as ``Patience`` counts them.
    """
    with ChildCall(action) as call:
        return call.answer(seconds)


class ChildCall:
    """A call of *action* in a child process.

    The child is forked now, and calls *action* when its answer is requested.
    """

    def __init__(self, action: Callable[[], bytes]) -> None:
        waiting, starting = os.pipe()
        reading, writing = os.pipe()
        parent, pid = os.getpid(), fork()
        if not pid:
            os.close(starting)
            _run(action, parent, waiting, writing)
        os.close(waiting)
        os.close(writing)
        self._child = ChildProcess(pid)
        self._starting, self._answer = starting, open(reading, "rb")  # see below

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._starting)
        self._answer.close()
        self._child.send(signal.SIGKILL)
        self._child.reap()

    def answer(self, seconds: float) -> bytes:
        """What the action returns; b"" if it failed, was stopped or was too slow.

        *seconds*: as ``Patience`` counts them.
        """
        os.write(self._starting, b"1")
        is_there = ready_in_time([self._answer.fileno()], seconds, [self._child.pid])
        length = self._answer.read(_LENGTH.size) if is_there else b""
        return self._answer.read(*_LENGTH.unpack(length)) if length else b""


def _run(action: Callable[[], bytes], parent: int, waiting: int, writing: int) -> NoReturn:
    """Call *action* in this child of *parent*, once *waiting* is readable, and write the answer."""
    try:
        from pytest_dataloader_faults._engine.system.libc import end_with_parent

        end_with_parent(parent)
        accept_signals()
        if os.read(waiting, 1):
            answer = action()
            with open(writing, "wb", buffering=0) as pipe:
                pipe.write(_LENGTH.pack(len(answer)) + answer)
    finally:
        os._exit(0)


# Stacks of other processes: each writes its stacks to its own file when it gets a signal.
#
# Some facts about faulthandler. Its handler writes to a number, whatever file that is by then, and
# a fork inherits both. It crashes the process if it walks the frames of a thread that runs
# meanwhile: so unless a process is stuck, only the thread that handles the signal is written. If
# several processes write to one file, their lines get mixed on a busy machine. The kernel blocks
# the signal for the thread that handles it, until that has written all.


_ALL_THREADS = getattr(signal, "SIGRTMAX", 64) - 3
_ONE_THREAD = _ALL_THREADS - 1
"""Numbers that programs do not use."""
_NAME = "pytest-dataloader-faults-stacks-of-process"
_PATIENCE, _IDLE_PATIENCE = 1.0, 0.1
"""Seconds for the stacks of a process, and for those of an idle one, as in a held call."""
_own: list[OwnedDescriptor] = []
"""The file of this process, if it has one."""


def write_on_signal() -> None:
    """Have this process and its forks write their stacks on request, even if they hang."""
    if not _own:
        _register()
        os.register_at_fork(after_in_child=_register_anew)


def _register() -> None:
    descriptor = os.memfd_create(_NAME, os.MFD_CLOEXEC)
    _own.append(OwnedDescriptor(descriptor))
    for number in (_ALL_THREADS, _ONE_THREAD):
        faulthandler.register(number, file=descriptor, all_threads=number == _ALL_THREADS)


def _register_anew() -> None:
    inherited = _own.pop()
    try:
        _register()
    except OSError:  # No descriptor is free.
        faulthandler.unregister(_ALL_THREADS)
        faulthandler.unregister(_ONE_THREAD)
    finally:
        inherited.close()


class StackRequest:
    """Request the stacks of the process *pid*, or of the one thread to which *send* sends a signal.

    Raises:
        OSError: The process has ended, or may not be inspected.
        LookupError: It does not write its stacks. The user's code may have closed the file, and
            opened another one with its number.
    """

    def __init__(self, pid: int, send: Callable[[int], object] | None = None) -> None:
        self._pid = pid
        self._signal = _ONE_THREAD if send else _ALL_THREADS
        if not proc.status(pid).caught >> (self._signal - 1) & 1:
            raise LookupError(pid)
        links = proc.descriptor_links(pid).items()
        number = next((number for number, link in links if _NAME in link), None)
        if number is None:
            raise LookupError(pid)
        self._descriptor = os.open(f"/proc/{pid}/fd/{number}", os.O_RDONLY | os.O_CLOEXEC)
        self._before = os.fstat(self._descriptor).st_size
        self._blocking = proc.threads_that_block(pid, self._signal)
        self._most = Patience(_PATIENCE, [pid])
        self._least = Patience(_IDLE_PATIENCE, [pid], SIGN_OF_LIFE)
        if send is None:
            os.kill(pid, self._signal)
        else:
            send(self._signal)

    def text(self) -> str:
        """What it has written, once that is all, unless it cannot write."""
        while not self.is_over():
            time.sleep(0.002)
        return self.take()

    def is_over(self) -> bool:
        """Whether it has written all, or cannot."""
        if not self._is_writing() or self._most.is_over():
            return True
        return self._least.is_over() and proc.state_of(self._pid) != "R"

    def take(self) -> str:
        """What it has written by now."""
        try:
            size = os.fstat(self._descriptor).st_size - self._before
            return os.pread(self._descriptor, size, self._before).decode(errors="replace")
        finally:
            os.close(self._descriptor)

    def _is_writing(self) -> bool:
        has_begun = os.fstat(self._descriptor).st_size > self._before
        blocking = proc.threads_that_block(self._pid, self._signal)
        return not has_begun or bool(blocking - self._blocking)
