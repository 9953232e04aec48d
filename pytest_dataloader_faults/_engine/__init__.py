"""The engine that makes faults happen: which one there is, and why not where there is none."""

from __future__ import annotations

import functools
import os
import signal
import warnings

from pytest_dataloader_faults._fake._state import fake_files
from pytest_dataloader_faults.exceptions import (
    EngineUnavailableError,
    InvalidArgumentError,
    UnusableEnvironmentError,
)

ENGINES = ("auto", "kernel", "python")
STACKS_SIGNAL = getattr(signal, "SIGRTMAX", 64) - 3
"""Asks a process of a trial for the stacks of its threads; far from what anybody uses."""


MORE_PROCESSES = (
    "End what nobody uses, or raise the limit: ulimit -u, docker run --pids-limit, or pids.max of"
    " the control group"
)


def fork() -> int:
    """os.fork(2) without the warning of Python 3.12 about other threads, which we know of.

    Raises:
        UnusableEnvironmentError: There is no room for another process.

    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        try:
            return os.fork()
        except OSError as error:
            message = f"too few processes: no other one starts ({error}). {MORE_PROCESSES}"
            raise UnusableEnvironmentError(message) from error


class Probe:
    """Find out by truly installing a filter, in a child that is thrown away.

    Started first and asked later, so that the child's work overlaps with the caller's.
    """

    def __init__(self) -> None:
        self._read, write = os.pipe()
        self._child = fork()
        if not self._child:
            _tell(write)
        os.close(write)

    def reason(self) -> str | None:
        """None if the kernel engine works here; otherwise what stands in its way."""
        with open(self._read, encoding="utf-8") as answer:
            text = answer.read()
        os.waitpid(self._child, 0)
        return None if text == "works" else text or "the probe died without an answer"


def _tell(write: int) -> None:
    """In the child: try, write one word or a reason, and leave without a trace."""
    try:
        from pytest_dataloader_faults._engine._probe import kernel_engine_reason

        os.write(write, (kernel_engine_reason() or "works").encode())
    finally:
        os._exit(0)


_probes: list[Probe] = []


def start_probe() -> None:
    """Begin to find out, so that ``unavailable`` need not wait."""
    if not _probes and hasattr(os, "fork"):
        _probes.append(Probe())


@functools.cache
def unavailable() -> str | None:
    """Why the kernel engine cannot run here, or None if it can."""
    start_probe()
    return _probes[0].reason() if _probes else "it needs Linux"


def is_portable() -> bool:
    """Whether the python engine can run here: its supervisor needs pidfd_open(2) of Linux."""
    try:
        os.close(os.pidfd_open(os.getpid()))
    except (AttributeError, OSError):
        return False
    return True


def choose(engine: str) -> str:
    """The engine to take for *engine*; raises EngineUnavailableError where there is none."""
    if engine not in ENGINES:
        allowed = ", ".join(map(repr, ENGINES))
        message = f"engine={engine!r} is not an engine. Choose one of {allowed}"
        raise InvalidArgumentError(message)
    if engine == "auto" and fake_files() is not None:
        engine = "python"  # The kernel never hears of a fake file.
    reason = "asked for" if engine == "python" else unavailable()
    if reason is None:
        return "kernel"
    if engine != "kernel" and is_portable():
        return "python"
    message = f"engine={engine!r}: no engine can run here: {unavailable()}"
    if engine == "kernel":
        message = f"engine={engine!r}: the kernel engine cannot run here: {reason}"
    raise EngineUnavailableError(message)
