"""The bar of a long call in a terminal."""

import fcntl
import os
import pty
import struct
import subprocess
import sys
import termios

import pytest

from support.inner import PYTHONPATH
from support.waiting import allowed

pytest.importorskip("tqdm")
SCRIPT = """
import multiprocessing
import sys
import threading
from pathlib import Path
from pytest_dataloader_faults import check_dataset, explore, sweep
from pytest_dataloader_faults.battery import progress
from pytest_dataloader_faults.faults import OpenError
from support.datasets import Records

with progress.bar("nothing"):
    assert multiprocessing.get_start_method(allow_none=True) is None
    assert threading.active_count() == 1
multiprocessing.set_start_method("fork")
def make(): return Records(Path(sys.argv[1]))
check_dataset(make, only=["workers-agree", "open-error"])
sweep(make, faults=[OpenError()], max_trials=2)
explore(make, max_examples=3)
"""


def _run(records, **streams):
    env = {**os.environ, "PYTHONPATH": PYTHONPATH}
    env.pop("PYTEST_CURRENT_TEST")
    command = [sys.executable, "-W", "ignore", "-c", SCRIPT, str(records)]
    return subprocess.run(command, env=env, check=True, timeout=allowed(120), **streams)


@pytest.mark.slow
def test_a_terminal_shows_how_far_a_call_is(records):
    reading, terminal = pty.openpty()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("4H", 24, 80, 0, 0))
    with open(reading, "rb", buffering=0) as screen, open(terminal, "wb") as stderr:
        _run(records, stderr=stderr)
        shown = screen.read(1 << 16).decode()
    for bar in ("check_dataset: 100%", "2/2", "sweep: 2it", "explore: "):
        assert bar in shown
