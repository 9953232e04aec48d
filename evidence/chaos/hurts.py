"""What is done to a subject: signals to a process, and a machine that lacks something."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random

from chaos import roles
from chaos.rounds import SIGNALS, Round
from support.surroundings import with_processes

_PAUSE = 0.3
"""Seconds between SIGSTOP and SIGCONT."""
_FEW = (24, 128)
"""The least and the most descriptors that a subject may have."""
_FEW_PROCESSES = (1, 12)
"""The same of processes and threads."""
_BLOCK = bytes(1 << 20)


class Hurt:
    """That of *drawn*, which is done once to the subject whose process is *main*."""

    def __init__(self, drawn: Round, main: int) -> None:
        self._drawn = drawn
        self._main = main
        self._due: float | None = None
        self._target: int | None = None
        self._paused_until: float | None = None
        self.acted = not drawn.role

    def look(self) -> bool:
        """Do what is due now; whether to look again soon."""
        if self._paused_until is not None:
            if time.monotonic() >= self._paused_until:
                self._continue_target()
            return True
        if self.acted:
            return False
        if self._target is None:
            self._aim()
        if self._due is not None and time.monotonic() >= self._due:
            self._act()
        return True

    def _aim(self) -> None:
        pids = roles.with_role(self._drawn.role, self._main, self._drawn.method)
        if pids:
            self._target = Random(self._drawn.number).choice(pids)
            self._due = time.monotonic() + self._drawn.delay

    def _act(self) -> None:
        assert self._target is not None
        self._due = None
        act = "stop" if self._drawn.act == "pause" else self._drawn.act
        try:
            os.kill(self._target, signal.Signals[SIGNALS[act]])
        except ProcessLookupError:  # The next one of that role, then.
            self._target = None
            return
        self.acted = True
        if self._drawn.act == "pause" or (self._drawn.act, self._drawn.role) == ("stop", "main"):
            self._paused_until = time.monotonic() + _PAUSE

    def end(self) -> None:
        """End a pause that has outlasted the subject."""
        if self._paused_until is not None:
            self._continue_target()

    def _continue_target(self) -> None:
        assert self._target is not None
        self._paused_until = None
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._target, signal.SIGCONT)


@contextlib.contextmanager
def shortage(drawn: Round, temporary: Path) -> Iterator[Callable[[], None]]:
    """Have less of what *drawn* says; yields what is left to do in the subject's own process."""
    with contextlib.ExitStack() as stack:
        if drawn.act == "full-shm":
            stack.enter_context(_filled(Path("/dev/shm")))
        elif drawn.act == "full-tmp":
            stack.enter_context(_filled(temporary))
        elif drawn.act == "no-inodes":
            stack.enter_context(_without_inodes(temporary))
        yield _limit(drawn)


@contextlib.contextmanager
def _filled(folder: Path) -> Iterator[None]:
    path = folder / "filled-by-the-campaign"
    with path.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(_BLOCK)
    yield
    path.unlink()


@contextlib.contextmanager
def _without_inodes(folder: Path) -> Iterator[None]:
    paths = []
    with contextlib.suppress(OSError):
        while True:
            path = folder / f"filled-by-the-campaign-{len(paths)}"
            path.touch()
            paths.append(path)
    yield
    for path in paths:
        path.unlink()


def _limit(drawn: Round) -> Callable[[], None]:
    stream = Random(drawn.number)
    if drawn.act == "no-processes":
        return with_processes(stream.randint(*_FEW_PROCESSES))
    if drawn.act == "few-descriptors":
        limit = stream.randint(*_FEW)
        return lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
    return lambda: None
