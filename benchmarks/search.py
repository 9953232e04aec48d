"""How many trials a search makes in a second: ``python benchmarks/search.py``.

One forked worker and a dataset that reads one small file per sample: what remains is the cost of a
trial itself. That bounds a search; drawing costs a few milliseconds per example. A run in this
process starts no worker and no other process. It needs fake files.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from hypothesis import given, settings
from torch.utils.data import DataLoader, Dataset

from pytest_dataloader_faults import explore, run_trial, strategies
from pytest_dataloader_faults.battery._survey import survey
from pytest_dataloader_faults.fake_files import FakeDatasetFs
from pytest_dataloader_faults.faults import ReadError

FILES, SIZE, ROUNDS, EXAMPLES = 4, 64, 9, 40
LOADER = {"num_workers": 1, "batch_size": 4}


class Files(Dataset[Any]):
    """Small files, opened for each sample."""

    def __init__(self, folder: Path) -> None:
        self.paths = sorted(folder.iterdir())

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> torch.Tensor:
        data = self.paths[index].read_bytes()
        if len(data) != SIZE:
            message = f"{self.paths[index]}: {len(data)} bytes, expected {SIZE}"
            raise ValueError(message)
        return torch.frombuffer(bytearray(data), dtype=torch.uint8)


def seconds(work: Callable[[], object]) -> float:
    """The median over the rounds."""
    taken = []
    for _ in range(ROUNDS):
        began = time.perf_counter()
        work()
        taken.append(time.perf_counter() - began)
    return statistics.median(taken)


def row(name: str, each: float) -> None:
    """One line of the table."""
    print(f"{name:48} {each * 1000:8.1f} ms {1 / each:8.1f} per second")


def main() -> None:
    """Print the table."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for number in range(FILES):
            (folder / f"{number}.bin").write_bytes(bytes([number + 1] * SIZE))
        found = survey(lambda: Files(folder))
        drawn = strategies.fault_schedules(files=found)
        quick = settings(database=None, max_examples=EXAMPLES, deadline=None)
        row("a schedule is drawn", seconds(lambda: _draw(drawn, quick)) / EXAMPLES)
        row("a bare epoch", seconds(lambda: list(DataLoader(Files(folder), **LOADER))))
        row("a trial without a fault", seconds(lambda: _trial(folder)))
        row("a trial with a transient ReadError", seconds(lambda: _trial(folder, _TRANSIENT)))
        began = time.perf_counter()
        explore(lambda: Files(folder), loader=LOADER, max_examples=EXAMPLES, database=None, seed=1)
        row(f"explore, {EXAMPLES} examples", (time.perf_counter() - began) / EXAMPLES)
    with FakeDatasetFs() as files:
        for number in range(FILES):
            files.create_file(f"/fake/{number}.bin", contents=bytes([number + 1] * SIZE))
        row("a trial over fake files", seconds(lambda: _trial(Path("/fake"), _TRANSIENT)))
        row("a run in this process", seconds(lambda: _run_many(files)) / EXAMPLES)


_TRANSIENT = ReadError("*.bin", times=1)


def _trial(folder: Path, *faults: ReadError) -> None:
    run_trial(lambda: Files(folder), *faults, loader=LOADER)


def _run_many(files: Any) -> None:
    for _ in range(EXAMPLES):
        assert files.run(lambda: Files(Path("/fake")), _TRANSIENT).fired


def _draw(drawn: Any, quick: settings) -> None:
    """Draw as many as a search does."""

    @quick
    @given(drawn)
    def draw(schedule: object) -> None:
        del schedule

    draw()


if __name__ == "__main__":
    main()
