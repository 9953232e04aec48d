"""Run rounds as the first process of a PID namespace: each in a fork of this one [runs there].

All that a round starts is below this process, wherever it has gone, and in /proc of this namespace.
Forks have torch already. The arguments are a seed, the first round, the last one, and the limits;
a result is printed for each round.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from multiprocessing import util
from pathlib import Path
from typing import NoReturn

from chaos import roles
from chaos.hurts import Hurt, shortage
from chaos.results import Result, longest
from chaos.rounds import Limits, Round, draw
from chaos.subjects import Subject
from pytest_dataloader_faults._engine import explain_missing_engine
from support.datasets import write_records

_LONGEST = 90.0
"""Seconds after which a subject counts as stuck: no deadline is that long."""
_LONGEST_WORD = 20_000
"""Bytes. The words of a subject must fit into a pipe."""
_BETWEEN_LOOKS = 0.0005
_OF_TORCH = "torchinductor_"
"""A cache that torch keeps."""
_SHARED = Path("/dev/shm")
_TEMPORARY = Path(os.environ["TMPDIR"])
_DATA = _TEMPORARY.with_name("data")
_ROOM = {_SHARED: "size=64m", _TEMPORARY: "size=64m,nr_inodes=400,mode=1777", _DATA: "mode=755"}


def main() -> None:
    """Run the rounds that the arguments tell."""
    seed, start, stop, limits = json.loads(sys.argv[1])
    for folder, options in _ROOM.items():
        _run_command("mount", "-t", "tmpfs", "-o", options, "tmpfs", folder)
    records = write_records(_DATA / "records")
    tempfile.tempdir = None
    tempfile.gettempdir()  # It makes a file, once, to see whether it can.
    explain_missing_engine()  # Asked once, here, and not by each round.
    for number in range(start, stop):
        drawn = draw(seed, number, Limits(**{name: tuple(each) for name, each in limits.items()}))
        sys.stdout.write(json.dumps(_run(drawn, records).to_dict()) + "\n")
        sys.stdout.flush()


def _run(drawn: Round, records: Path) -> Result:
    facts = _facts(records)
    began = time.monotonic()
    reading, writing = os.pipe()
    with shortage(drawn, _TEMPORARY) as prepare:
        main_pid = os.fork()
        if not main_pid:
            os.close(reading)
            _be_the_subject(drawn, records, writing, prepare)
        os.close(writing)
        hurt = Hurt(drawn, main_pid)
        ended = _wait(hurt, main_pid)
        hurt.end()
        clean_after = _wait_until_alone()
    leftovers = tuple(_end_leftovers())
    with open(reading, "rb") as pipe:
        words = pipe.read().decode(errors="replace").split("\0")[:-1]
    changed = tuple(path for path, fact in _facts(records).items() if facts.get(path) != fact)
    seconds = round(time.monotonic() - began, 2)
    return Result(drawn, hurt.acted, tuple(words), ended, clean_after, leftovers, changed, seconds)


def _be_the_subject(
    drawn: Round, records: Path, writing: int, prepare: Callable[[], None]
) -> NoReturn:
    """Be pytest's process, and never return."""
    try:
        os.setsid()
        null = os.open(os.devnull, os.O_RDWR)
        for number in (0, 1, 2):
            os.dup2(null, number)
        os.close(null)
        os.set_inheritable(writing, False)
        prepare()
        signal.signal(signal.SIGINT, signal.default_int_handler)
        for word in Subject(drawn, records).words():
            _write_word(writing, word)
        util._exit_function()
        atexit._run_exitfuncs()
    except BaseException:  # noqa: BLE001  # there is no caller to go back to
        _write_word(writing, traceback.format_exc())
    finally:
        os._exit(0)


def _write_word(writing: int, word: str) -> None:
    content = word.encode(errors="replace")[:_LONGEST_WORD]
    os.write(writing, content.replace(b"\0", b"") + b"\0")


def _wait(hurt: Hurt, main_pid: int) -> str:
    """How the subject ended, while the hurt is done."""
    until = time.monotonic() + _LONGEST
    while time.monotonic() < until:
        hurt_again = hurt.look()
        for pid, status in _reap():
            if pid == main_pid:
                code = os.waitstatus_to_exitcode(status)
                return signal.Signals(-code).name if code < 0 else f"status {code}"
        time.sleep(_BETWEEN_LOOKS if hurt_again else 0.01)
    return "stuck"


def _reap() -> Iterator[tuple[int, int]]:
    with contextlib.suppress(ChildProcessError):
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if not pid:
                return
            yield pid, status


def _wait_until_alone() -> float | None:
    began = time.monotonic()
    while remaining := roles.processes().values():
        only_servers = all(map(roles.is_server, remaining))
        if time.monotonic() - began > longest(only_servers=only_servers):
            return None
        list(_reap())
        time.sleep(0.005)
    return round(time.monotonic() - began, 3)


def _end_leftovers() -> Iterator[str]:
    """The names of processes and files that are left, which are removed."""
    for pid, process in roles.processes().items():
        yield f"process {process.name} ({process.command[:80]!r}, parent {process.parent})"
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    while roles.processes():
        list(_reap())
        time.sleep(0.005)
    for folder in (_SHARED, _TEMPORARY):
        for path in sorted(folder.iterdir()):
            if not path.name.startswith(_OF_TORCH):
                yield str(path)
            _run_command("rm", "-rf", str(path))


def _run_command(*command: str) -> None:
    subprocess.run(["/usr/bin/env", *command], check=True)


def _facts(records: Path) -> dict[str, tuple[object, ...]]:
    """All that would show that somebody has written to a file."""
    facts: dict[str, tuple[object, ...]] = {}
    for path in (records, *records.iterdir()):
        now = path.stat()
        content = path.read_bytes() if path.is_file() else b""
        facts[str(path)] = (now.st_mode, now.st_size, now.st_mtime_ns, now.st_ctime_ns, content)
    return facts


if __name__ == "__main__":
    main()
