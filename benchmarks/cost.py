"""What the armed engine costs a worker that meets no fault.

Each row is measured in DataLoader workers of the same run, bare and armed in turn. "Armed" is a
fault whose glob matches none of the files: nothing fires.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path

from pytest_dataloader_faults import inject
from pytest_dataloader_faults.faults import Fault, ReadError
from subjects import Jpegs, Records, epoch, in_worker, open_read_close, write_jpegs, write_records
from timing import Measure, Table, clock

UNMATCHED = ReadError("*.nothing")


def armed(measure: Measure, *faults: Fault) -> Measure:
    """*measure* under *faults*, of which none fires."""

    def measured() -> float:
        with inject(*(faults or (UNMATCHED,)), require_fired=False):
            return measure()

    return measured


def table(rounds: int) -> Table:
    """The cost of calls, and of whole epochs."""
    rows = Table(("one worker, unless it says otherwise", "bare", "armed", "ratio"))

    def row(name: str, measure: Measure) -> None:
        rows.compare(name, rounds, measure, armed(measure))

    def calls(work: Callable[[], object]) -> Measure:
        return lambda: in_worker(work)

    with tempfile.TemporaryDirectory() as name:
        records = Records(write_records(Path(name, "records"), 16, 4096), 4096)
        photographs = Jpegs(write_jpegs(Path(name, "jpegs")))
        path = records.paths[0]
        fd = os.open(path, os.O_RDONLY)
        row("pread of a 4 KiB file", calls(lambda: os.pread(fd, 4096, 0)))
        row("open, read and close of one", calls(lambda: open_read_close(path)))
        row("the same by Path.read_bytes", calls(path.read_bytes))
        row("epoch: 64 JPEGs, 2 workers", clock(lambda: epoch(photographs)))
        row("epoch: 16 files of 4 KiB, 2 workers", clock(lambda: epoch(records)))
        os.close(fd)
    return rows
