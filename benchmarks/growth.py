"""How the cost of the armed engine grows: with files, workers, faults in a schedule and globs."""

from __future__ import annotations

import tempfile
from pathlib import Path

from cost import armed
from pytest_dataloader_faults.faults import ReadError
from subjects import Records, epoch, in_worker, open_read_close, write_records
from timing import Table, clock

FILES, WORKERS, MANY = (16, 256, 4096), (1, 2, 4, 8), (1, 16, 256)


def table(rounds: int) -> Table:
    """Epochs over more files or with more workers, and calls under more faults or globs."""
    costs = Table(("", "bare", "armed", "ratio"))
    with tempfile.TemporaryDirectory() as name:
        folders = {count: write_records(Path(name, str(count)), count) for count in FILES}
        for count, folder in folders.items():
            measure = clock(lambda folder=folder: epoch(Records(folder)))
            costs.compare(f"epoch: {count:,} files, workers: 2", rounds, measure, armed(measure))
        for workers in WORKERS:
            measure = clock(lambda workers=workers: epoch(Records(folders[256]), workers))
            costs.compare(f"epoch: 256 files, workers: {workers}", rounds, measure, armed(measure))
        _calls(costs, rounds, folders[16] / "000000.bin")
    return costs


def _calls(costs: Table, rounds: int, path: Path) -> None:
    def call() -> float:
        return in_worker(lambda: open_read_close(path))

    for count in MANY:
        faults = [ReadError(f"*.nothing{number}") for number in range(count)]
        text = f"open, read and close, faults: {count}"
        costs.compare(text, rounds, call, armed(call, *faults))
    for count in MANY:
        globs = tuple(f"*.nothing{number}" for number in range(count))
        text = f"open, read and close, paths of one fault: {count}"
        costs.compare(text, rounds, call, armed(call, ReadError(globs)))
