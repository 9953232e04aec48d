"""Whether a process sleeps, and until when, by the system call that it is in.

Some facts about a process that sleeps. /proc/PID/syscall (proc(5)) has the number of the call that
the main thread of a process is in, and its arguments; "running" if it is in none. time.sleep() is
clock_nanosleep(2) with the time of its end, or select(2) with no descriptor before Python 3.11. A
wait with a limit, as Event.wait(10), is futex(2) with the time of its end. The times are in the
memory of the process. Who may not trace it may see no more than the name of the kernel function
that it waits in, in /proc/PID/wchan.

A worker without work is in poll(2) of its queue, so that call tells nothing. A wait that ends every
second and begins again is how some libraries wait forever, as fsspec does in its ``sync``: only a
longer one will end by itself.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Callable

from pytest_dataloader_faults._engine.kernel.linux import MACHINE, read_memory

_TIME = struct.Struct("=qq")
_NUMBERS = {
    "x86_64": {35: "nanosleep", 230: "clock_nanosleep", 23: "select", 270: "select", 202: "futex"},
    "aarch64": {101: "nanosleep", 115: "clock_nanosleep", 72: "select", 98: "futex"},
}.get(MACHINE, {})
_MONOTONIC, _ABSOLUTE = 1, 1
_FUTEX_BITSET, _FUTEX_COMMANDS, _FUTEX_REALTIME = 9, 0x7F, 0x100
_LONG_WAIT = 2.0
"""Seconds that a wait with a limit still has, if it is to count."""
_ASLEEP_IN = ("hrtimer_nanosleep", "do_nanosleep")


def asleep_until(pid: int) -> float | None:
    """When the sleep of *pid* ends, by time.monotonic(); now if that is not known.

    None if it does not sleep.
    """
    now = time.monotonic()
    try:
        with open(f"/proc/{pid}/syscall", encoding="ascii") as file:
            return end_of_sleep(file.read(), lambda address: _time_at(pid, address), now)
    except OSError:
        return now if _waits_in(pid) in _ASLEEP_IN else None


def end_of_sleep(call: str, time_at: Callable[[int], float], now: float) -> float | None:
    """The end of the sleep that *call* is, a line of /proc/PID/syscall; None if it is none.

    *time_at*: the seconds at an address, in the memory of the process.
    """
    words = call.split()
    name = _NUMBERS.get(int(words[0])) if words and words[0].isdigit() else None
    if name is None:
        return None
    first, second, third, fourth, fifth = (int(word, 16) for word in words[1:6])
    if name == "nanosleep":
        return now + time_at(first)
    if name == "clock_nanosleep":
        if not second & _ABSOLUTE:
            return now + time_at(third)
        return time_at(third) if first == _MONOTONIC else now
    if name == "select":
        return now + time_at(fifth) if fifth and not first else None
    is_timed = second & _FUTEX_COMMANDS == _FUTEX_BITSET and not second & _FUTEX_REALTIME
    end = time_at(fourth) if fourth and is_timed else now
    return end if end - now > _LONG_WAIT else None


def _time_at(pid: int, address: int) -> float:
    seconds, small = _TIME.unpack(read_memory(pid, address, _TIME.size))
    return float(seconds + small / 1e9)


def _waits_in(pid: int) -> str:
    try:
        with open(f"/proc/{pid}/wchan", encoding="ascii") as file:
            return file.read()
    except OSError:
        return ""
