"""What the battery costs, beside bare epochs of the same loader: ``python benchmarks/battery.py``.

Each row is the median of several rounds, in which the bare epoch and the trial take turns. A trial
under a fault makes two passes, so twice the epoch is what no harness could go below. "CPU" is what
the trial's processes used, which tells more than the clock where the machine is not idle.
"""

from __future__ import annotations

import os
import resource
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset

from pytest_dataloader_faults import check_dataset, run_trial
from pytest_dataloader_faults._trial import take_reference
from pytest_dataloader_faults.faults import Fault, ReadError, WorkerExited, WorkerKilled

ROUNDS, FILES, SIZE = 9, 16, 64
TRIALS: dict[str, tuple[Fault, ...]] = {
    "without a fault": (),
    "reads fail": (ReadError(),),
    "a worker is killed": (WorkerKilled(),),
    "a worker leaves without a word": (WorkerExited(),),
}


class Records(Dataset[Any]):
    """Small files, opened for each sample, their length checked."""

    def __init__(self, folder: Path) -> None:
        self.paths = sorted(folder.iterdir())

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> torch.Tensor:
        data = self.paths[index].read_bytes()
        if len(data) != SIZE:
            message = f"{self.paths[index]}: {len(data)} bytes"
            raise ValueError(message)
        return torch.frombuffer(bytearray(data), dtype=torch.uint8)


def epoch(folder: Path) -> None:
    """One bare epoch with two forked workers."""
    for _ in DataLoader(Records(folder), num_workers=2, batch_size=4):
        pass


def seconds(work: Callable[[], object]) -> tuple[float, float]:
    """By the clock, and of CPU in child processes."""
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    work()
    wall, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    return wall, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def row(name: str, folder: Path, work: Callable[[], object]) -> None:
    """Measure epoch and *work* in turn, and print the medians and the ratio."""
    work()
    pairs = [(seconds(lambda: epoch(folder)), seconds(work)) for _ in range(ROUNDS)]
    bare, wall = (statistics.median(pair[which][0] for pair in pairs) for which in (0, 1))
    cpu = statistics.median(pair[1][1] for pair in pairs)
    ratio = statistics.median(trial[0] / alone[0] for alone, trial in pairs)
    print(f"{name:32} {bare:10.3f} {wall:10.3f} {ratio:8.1f} {cpu:10.3f}")


def main() -> None:
    """Print the table."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for number in range(FILES):
            (folder / f"{number:02}.bin").write_bytes(os.urandom(SIZE))
        title = f"seconds, median of {ROUNDS}"
        print(f"{title:32} {'epoch':>10} {'trial':>10} {'ratio':>8} {'CPU':>10}")
        row("reference", folder, lambda: take_reference(lambda: Records(folder)))
        for title, faults in TRIALS.items():
            row(title, folder, lambda faults=faults: run_trial(lambda: Records(folder), *faults))
        wall, cpu = seconds(lambda: check_dataset(lambda: Records(folder), on_fail=None))
        print(f"the battery: {wall:.1f} s, {cpu:.1f} s of CPU; it may take 15 s")


if __name__ == "__main__":
    main()
