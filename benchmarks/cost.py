"""What the armed engine costs, as ratios measured side by side: ``python benchmarks/cost.py``.

Each row is measured in DataLoader workers of the same run, bare and armed in turn, and shows the
median of the rounds. "Armed" is a fault whose glob matches none of the files: nothing fires.
"""

from __future__ import annotations

import contextlib
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset

from pytest_dataloader_faults import inject, run_trial
from pytest_dataloader_faults.faults import ReadError

ROUNDS, CALLS, FILES, SIZE = 9, 400, 16, 4096


class Timed(Dataset[Any]):
    """One sample: the seconds that *work* takes in the worker, per call."""

    def __init__(self, work: Callable[[], object]) -> None:
        self.work = work

    def __len__(self) -> int:
        return 1

    def __getitem__(self, index: int) -> float:
        self.work()
        began = time.perf_counter()
        for _ in range(CALLS):
            self.work()
        return (time.perf_counter() - began) / CALLS


class Files(Dataset[Any]):
    """Small files, opened for each sample."""

    def __init__(self, paths: list[Path]) -> None:
        self.paths = paths

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.frombuffer(bytearray(self.paths[index].read_bytes()), dtype=torch.uint8)


def armed() -> contextlib.AbstractContextManager[object]:
    """A scope in which nothing fires."""
    return inject(ReadError("*.nothing"), require_fired=False)


def in_worker(work: Callable[[], object]) -> float:
    """Seconds per call of *work* in a DataLoader worker."""
    return float(next(iter(DataLoader(Timed(work), num_workers=1, batch_size=None))))


def of_epoch(paths: list[Path]) -> float:
    """Seconds of one epoch with two forked workers."""
    began = time.perf_counter()
    for _ in DataLoader(Files(paths), num_workers=2, batch_size=4):
        pass
    return time.perf_counter() - began


def of_trial(paths: list[Path]) -> float:
    """Seconds of a trial without faults over the same epoch."""
    began = time.perf_counter()
    run_trial(lambda: Files(paths))
    return time.perf_counter() - began


def row(name: str, measure: Callable[[], float], other: Callable[[], float]) -> None:
    """Measure bare and armed in turn, and print the median of each and of their ratios."""
    pairs = [(measure(), other()) for _ in range(ROUNDS)]
    bare, loaded = (statistics.median(column) * 1e6 for column in zip(*pairs, strict=True))
    ratio = statistics.median(second / first for first, second in pairs)
    print(f"{name:44} {bare:12.1f} {loaded:12.1f} {ratio:8.2f}")


def main() -> None:
    """Print the table."""
    with tempfile.TemporaryDirectory() as folder:
        paths = [Path(folder, f"{number:02}.bin") for number in range(FILES)]
        for path in paths:
            path.write_bytes(os.urandom(SIZE))
        fd = os.open(paths[0], os.O_RDONLY)

        def within(measure: Callable[[], float]) -> Callable[[], float]:
            def measured() -> float:
                with armed():
                    return measure()

            return measured

        def read_one() -> float:
            return in_worker(lambda: os.pread(fd, SIZE, 0))

        def open_one() -> float:
            return in_worker(paths[0].read_bytes)

        def epoch() -> float:
            return of_epoch(paths)

        title = f"median of {ROUNDS} rounds, microseconds"
        print(f"{title:44} {'bare':>12} {'armed':>12}    ratio")
        row("pread of a 4 KiB file that is not faulted", read_one, within(read_one))
        row("open and read of one that is not faulted", open_one, within(open_one))
        row("epoch: 16 files, 2 forked workers", epoch, within(epoch))
        row("the same epoch as a trial", epoch, lambda: of_trial(paths))
        os.close(fd)


if __name__ == "__main__":
    main()
