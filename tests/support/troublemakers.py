"""Datasets that do harm by themselves, to the process they are in, with no fault armed."""

from __future__ import annotations

import contextlib
import mmap
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
from torch.utils.data import get_worker_info

from pytest_dataloader_faults._engine.supervisor.server import NAME
from support.datasets import Records
from support.waiting import until

LONG = 600.0
"""Seconds that nobody is meant to wait."""
_BOMB_ENDS_AFTER = 60.0
_FAMILY = 6


class Trouble(Records):
    """Makes *trouble* with its first sample in a worker, or in the loader's process.

    A trial with ``touch`` reads one sample in the loader's process before it starts workers.
    """

    def __init__(self, folder: Path, trouble: Callable[[], object], where: str) -> None:
        super().__init__(folder)
        self.trouble = trouble
        self.where = where
        self.pending = True
        self.kept: object = None

    def __getitem__(self, index: int) -> Any:
        here = "worker" if get_worker_info() else "loader"
        if self.pending and here == self.where:
            self.pending = False
            self.kept = self.trouble()
        return super().__getitem__(index)


class Slow(Records):
    """Has *count* samples, which take *seconds* each."""

    def __init__(self, folder: Path, count: int, seconds: float) -> None:
        super().__init__(folder)
        del self.paths[count:]
        self.seconds = seconds

    def __getitem__(self, index: int) -> Any:
        time.sleep(self.seconds)
        return super().__getitem__(index)


class HangsAfterwards(Records):
    """Never returns in the second pass over it, which it can tell by a mark of the first."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.mark = folder.parent / "mark"

    def __getitem__(self, index: int) -> Any:
        if not index and self.mark.exists():
            stare_at_the_wall()
        self.mark.touch()
        return super().__getitem__(index)


class Replaced(Records):
    """Its second worker becomes another program; the first one *fails* then."""

    def __init__(self, folder: Path, batch_size: int, *, fails: bool) -> None:
        super().__init__(folder)
        self.at = batch_size
        self.fails = fails
        self.note = folder.parent / "replaced"

    def __getitem__(self, index: int) -> Any:
        if get_worker_info() and index == self.at:
            self.note.write_text(str(os.getpid()))
            os.execv("/bin/sleep", ["sleep", str(LONG)])  # noqa: S606
        if get_worker_info() and not index and self.fails:
            assert until(self._is_replaced)
            raise ValueError("sample 0 is damaged")
        return super().__getitem__(index)

    def _is_replaced(self) -> bool:
        pid = self.note.read_text() if self.note.exists() else ""
        return bool(pid) and Path(f"/proc/{pid}/comm").read_text() == "sleep\n"


class Announced(Records):
    """Hangs in its workers, each of which first says so by an empty file *announced*/<pid>."""

    def __init__(self, folder: Path, announced: Path) -> None:
        super().__init__(folder)
        self.announced = announced

    def __getitem__(self, index: int) -> Any:
        if get_worker_info():
            (self.announced / str(os.getpid())).touch()
            stare_at_the_wall()
        return super().__getitem__(index)


class Batches:
    """A batch sampler that makes *trouble*, in the loader's process, between its batches."""

    def __init__(
        self,
        first: list[tuple[int, ...]],
        trouble: Callable[[], object],
        rest: list[tuple[int, ...]] | None = None,
    ) -> None:
        self.first = first
        self.trouble = trouble
        self.rest = rest or []
        self.kept: object = None

    def __len__(self) -> int:
        return len(self.first) + len(self.rest)

    def __iter__(self) -> Iterator[tuple[int, ...]]:
        yield from self.first
        self.kept = self.trouble()
        yield from self.rest


def touch_a_missing_page() -> None:
    """The kernel sends SIGBUS: the mapping is longer than its file."""
    with tempfile.TemporaryFile() as file:
        file.truncate(mmap.PAGESIZE)
        with mmap.mmap(file.fileno(), mmap.PAGESIZE) as mapping:
            file.truncate(0)
            mapping[0]


def leave() -> None:
    """No farewell, no traceback."""
    os._exit(3)


def leave_in_peace() -> None:
    """Exit at once, and say that all is well."""
    os._exit(0)


def send_a_real_time_signal() -> None:
    """Kill this process by a signal that has no name."""
    os.kill(os.getpid(), signal.SIGRTMIN + 5)


def stare_at_the_wall() -> None:
    """Hang."""
    time.sleep(LONG)


def turn_a_deaf_ear() -> None:
    """Hang, and ignore every signal that can be ignored."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGALRM):
        signal.signal(number, signal.SIG_IGN)
    stare_at_the_wall()


def found_a_dynasty() -> None:
    """Children in sessions of their own, each with a child of its own, all of which stay."""
    for _ in range(_FAMILY):
        if not os.fork():
            _leave_the_family()
            os.fork()
            time.sleep(LONG)
            os._exit(0)


def run_from_body_to_body() -> None:
    """A process that forks and ends, and so does its child, and so on: no pid lasts 5 ms."""
    deadline = time.monotonic() + _BOMB_ENDS_AFTER
    if os.fork():
        return
    _leave_the_family()
    while time.monotonic() < deadline:
        if os.fork():
            os._exit(0)
        time.sleep(0.002)
    os._exit(0)


def start_a_daemon() -> None:
    """A program in a session of its own, whose starter is gone, deaf to polite signals."""
    command = f"trap '' TERM INT HUP; sleep {LONG:.0f}"
    if not os.fork():
        subprocess.Popen(["/bin/sh", "-c", command], start_new_session=True)
        os._exit(0)
    os.wait()


def take_every_descriptor() -> list[int]:
    """Open files until there is no descriptor left, and keep them."""
    taken = []
    try:
        while True:
            taken.append(os.open(os.devnull, os.O_RDONLY))
    except OSError:
        return taken


def close_standard_streams() -> None:
    """What a careless daemon does."""
    for number in range(3):
        os.close(number)


def talk() -> None:
    """4 MB on each stream, past every buffer of Python's, with half a line at the end."""
    for number, stream in ((1, sys.stdout), (2, sys.stderr)):
        for _ in range(64):
            os.write(number, b"blah " * 13_000 + b"\n")
        stream.write("NOISE without an end of line")


def warden() -> psutil.Process:
    """The process that holds the deadline: the parent of the one that drives the loader."""
    above = psutil.Process().parents()
    return above[1] if get_worker_info() else above[0]


def supervisor() -> psutil.Process:
    """The process that answers the workers' calls."""
    return next(each for each in warden().children() if each.name() == NAME)


def fork_server() -> psutil.Process:
    """What has started this worker."""
    found = psutil.Process().parent()
    assert found is not None
    return found


def send(number: signal.Signals, whom: Callable[[], psutil.Process]) -> None:
    """What an outsider may do to a process of the harness; then try forever to read a file."""
    whom().send_signal(number)
    while True:
        with contextlib.suppress(OSError):
            Path(__file__).read_bytes()
        time.sleep(0.05)


def end_the_supervisor() -> None:
    """Kill the process that answers the workers' calls."""
    victim = supervisor()
    victim.kill()
    while victim.status() != psutil.STATUS_ZOMBIE:
        time.sleep(0.01)


def end_the_supervisor_and_hang() -> None:
    """Kill it, and wait for an answer that nobody will give."""
    end_the_supervisor()
    stare_at_the_wall()


def replace_signal_handlers() -> None:
    """Take every handler that Python can take, and the descriptor that signals wake."""
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP, signal.SIGSEGV}:
        try:
            signal.signal(number, _ignore)
        except OSError:  # Some belong to the C library.
            continue
    signal.set_wakeup_fd(-1)


def start_a_thread() -> None:
    """One that the interpreter waits for at its end."""
    threading.Thread(target=time.sleep, args=(LONG,), name="left running").start()


def _ignore(_number: int, _frame: object) -> None:
    pass


def _leave_the_family() -> None:
    """A session of one's own, and nothing inherited that anybody could wait for."""
    os.setsid()
    os.closerange(3, 1024)


class KillsWardenOnArrival(Records):
    """In a worker that is started anew, it has the warden killed, and then takes long to arrive."""

    def __setstate__(self, state: dict[str, Any]) -> None:
        psutil.Process().parents()[1].kill()
        time.sleep(60)
        self.__dict__.update(state)
