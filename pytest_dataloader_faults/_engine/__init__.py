"""The engine that makes faults happen: which one works here, and if none does, why."""

from __future__ import annotations

import functools
import os
import sys

from pytest_dataloader_faults._engine.processes import fork
from pytest_dataloader_faults._engine.python.pyfakefs import fake_files
from pytest_dataloader_faults.exceptions import EngineUnavailableError

_ELSEWHERE = (
    "it needs Linux, and this is {}. Run such tests on Linux: in CI, in a container or in a virtual"
    " machine. Here, leave them out: pytest -m 'not dataloader_faults'"
)


class Probe:
    """Installs a filter in a child process, to find out whether that works.

    It is started before its answer is needed, so that the child works while the caller does.
    """

    def __init__(self) -> None:
        self._read, write = os.pipe()
        self._child = fork()
        if not self._child:
            try:
                from pytest_dataloader_faults._engine.kernel.probe import kernel_engine_reason

                os.write(write, (kernel_engine_reason() or "works").encode())
            finally:
                os._exit(0)
        os.close(write)

    def reason(self) -> str | None:
        """None if the kernel engine works here; otherwise the reason why not."""
        with open(self._read, encoding="utf-8") as answer:
            text = answer.read()
        os.waitpid(self._child, 0)
        return None if text == "works" else text or "the probe died without an answer"


@functools.cache
def start_probe() -> Probe | None:
    """Begin to find out, so that ``unavailable`` need not wait."""
    return Probe() if sys.platform == "linux" else None


@functools.cache
def unavailable() -> str | None:
    """Why the kernel engine cannot run here, or None if it can."""
    probe = start_probe()
    return probe.reason() if probe else _ELSEWHERE.format(sys.platform)


def is_portable() -> bool:
    """Whether the python engine can run here: its supervisor needs pidfd_open(2) of Linux."""
    try:
        os.close(os.pidfd_open(os.getpid()))
    except (AttributeError, OSError):
        return False
    return True


def not_linux() -> EngineUnavailableError:
    """The error on another system. pytest and unittest skip a test, or a module, that raises it."""
    from unittest import SkipTest

    class NotLinuxError(EngineUnavailableError, SkipTest):
        """Nothing is shown, and nothing is wrong with the tests."""

    return NotLinuxError(f"no engine can run here: {unavailable()}")


def choose(engine: str) -> str:
    """The engine to take for *engine*; raises EngineUnavailableError where there is none."""
    from pytest_dataloader_faults._arguments import check

    check(engine=engine)
    if sys.platform != "linux":
        raise not_linux()
    if engine == "auto" and fake_files() is not None:
        engine = "python"  # The kernel does not see fake files.
    reason = "asked for" if engine == "python" else unavailable()
    if reason is None:
        return "kernel"
    if engine != "kernel" and is_portable():
        return "python"
    lacking = {"kernel": reason, "python": "it needs pidfd_open(2), of Linux 5.3 or newer"}
    if engine in lacking:
        message = f"the {engine} engine cannot run here: {lacking[engine]}"
    else:
        message = f"no engine can run here: {reason}"
    raise EngineUnavailableError(f"engine={engine!r}: {message}")
