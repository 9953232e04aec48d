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

import numpy as np
import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset

from pytest_dataloader_faults import inject, run_trial
from pytest_dataloader_faults.faults import ReadError

ROUNDS, CALLS, FILES, SIZE = 9, 400, 16, 4096
JPEGS, PIXELS = 64, (500, 375)


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


class Jpegs(Files):
    """Photographs, decoded for each sample."""

    def __getitem__(self, index: int) -> torch.Tensor:
        with Image.open(self.paths[index]) as image:
            return torch.from_numpy(np.array(image))


def open_read_close(path: Path) -> None:
    """Read a file by system calls alone."""
    descriptor = os.open(path, os.O_RDONLY)
    os.read(descriptor, SIZE)
    os.close(descriptor)


def write_jpegs(folder: str) -> list[Path]:
    """Files of the size of ImageNet's, about 50 KiB each."""
    paths = [Path(folder, f"{number:02}.jpg") for number in range(JPEGS)]
    for number, path in enumerate(paths):
        few = np.random.default_rng(number).integers(0, 255, (48, 64, 3), np.uint8)
        Image.fromarray(few).resize(PIXELS, Image.Resampling.BICUBIC).save(path, quality=90)
    return paths


def armed() -> contextlib.AbstractContextManager[object]:
    """A scope in which nothing fires."""
    return inject(ReadError("*.nothing"), require_fired=False)


def in_worker(work: Callable[[], object]) -> float:
    """Seconds per call of *work* in a DataLoader worker."""
    return float(next(iter(DataLoader(Timed(work), num_workers=1, batch_size=None))))


def of_epoch(dataset: Dataset[Any]) -> float:
    """Seconds of one epoch with two forked workers."""
    began = time.perf_counter()
    for _ in DataLoader(dataset, num_workers=2, batch_size=4):
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
            return in_worker(lambda: open_read_close(paths[0]))

        def open_in_python() -> float:
            return in_worker(paths[0].read_bytes)

        def epoch() -> float:
            return of_epoch(Files(paths))

        photographs = Jpegs(write_jpegs(folder))

        def jpeg_epoch() -> float:
            return of_epoch(photographs)

        title = f"median of {ROUNDS} rounds, microseconds"
        print(f"{title:44} {'bare':>12} {'armed':>12}    ratio")
        row("pread of a 4 KiB file that is not faulted", read_one, within(read_one))
        row("open, read and close of one", open_one, within(open_one))
        row("the same by Path.read_bytes", open_in_python, within(open_in_python))
        row("epoch: 64 JPEGs, 2 forked workers", jpeg_epoch, within(jpeg_epoch))
        row("epoch: 16 files, 2 forked workers", epoch, within(epoch))
        row("the same epoch as a trial", epoch, lambda: of_trial(paths))
        os.close(fd)


if __name__ == "__main__":
    main()
