"""What torch's handler of SIGCHLD does to a loop over a DataLoader whose worker is killed.

python docs/sigchld.py lock --attempts 200        a lock that is never released: the loop hangs
python docs/sigchld.py swallowed --attempts 20    an error of the loop's own step is ignored
python docs/sigchld.py profiler --attempts 200    the same, and it is torch that ignores it

Plain torch, without the plugin. Each attempt is a fork of this process, in its own session,
under a watchdog that writes its stack and ends it. The script prints each late or hung attempt at
once, and the sums at the end. An idle machine shows the most.
"""

from __future__ import annotations

import argparse
import faulthandler
import math
import os
import re
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from typing import IO

import torch
from torch.utils.data import DataLoader, Dataset

LATE = 2.0
"""Seconds after the death. The signal needs fewer; without it torch looks every 5 s."""


class Dies(Dataset[int]):
    """Kills its worker with the sample at `at`, and leaves the time of it in `died`."""

    def __init__(self, at: int) -> None:
        self.at = at
        self.died = torch.zeros(1, dtype=torch.float64).share_memory_()

    def __len__(self) -> int:
        return 6000

    def __getitem__(self, index: int) -> int:
        if index == self.at:
            self.died[0] = time.monotonic()
            os.kill(os.getpid(), signal.SIGKILL)
        return index


def lock(dataset: Dies) -> None:
    """A worker dies while the main thread puts indices into the queues."""
    for _ in DataLoader(dataset, num_workers=2, collate_fn=list, prefetch_factor=3000):
        pass


def swallowed(dataset: Dies) -> None:
    """A worker dies while the main thread does a step whose errors do not matter."""
    for _ in DataLoader(dataset, num_workers=2, collate_fn=list):
        with suppress(Exception):
            sum(range(1_000_000))


def profiler(dataset: Dies) -> None:
    """A worker dies while the main thread enters the loop, where torch imports a module."""
    for _ in DataLoader(dataset, num_workers=2, collate_fn=list):
        pass


WAYS: dict[str, tuple[Callable[[Dies], None], int]] = {
    "lock": (lock, 0),
    "swallowed": (swallowed, 20),
    "profiler": (profiler, 0),
}
"""By name: the loop, and the sample that kills."""


def attempt(way: str, patience: float) -> str:
    """What became of one loop."""
    with tempfile.TemporaryFile("w+") as report:
        child = os.fork()
        if not child:
            _in_the_child(way, patience, report)
        _, status = os.waitpid(child, 0)
        with suppress(ProcessLookupError):
            os.killpg(child, signal.SIGKILL)
        report.seek(0)
        text = report.read()
    if text.startswith("Timeout"):
        return f"hung: {_main_thread(text)}"
    return text or f"the attempt itself ended, with status {status}"


def _in_the_child(way: str, patience: float, report: IO[str]) -> None:
    """Loop, write how it ended, and end this process."""
    try:
        os.setsid()
        faulthandler.dump_traceback_later(patience, exit=True, file=report)
        loop, at = WAYS[way]
        dataset, heard = Dies(at), math.inf
        try:
            loop(dataset)
        except RuntimeError:
            heard = time.monotonic() - dataset.died.item()
        # With the error went the last reference to the iterator, which then ended its workers.
        faulthandler.cancel_dump_traceback_later()
        report.write("in time" if heard < LATE else f"late: after {heard:.1f} s")
        report.flush()
    finally:
        os._exit(0)


def _main_thread(stacks: str) -> str:
    """The functions that the main thread is in, innermost first."""
    main = next(each for each in stacks.split("\n\n") if _in_the_child.__name__ in each)
    frames = re.findall(r"/(\w+\.py)\", line (\d+) in (\w+)", main)
    return " < ".join(f"{function} ({file}:{line})" for file, line, function in frames[:5])


def main(arguments: list[str] | None = None) -> None:
    """Try one way this many times, and print what came of it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("way", choices=WAYS)
    parser.add_argument("--attempts", type=int, default=200)
    parser.add_argument("--patience", type=float, default=30.0, help="seconds before it hangs")
    options = parser.parse_args(arguments)
    ends: Counter[str] = Counter()
    for number in range(options.attempts):
        end = attempt(options.way, options.patience)
        ends[end.partition(":")[0]] += 1
        if end != "in time":
            print(f"{number}: {end}", flush=True)
    print(f"{options.way}, torch {torch.__version__}, {options.attempts} attempts:", end=" ")
    print(", ".join(f"{count} {end}" for end, count in ends.items()), flush=True)


if __name__ == "__main__":
    sys.exit(main())
