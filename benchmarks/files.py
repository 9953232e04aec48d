"""What a battery costs by the size and the number of files and of reads, and what memory it takes.

Shared memory is what the altered copies of files take, and the batches that torch sends. It is that
of the whole machine, beyond what was taken before.
"""

from __future__ import annotations

import contextlib
import os
import statistics
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import Dataset

from pytest_dataloader_faults import check_dataset
from subjects import Records, epoch, write_records
from timing import FEW_ROUNDS, Table, clock, in_turn, ratio, shown

SAMPLES, RECORD, MANY_READS = 64, 1 << 16, 100_000
KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
_BETWEEN_LOOKS = 0.01


class Shard(Dataset[Any]):
    """Samples far apart in one large file, each of them read in *reads* parts."""

    def __init__(self, path: Path, part: int, reads: int) -> None:
        self.path, self.part, self.reads = path, part, reads
        self.size = path.stat().st_size

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> torch.Tensor:
        fd = os.open(self.path, os.O_RDONLY)
        try:
            if os.fstat(fd).st_size != self.size:
                message = f"{self.path} is not {self.size} bytes long"
                raise EOFError(message)
            start = index * (self.size // SAMPLES)
            parts = [self._part(fd, start + n * self.part) for n in range(self.reads)]
            return torch.frombuffer(bytearray(b"".join(parts)), dtype=torch.uint8)
        finally:
            os.close(fd)

    def _part(self, fd: int, start: int) -> bytes:
        data = b""
        while len(data) < self.part:
            piece = os.pread(fd, self.part - len(data), start + len(data))
            if not piece:
                message = f"{self.path} ends at {start + len(data)}"
                raise EOFError(message)
            data += piece
        return data


def _records(count: int, size: int) -> Callable[[Path], Dataset[Any]]:
    return lambda folder: Records(write_records(folder / "records", count, size), size)


def make_shard(size: int, part: int, reads: int = 1) -> Callable[[Path], Dataset[Any]]:
    """A file of *size* bytes with holes, but where the samples are."""

    def make(folder: Path) -> Dataset[Any]:
        path = folder / "shard.bin"
        with open(path, "wb") as file:
            file.truncate(size)
            for index in range(SAMPLES):
                file.seek(index * (size // SAMPLES))
                file.write(os.urandom(part * reads))
        return Shard(path, part, reads)

    return make


SIZES = {
    "64 files of 64 bytes": _records(64, 64),
    "64 files of 100 KiB": _records(64, 100 * KIB),
    "64 files of 1 MiB": _records(64, MIB),
    "16 files of 20 MiB": _records(16, 20 * MIB),
    "a shard of 4 GiB, with holes": make_shard(4 * GIB, RECORD),
    "100,000 reads of 100 bytes": make_shard(GIB, 100, MANY_READS // SAMPLES),
}


def table(rounds: int) -> Table:
    """A battery, and its check of short reads beside that of a read error."""
    few_rounds = 1 if rounds <= FEW_ROUNDS else rounds // 4
    columns = ("the battery of", "bare epoch", "battery", "in bare epochs")
    rows = Table((*columns, "short-read / read-error", "shared memory"))
    for text, make in SIZES.items():
        with tempfile.TemporaryDirectory() as name:
            rows.rows.append((text, *_row(make(Path(name)), few_rounds)))
    return rows


def _row(dataset: Dataset[Any], rounds: int) -> tuple[str, ...]:
    def time_epochs() -> float:
        return statistics.median(in_turn(3, clock(lambda: epoch(dataset)))[0])

    def time_battery(only: str | None = None) -> Callable[[], float]:
        return clock(lambda: check_dataset(lambda: dataset, only=only, on_fail=None))

    with _shared_memory() as peak:
        bare, battery = in_turn(rounds, time_epochs, time_battery())
    short, error = in_turn(rounds, time_battery("short-read"), time_battery("read-error"))
    return (
        shown(statistics.median(bare)),
        shown(statistics.median(battery)),
        f"{ratio(bare, battery):.0f}",
        f"{ratio(error, short):.1f}",
        f"{peak[0] / MIB:.0f} MiB",
    )


@contextlib.contextmanager
def _shared_memory() -> Iterator[list[int]]:
    """The most bytes of shared memory that the machine had in this scope, beyond the first look."""
    base, over = _shmem(), threading.Event()
    peak = [0]

    def watch() -> None:
        while not over.wait(_BETWEEN_LOOKS):
            peak[0] = max(peak[0], _shmem() - base)

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield peak
    finally:
        over.set()
        watcher.join()


def _shmem() -> int:
    with open("/proc/meminfo", encoding="ascii") as lines:
        return next(int(line.split()[1]) * KIB for line in lines if line.startswith("Shmem:"))
