"""What other tools cost that fail the second read of one file: the reads of another, beside it.

Each tool has the same loader in ``reader.py``, run in turn. Where a tool is not installed, or does
not give the fault, its row says so.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from errno import EIO
from pathlib import Path

from timing import Table, ratio, shown

HERE = Path(__file__).parent
PKG_CONFIG = ["pkg-config", "fuse3", "--cflags", "--libs"]
NAMES = {
    "bare": "no tool",
    "plugin": "this plugin",
    "strace": "`strace --inject --seccomp-bpf`",
    "libfiu": "libfiu, fiu-run -x",
    "fuse": "FUSE, a file system in C",
    "pyfakefs": "pyfakefs, os.read replaced",
}
GIVEN = ([0, EIO, 0], [0, 0, 0])


class NotThereError(Exception):
    """A tool cannot be tried here. The text says why."""


def table(rounds: int) -> Table:
    """A row for each tool."""
    results = Table(
        ("one worker", "open, read and close", "relative to no tool", "the second read")
    )
    seconds: dict[str, list[float]] = {tool: [] for tool in NAMES}
    failed: dict[str, str] = {}
    with tempfile.TemporaryDirectory() as name, _files(name) as folders:
        for _ in range(max(1, rounds // 3)):
            for tool in NAMES:
                try:
                    seconds[tool].append(_measured(tool, folders))
                except NotThereError as error:
                    failed[tool] = str(error)
    for tool, text in NAMES.items():
        if tool in failed:
            results.rows.append((text, "", "", failed[tool]))
        else:
            samples, fault = seconds[tool], "" if tool == "bare" else "EIO"
            times = f"{ratio(seconds['bare'], samples):.1f}"
            results.rows.append((text, shown(statistics.median(samples)), times, fault))
    return results


def versions() -> dict[str, str]:
    """The versions of the tools, as far as they are here."""
    tool_versions = {}
    for name, command in {
        "strace": ["strace", "--version"],
        "libfiu": ["dpkg-query", "-W", "-f", "${Version}", "fiu-utils"],
        "libfuse": ["pkg-config", "fuse3", "--modversion"],
    }.items():
        if shutil.which(command[0]):
            process = subprocess.run(command, capture_output=True, text=True, check=False)
            if not process.returncode:
                tool_versions[name] = process.stdout.partition("\n")[0].split()[-1]
    return tool_versions


@contextmanager
def _files(name: str) -> Iterator[dict[str, Path]]:
    """The folder of files, and the same mounted by FUSE, if it can be."""
    folders = {"": Path(name, "files")}
    folders[""].mkdir()
    for file in ("good.bin", "bad.bin"):
        (folders[""] / file).write_bytes(os.urandom(4096))
    yield folders


def _measured(tool: str, folders: dict[str, Path]) -> float:
    """Seconds of a call beside the fault of *tool*."""
    folder = folders[""]
    if tool != "fuse":
        return _read(tool, folder)
    with _mounted(folder) as mounted:
        return _read(tool, mounted)


def _read(tool: str, folder: Path) -> float:
    command = [*_launcher(tool, folder), sys.executable, str(HERE / "reader.py"), tool, str(folder)]
    process = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    try:
        seconds, errnos = json.loads(process.stdout.splitlines()[-1])
    except (IndexError, ValueError):
        raise NotThereError((process.stderr.splitlines() or ["nothing was printed"])[-1]) from None
    if errnos != GIVEN[tool == "bare"]:
        raise NotThereError(f"the reads gave the errnos {errnos}")
    return float(seconds)


def _launcher(tool: str, folder: Path) -> list[str]:
    """What runs Python under *tool*."""
    needed = {"strace": "strace", "libfiu": "fiu-run"}.get(tool)
    if needed and not shutil.which(needed):
        raise NotThereError(f"{needed} is not installed")
    if tool == "strace":
        chosen = ["-P", str(folder / "bad.bin"), "-e", "inject=read:error=EIO:when=2"]
        quiet = ["-qq", "-o", os.devnull, "-e", "signal=none"]
        return ["strace", "-f", "--seccomp-bpf", *quiet, "-e", "trace=read", *chosen]
    return ["fiu-run", "-x", "-f", ""] if tool == "libfiu" else []


def _loopback(folder: Path) -> str:
    """The file system, compiled."""
    program = folder / "loopback"
    if not program.exists():
        try:
            options = subprocess.check_output(PKG_CONFIG, stderr=subprocess.DEVNULL, text=True)
            source = ["cc", "-O2", str(HERE / "loopback.c"), "-o", str(program)]
            subprocess.run([*source, *options.split()], check=True)
        except (OSError, subprocess.CalledProcessError) as error:
            raise NotThereError(f"it does not compile: {error}") from error
    return str(program)


@contextmanager
def _mounted(folder: Path) -> Iterator[Path]:
    """The files of *folder*, by a FUSE file system that runs meanwhile."""
    point = folder.parent / "mounted"
    point.mkdir(exist_ok=True)
    command = [_loopback(folder.parent), str(folder), str(point), "-f", "-s"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        while not os.path.ismount(point):
            if process.poll() is not None:
                raise NotThereError(process.communicate()[1].splitlines()[-1])
            time.sleep(0.01)
        yield point
    finally:
        if os.path.ismount(point):
            unmount = ["fusermount3", "-u", str(point)]
            subprocess.run(unmount, check=True)
        process.communicate()
