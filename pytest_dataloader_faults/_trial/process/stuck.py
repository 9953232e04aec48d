"""Whether no batch can arrive any more, because a read hangs that nothing ends [in the trial].

Some facts about a read that hangs. The supervisor holds the call without an answer. Its caller
continues only if the dataset has its own timeout: another thread that wakes some time later,
another process, or a signal with a handler. A worker that has none of these stays where it is, so
the loader need not wait for its own timeout, which is a second of each battery. A signal that does
not kill does nothing to a thread whose call is held (seccomp(2),
SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV, since Linux 5.19), and Python's handlers run in the main
thread only. So the main thread must be the one that reads. A process shows its timers to itself
alone (getitimer(2)).

/proc/PID/task/TID/wchan shows whether a call is held by a filter, and schedstat in the same folder
how often the thread has run. A call that is held for a moment, as all are that the supervisor
follows, has its answer once the supervisor says that all workers are idle. A worker without work
waits for its queue, and looks every five seconds whether the loader is alive
(torch/utils/data/_utils/worker.py).
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Collection

from pytest_dataloader_faults._engine.kernel.linux import NAMES, signals_end_held_calls
from pytest_dataloader_faults._engine.system import proc

_HELD_IN = "seccomp_do_user_notification"
_TIMERS = {
    signal.SIGALRM: signal.ITIMER_REAL,
    signal.SIGVTALRM: signal.ITIMER_VIRTUAL,
    signal.SIGPROF: signal.ITIMER_PROF,
}


def is_stuck(workers: Collection[int], settle: Callable[[], object]) -> bool:
    """Whether one of the *workers* is in a read that nothing ends, and the others are idle.

    *settle* waits until the supervisor has answered all calls that it does not hold. False where
    the kernel does not say.
    """
    try:
        run_counts = _count_runs(workers)
        if run_counts is None:
            return False
        settle()
        return _count_runs(workers) == run_counts
    except OSError:
        return False


def _count_runs(workers: Collection[int]) -> dict[str, int] | None:
    """How often each thread of all *workers* has run.

    None if no thread is held, or if one may continue by itself, here or in one of them.
    """
    threads = [(pid, each) for pid in workers for each in proc.threads(pid)]
    if _may_go_on(workers) or not any(_is_held(*each) for each in threads):
        return None
    if not all(map(_is_idle, workers)):
        return None
    return {thread: proc.runs(pid, thread) for pid, thread in threads}


def _may_go_on(workers: Collection[int]) -> bool:
    """Whether a timer, a thread or another child of this process may do something meanwhile."""
    pid = os.getpid()
    if not {pid, *workers}.issuperset(proc.family(pid)):
        return True
    if any(signal.getitimer(each) != (0.0, 0.0) for each in _TIMERS.values()):
        return True
    return not all(_waits_forever(pid, each) for each in proc.threads(pid) if each != str(pid))


def _is_idle(worker: int) -> bool:
    """Whether nothing in *worker* continues unless the loader or the supervisor does something."""
    main, threads = str(worker), proc.threads(worker)
    held_threads = [each for each in threads if _is_held(worker, each)]
    if not all(
        each in held_threads or _waits_forever(worker, each) for each in threads if each != main
    ):
        return False
    if not held_threads:
        return _waits_for_work(worker)
    is_alone = list(proc.family(worker)) == [worker]
    is_interrupted = signals_end_held_calls() and _handles_timers(worker)
    return main in held_threads and is_alone and not is_interrupted


def _is_held(pid: int, thread: str) -> bool:
    return proc.waits_in(pid, thread).startswith(_HELD_IN)


def _waits_forever(pid: int, thread: str) -> bool:
    """Whether it waits for another thread, without a limit: the fourth argument of futex(2)."""
    call = proc.running_call(pid, thread)
    return call is not None and NAMES.get(call.number) == "futex" and not call.arguments[3]


def _waits_for_work(worker: int) -> bool:
    call = proc.running_call(worker)
    return call is not None and NAMES.get(call.number) in ("poll", "ppoll")


def _handles_timers(pid: int) -> bool:
    """Whether it has a handler for the signal of a timer, its own or one of pytest's plugins."""
    caught = proc.status(pid).caught
    return any(caught >> (number - 1) & 1 for number in _TIMERS)
