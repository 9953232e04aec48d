"""Waiting for a condition or an action, longer on a busy machine."""

import os
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pytest_dataloader_faults._engine.system.proc import seconds_without_cpu


def allowed(seconds: float) -> float:
    """How long something may take now that takes less than *seconds* on an idle machine.

    It is multiplied by the number of processes that want each processor. If that may change, call
    it again before you give up.
    """
    recent, *_, running, _ = Path("/proc/loadavg").read_text(encoding="ascii").split()
    wanting = max(float(recent), float(running.partition("/")[0]))
    return seconds * max(1.0, wanting / len(os.sched_getaffinity(0)))


def unhindered_time() -> float:
    """Seconds of the clock, less those for which this process has waited for a processor."""
    return time.monotonic() - seconds_without_cpu(os.getpid())


def until(condition: Callable[[], bool], patience: float = 30.0) -> bool:
    """Whether *condition* came true within *patience* seconds of an idle machine."""
    began = time.monotonic()
    while not condition():
        passed = time.monotonic() - began
        if passed > patience and passed > allowed(patience):
            return False
        time.sleep(0.02)
    return True


def output_of(process: subprocess.Popen[str], patience: float = 60.0) -> tuple[str, str]:
    """What *process* prints until its end; it is killed if it has not ended in time."""
    began = time.monotonic()
    while True:
        try:
            return process.communicate(timeout=patience)
        except subprocess.TimeoutExpired:
            if time.monotonic() - began > allowed(patience):
                process.kill()
                raise


_LEAST_WEIGHT = 19
"""Of nice(2): next to one other process, a processor for a sixtieth of the time."""


def crowd_out(pid: int, core: int) -> None:
    """Leave the process *pid* little of a *core* for which others compete."""
    os.sched_setaffinity(pid, {core})
    os.setpriority(os.PRIO_PROCESS, pid, _LEAST_WEIGHT)


def in_a_thread(action: Callable[[], Any], patience: float = 60.0) -> Any:
    """What *action* returns in its own thread.

    It is not a thread of an executor: a process that is forked in one would join it when it exits
    (concurrent/futures/thread.py, ``_python_exit``) and end with status 1, which torch may notice.
    """
    results: list[Any] = []
    thread = threading.Thread(target=lambda: results.append(action()))
    thread.start()
    thread.join(allowed(patience))
    return results[0]
