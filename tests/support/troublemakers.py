"""Datasets that damage the process they are in by themselves, without a fault."""

import contextlib
import mmap
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
from torch.utils.data import get_worker_info

from pytest_dataloader_faults._engine.supervisor.start import NAME
from support.datasets import Records
from support.waiting import until

LONG = 600.0
"""Seconds that nobody is meant to wait."""
_BOMB_ENDS_AFTER = 60.0
_FAMILY = 6


class Trouble(Records):
    """Makes *trouble* with its first sample in a worker, or in the main process.

    A trial with ``touch`` reads one sample in the main process before it starts workers.
    """

    def __init__(self, folder: Path, trouble: Callable[[], object], where: str) -> None:
        super().__init__(folder)
        self.trouble = trouble
        self.where = where
        self.pending = True
        self.kept: object = None

    def __getitem__(self, index: int) -> Any:
        side = "worker" if get_worker_info() else "loader"
        if self.pending and side == self.where:
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


class Replaced(Records):
    """Its second worker becomes another program; then the first one *fails*."""

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
            hang_forever()
        return super().__getitem__(index)


class Batches:
    """A batch sampler that makes *trouble*, in the main process, between its batches."""

    def __init__(
        self,
        start: list[tuple[int, ...]],
        trouble: Callable[[], object],
        remaining: list[tuple[int, ...]] | None = None,
    ) -> None:
        self.first = start
        self.trouble = trouble
        self.rest = remaining or []
        self.kept: object = None

    def __len__(self) -> int:
        return len(self.first) + len(self.rest)

    def __iter__(self) -> Iterator[tuple[int, ...]]:
        yield from self.first
        self.kept = self.trouble()
        yield from self.rest


def touch_missing_page() -> None:
    """The kernel sends SIGBUS: the mapping is longer than its file."""
    with tempfile.TemporaryFile() as file:
        file.truncate(mmap.PAGESIZE)
        with mmap.mmap(file.fileno(), mmap.PAGESIZE) as mapping:
            file.truncate(0)
            mapping[0]


def exit_silently() -> None:
    os._exit(3)


def raise_real_time_signal() -> None:
    """Kill this process by a signal without a name."""
    os.kill(os.getpid(), signal.SIGRTMIN + 5)


def hang_forever() -> None:
    time.sleep(LONG)


def ignore_signals_and_hang() -> None:
    """Hang, and ignore every signal that can be ignored."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGALRM):
        signal.signal(number, signal.SIG_IGN)
    hang_forever()


def fork_grandchildren() -> None:
    """Children in their own sessions, each with its own child, all of which stay."""
    for _ in range(_FAMILY):
        if not os.fork():
            _detach()
            os.fork()
            time.sleep(LONG)
            os._exit(0)


def fork_repeatedly() -> None:
    """A process that forks and ends, and so does its child, and so on, each after at most 5 ms."""
    deadline = time.monotonic() + _BOMB_ENDS_AFTER
    if os.fork():
        return
    _detach()
    while time.monotonic() < deadline:
        if os.fork():
            os._exit(0)
        time.sleep(0.002)
    os._exit(0)


def start_daemon() -> None:
    """A program in its own session, whose starter has exited, and which ignores polite signals."""
    command = f"trap '' TERM INT HUP; sleep {LONG:.0f}"
    if not os.fork():
        subprocess.Popen(["/bin/sh", "-c", command], start_new_session=True)
        os._exit(0)
    os.wait()


def take_every_descriptor() -> list[int]:
    descriptors = []
    try:
        while True:
            descriptors.append(os.open(os.devnull, os.O_RDONLY))
    except OSError:
        return descriptors


def close_standard_streams() -> None:
    for number in range(3):
        os.close(number)


def flood_streams() -> None:
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
    server = psutil.Process().parent()
    assert server is not None
    return server


def send(number: signal.Signals, whom: Callable[[], psutil.Process]) -> None:
    """What an outsider may do to a process of the harness; then try forever to read a file."""
    whom().send_signal(number)
    while True:
        with contextlib.suppress(OSError):
            Path(__file__).read_bytes()
        time.sleep(0.05)


def _detach() -> None:
    """A session of one's own, and nothing inherited that anybody could wait for."""
    os.setsid()
    os.closerange(3, 1024)


class KillsWardenOnArrival(Records):
    """Kills the warden when a new interpreter starts as a worker, which then takes long.

    Make it in the main process of a trial.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.warden = os.getppid()

    def __setstate__(self, state: dict[str, Any]) -> None:
        os.kill(state["warden"], signal.SIGKILL)
        time.sleep(60)
        self.__dict__.update(state)
