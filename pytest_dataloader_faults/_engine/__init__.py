"""The engine that makes faults happen: which one there is, and why not where there is none."""

from __future__ import annotations

import functools
import os

from pytest_dataloader_faults._engine.processes import fork
from pytest_dataloader_faults._engine.python.pyfakefs import fake_files
from pytest_dataloader_faults.exceptions import (
    EngineUnavailableError,
    InvalidArgumentError,
)

ENGINES = ("auto", "kernel", "python")


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
        from pytest_dataloader_faults._engine.kernel.probe import kernel_engine_reason

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
