"""Processes: start one, see how another one is, and list what this one has open.

Some facts about looking at a process. waitid(2) with WNOWAIT tells a parent how its child ended and
leaves it to be waited for; no other process can know. A child of a process that ignores SIGCHLD is
gone without a trace. One that is stopped has the state T in /proc/PID/stat (t under a debugger):
its sockets stay open and take messages, and no answer comes. The second number in
/proc/PID/task/TID/schedstat is the time in nanoseconds that a thread waited in a run queue.
"""

from __future__ import annotations

import contextlib
import glob
import os
import re
import select
import signal
import stat
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import NamedTuple

import pytest_dataloader_faults as package
from pytest_dataloader_faults.exceptions import UnusableEnvironmentError


def state_of(pid: int) -> str | None:
    """The letter of its state in /proc/PID/stat; None if it is gone."""
    return _state_and_parent(pid)[0]


def _state_and_parent(pid: int) -> tuple[str | None, int]:
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            state, parent = file.read().rpartition(")")[2].split()[:2]
    except (OSError, ValueError):
        return None, 0
    return state, int(parent)


def is_below(pid: int, ancestors: Collection[int]) -> bool:
    """Whether *pid* is one of *ancestors*, or descends from one."""
    while pid and pid not in ancestors:
        pid = _state_and_parent(pid)[1]
    return bool(pid)


def is_dead(pid: int) -> bool:
    """Whether it is gone, or only waits for its parent to ask how it ended."""
    return state_of(pid) in (None, "Z", "X")


def is_stopped(pid: int) -> bool:
    """Whether it is stopped until it gets SIGCONT."""
    return state_of(pid) in ("T", "t")


def seconds_without_cpu(pid: int) -> float:
    """How long a thread of *pid* was ready to run and had no processor: the one that had it worst.

    A kernel without CONFIG_SCHED_INFO does not say, and neither does a process that is gone.
    """
    seconds = 0.0
    for path in glob.iglob(f"/proc/{pid}/task/*/schedstat"):
        with contextlib.suppress(OSError), open(path, encoding="ascii") as file:
            seconds = max(seconds, int(file.read().split()[1]) / 1e9)
    return seconds


def how_it_ended(pid: int) -> str | None:
    """How this process's child *pid* ended; "" as it should, and None if it runs."""
    try:
        end = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return ""
    if end is None:
        return None
    if end.si_code != os.CLD_EXITED:
        return end_in_words(-end.si_status)
    return end_in_words(end.si_status) if end.si_status else ""


def end_in_words(code: int) -> str:
    """How a process ended that has this exit status or, where it is negative, got this signal."""
    if code < 0:
        from pytest_dataloader_faults.outcomes.text import signal_name

        return f"was killed by {signal_name(-code)}"
    return f"ended with exit status {code}"


STACKS_SIGNAL = getattr(signal, "SIGRTMAX", 64) - 3
"""Asks a process of a trial for the stacks of its threads; a number that programs do not use."""


MORE_PROCESSES = (
    "End what is not needed, or raise the limit: ulimit -u, docker run --pids-limit, or pids.max of"
    " the control group"
)


def code_to_run(main_module: str) -> str:
    """What a new interpreter, by ``-c``, runs to call ``main`` of that module of this package."""
    above = os.path.realpath(os.path.join(os.path.dirname(package.__file__), ".."))
    return f"import sys; sys.path.insert(0, {above!r});from {main_module} import main; main()"


def fork() -> int:
    """os.fork(2) without the warning of Python 3.12 about other threads, which we know of."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        try:
            return os.fork()
        except OSError as error:
            raise UnusableEnvironmentError(
                f"too few processes: no other one starts ({error}). {MORE_PROCESSES}"
            ) from error


LONGEST_WAIT = 1_000_000.0
"""Seconds, 11 days: poll(2) takes milliseconds as an int, and time.sleep() nanoseconds as another.
Who waits longer than that for something asks again."""


def ready(descriptors: Iterable[int], seconds: float) -> list[int]:
    """Those of *descriptors* that can be read, or have ended, at the latest after *seconds*.

    select(2) takes no number above 1023, and pytest may have them: hence poll(2).
    """
    poll = select.poll()
    for descriptor in descriptors:
        poll.register(descriptor, select.POLLIN)
    wait = min(max(0.0, seconds), LONGEST_WAIT)
    return [descriptor for descriptor, _ in poll.poll(1000 * wait)]


def has_ended(pid: int, seconds: float) -> bool:
    """Whether the process *pid* ends within *seconds*; one that is gone has ended.

    Raises OSError where no descriptor is free.
    """
    try:
        watched = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(ready([watched], seconds))
    finally:
        os.close(watched)


class MemoryMapping(NamedTuple):
    """One line of /proc/self/maps that is a file's."""

    start: int
    length: int
    protection: int
    offset: int
    path: str


def inherited_fds(matches: Callable[[str], bool]) -> Iterator[tuple[int, str]]:
    """Descriptors of matching files that are open already."""
    for name in sorted(os.listdir("/proc/self/fd"), key=int):
        try:
            path = os.readlink(f"/proc/self/fd/{name}")
        except FileNotFoundError:  # The one that listed the folder.
            continue
        fd = int(name)
        if fd in (0, 1, 2):
            continue  # Where a test's output goes is no dataset's.
        if _is_there(path) and matches(path) and stat.S_ISREG(os.fstat(fd).st_mode):
            yield fd, path


def fd_info(fd: int, pid: int | str = "self") -> dict[str, str]:
    """What /proc/PID/fdinfo/FD says, by name: see proc(5)."""
    with open(f"/proc/{pid}/fdinfo/{fd}", encoding="ascii", errors="replace") as file:
        return dict(line.split(":\t", 1) for line in file if ":\t" in line)


def is_write_only(fd: int, pid: int | str = "self") -> bool:
    """Whether nothing can be read from *fd*, as from a log, or from where pytest's output goes."""
    return int(fd_info(fd, pid)["flags"], 8) & os.O_ACCMODE == os.O_WRONLY


_FOLDER_LINK = re.compile(
    r"(?:/proc/(?:self|thread-self|(\d+))(?:/task/\d+)?|/dev)/(cwd|root|fd/\d+)/+(.*)", re.DOTALL
)


def behind_folder_link(path: str, pid: int) -> str:
    """*path* as process *pid* uses it, not by way of a link such as /proc/self/cwd.

    That link is followed where it comes first. Symbolic links that lead to one are not.
    """
    while found := _FOLDER_LINK.fullmatch(path):
        folder = os.readlink(f"/proc/{found[1] or pid}/{found[2]}")
        path = os.path.join(folder, found[3])
    return path


def _is_there(path: str) -> bool:
    """Whether *path*, as /proc gives it, is that of a file that has its name still."""
    return path.startswith("/") and not path.endswith(" (deleted)")


_MAPPING = re.compile(rb"^(\w+)-(\w+) (\S+) (\w+) \S+ \d+ +(/.*)$", re.MULTILINE)
_FILE_NAME = re.compile(rb"/.*")  # Only \n ends a line; \r may be in a name.
_PROTECTION = {b"r": 1, b"w": 2, b"x": 4}


def inherited_mappings(matches: Callable[[str], bool]) -> Iterator[MemoryMapping]:
    """Each stretch of memory that is a matching file's, where the file has its name still.

    A process with torch has 400 of them. So names are looked at first, each one once.
    """
    with open("/proc/self/maps", "rb") as file:
        text = file.read()
    paths = {name: _mapped_path(name) for name in {*_FILE_NAME.findall(text)}}
    meant = {name: path for name, path in paths.items() if _is_there(path) and matches(path)}
    for *numbers, rights, offset, name in _MAPPING.findall(text) if meant else ():
        if name in meant:
            start, end = (int(number, 16) for number in numbers)
            protection = sum(bit for letter, bit in _PROTECTION.items() if letter in rights)
            yield MemoryMapping(start, end - start, protection, int(offset, 16), meant[name])


def _mapped_path(name: bytes) -> str:
    r"""The file behind *name*. The kernel writes \012 for a newline, but a backslash as it is."""
    path = os.fsdecode(name)
    if r"\012" in path and not os.path.lexists(path):
        return path.replace(r"\012", "\n")
    return path
