"""Test bodies in a separate process, which may use what pytest's own must not."""

import functools
import os
import resource
import traceback
from collections.abc import Callable

from pytest_dataloader_faults._engine.system.processes import fork

_MOST = 60_000
"""Bytes that a pipe takes before anybody reads."""


def in_a_process(body: Callable[[], object]) -> str:
    """The traceback of *body* in a fork of this process; "" if it came to its end."""
    source, sink = os.pipe()
    child = fork()
    if not child:
        _run(body, sink)
    os.close(sink)
    _, status = os.waitpid(child, 0)
    with open(source, "rb") as pipe:
        os.set_blocking(source, False)  # Who outlives the child may hold the other end.
        output = pipe.read() or b""
    return output.decode() if status == 0 else f"it ended with status {status}"


def in_its_own_process(
    soft: int | None = None, hard: int | None = None
) -> Callable[[Callable[..., object]], Callable[..., None]]:
    """A decorator that runs a test in a fork, with these limits of descriptors if they are given.

    Without *hard*, that limit stays as it is.
    """

    def decorate(test: Callable[..., object]) -> Callable[..., None]:
        @functools.wraps(test)
        def run_in_process(**fixtures: object) -> None:
            def body() -> None:
                if soft is not None:
                    _, hard_now = resource.getrlimit(resource.RLIMIT_NOFILE)
                    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard or hard_now))
                test(**fixtures)

            assert not (error_text := in_a_process(body)), error_text

        return run_in_process

    return decorate


def _run(body: Callable[[], object], sink: int) -> None:
    try:
        body()
    except BaseException:  # noqa: BLE001  # pytest must not see it twice.
        os.write(sink, traceback.format_exc().encode()[-_MOST:])
    finally:
        os._exit(0)


NOBODY = 65534


def become_nobody() -> None:
    os.setgroups([])
    os.setgid(NOBODY)
    os.setuid(NOBODY)
