"""Pytest inside a test: a fork of this process runs an inner suite.

A new interpreter imports torch again, which costs two seconds for each suite. In the fork it is
there, and all that the suite does to its process ends with that.
"""

import contextlib
import functools
import gc
import importlib
import logging
import multiprocessing
import os
import signal
import subprocess
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

import pytest_dataloader_faults as package
from pytest_dataloader_faults.report.command import main
from support.waiting import allowed

Entry = Callable[[list[str]], int]
PYTHONPATH = os.pathsep.join(
    str(Path(file).resolve().parents[1]) for file in (__file__, package.__file__)
)
"""What an inner pytest needs to find: tests/support, and the very package that is under test."""
_PATIENCE = 200


def start_python(
    *arguments: object, command: Sequence[str] = (), **options: Any
) -> subprocess.Popen[str]:
    """Another interpreter, which finds tests/support, with pipes for what it prints."""
    defaults = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    environment = {"env": {**os.environ, "PYTHONPATH": PYTHONPATH}}
    line = [*command, sys.executable, *map(str, arguments)]
    return subprocess.Popen(line, **{**defaults, **environment, **options})


def start_forked(code: str, *arguments: object, **options: Any) -> subprocess.Popen[str]:
    """A fork of this process that runs *code* as a script, with pipes for what it prints.

    It has torch, whose import costs a new interpreter more than most trials.
    """
    listed = os.listdir("/proc/self/fd")
    kept = {each for each in listed if os.path.lexists(f"/proc/self/fd/{each}")}
    kept |= {str(number) for number in options.pop("pass_fds", ())}
    defaults = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    run = functools.partial(_run_code, code, list(map(str, arguments)), kept)
    # It never gets to the program, so that preexec_fn is what the process does.
    return subprocess.Popen([sys.executable], preexec_fn=run, **{**defaults, **options})  # noqa: PLW1509


def _run_code(code: str, arguments: list[str], kept: set[str]) -> None:
    for number in set(os.listdir("/proc/self/fd")) - kept - {"0", "1", "2"}:
        with contextlib.suppress(OSError):  # The one that listed the folder.
            os.close(int(number))  # With the last of these pipes, Popen() returns.
    sys.stdout, sys.stderr = (os.fdopen(number, "w", closefd=False) for number in (1, 2))
    logging.getLogger().handlers.clear()
    warnings.resetwarnings()
    sys.argv = ["-c", *arguments]
    status = 0
    try:
        exec(compile(code, "<forked>", "exec"), {"__name__": "__main__"})  # noqa: S102
    except BaseException as error:  # noqa: BLE001  # as at the end of an interpreter
        traceback.print_exc()
        status = 1
        if isinstance(error, KeyboardInterrupt):
            sys.stderr.flush()
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGINT)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


_NEEDED = (
    "numpy.random",
    "torch.utils.data",
    "pytest_dataloader_faults._engine.arm",
    "pytest_dataloader_faults._trial.warden",
    "pytest_dataloader_faults.plugin._fault_check",
    "pytest_dataloader_faults.injection",
    "pytest_dataloader_faults.report.html",
)
"""What most suites import: once here, and not in each fork. Not later than this module, or pytester
would take them out of sys.modules at the end of its test."""
for _name in _NEEDED:
    importlib.import_module(_name)


def run_forked(folder: Path, *arguments: str) -> pytest.RunResult:
    """What ``pytest`` with *arguments* does and prints in *folder*."""
    return _result_of(folder, folder, [f"--basetemp={folder / 'inner'}", *arguments], pytest.main)


def run_command_forked(folder: Path, output: Path, *arguments: str) -> pytest.RunResult:
    """What ``pytest-dataloader-faults`` with *arguments* does and prints in *folder*.

    The files of what it prints are in *output*.
    """
    return _result_of(folder, output, [*arguments], main)


def _result_of(folder: Path, output: Path, arguments: list[str], entry: Entry) -> pytest.RunResult:
    streams = [output / name for name in ("stdout", "stderr")]
    began = time.monotonic()
    status = run_process(folder, streams, arguments, entry=entry)
    out, err = (each.read_text(encoding="utf-8").splitlines() for each in streams)
    print(*out, *err, sep="\n")  # noqa: T201  # for the report of a test that fails
    return pytest.RunResult(status, out, err, time.monotonic() - began)


def run_process(
    folder: Path,
    streams: list[Path],
    arguments: list[str],
    environment: dict[str, str] | None = None,
    entry: Entry = pytest.main,
) -> int:
    """The exit status of pytest in a fork, which prints into *streams*.

    *environment* takes the place of this process's own. *entry*: what runs pytest.
    """
    process = multiprocessing.get_context("fork").Process(
        target=_run, args=(folder, streams, arguments, environment, entry)
    )
    process.start()
    process.join(allowed(_PATIENCE))
    if process.is_alive():
        process.kill()
        process.join()
    return process.exitcode or 0


def _run(
    folder: Path,
    streams: list[Path],
    arguments: list[str],
    environment: dict[str, str] | None,
    entry: Entry,
) -> None:
    """Run pytest in this process, which has nothing of the outer one's set-up any more."""
    gc.freeze()  # At its end pytest collects five times; through the outer one's objects, 250 ms.
    os.chdir(folder)
    if environment is not None:
        os.environ.clear()
        os.environ.update(environment)
    for number, path in enumerate(streams, start=1):
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(fd, number)
        os.close(fd)
    sys.stdout, sys.stderr = (os.fdopen(number, "w", closefd=False) for number in (1, 2))
    logging.getLogger().handlers.clear()
    warnings.resetwarnings()
    if xdist := sys.modules.get("xdist.plugin"):
        xdist._sys_path[:] = sys.path  # It has that of the time when it was imported.
    status = entry(arguments)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


PRELOADED = "process.fork_server"
"""In the command line of the process that imports torch for workers from a fork server."""
