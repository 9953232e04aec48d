"""How many trials a search makes in a second.

One forked worker and a dataset that reads one small file per sample: what remains is the cost of a
trial itself. That bounds a search; drawing costs a few milliseconds per example. A run in this
process starts no worker and no other process. It needs fake files.
"""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from torch.utils.data import DataLoader

from pytest_dataloader_faults import explore, run_trial, strategies
from pytest_dataloader_faults._settings import Settings
from pytest_dataloader_faults.fake_files import FakeDatasetFs
from pytest_dataloader_faults.faults import ReadError
from pytest_dataloader_faults.search._search import Survey
from subjects import Records, write_records
from timing import Table, clock, in_turn, shown

FILES, SIZE, EXAMPLES = 4, 64, 40
LOADER = {"num_workers": 1, "batch_size": 4}
TRANSIENT = ReadError("*.bin", times=1)


def table(rounds: int) -> Table:
    """What a search is made of."""
    speeds = Table(("one worker, 4 files", "each", "per second"))
    few_rounds = max(1, rounds // 3)

    def row(text: str, rounds: int, work: Callable[[], object], count: int = 1) -> None:
        ((*samples,),) = in_turn(rounds, clock(work))
        seconds = statistics.median(samples) / count
        speeds.rows.append((text, shown(seconds), f"{1 / seconds:.1f}"))

    with tempfile.TemporaryDirectory() as name:
        folder = write_records(Path(name, "records"), FILES, SIZE)
        files = Survey(lambda: Records(folder), Settings()).files
        drawn = strategies.fault_schedules(files=files)
        row("a schedule is drawn", few_rounds, lambda: _draw(drawn), EXAMPLES)
        row("a bare epoch", rounds, lambda: list(DataLoader(Records(folder), **LOADER)))
        row("a trial without a fault", rounds, lambda: _trial(folder))
        row("a trial with a transient ReadError", rounds, lambda: _trial(folder, TRANSIENT))
        row(f"explore, {EXAMPLES} examples", few_rounds, lambda: explore_records(folder), EXAMPLES)
    with FakeDatasetFs() as files:
        for number in range(FILES):
            files.create_file(f"/fake/{number}.bin", contents=bytes([number + 1] * SIZE))
        row("a trial over fake files", rounds, lambda: _trial(Path("/fake"), TRANSIENT))
    return speeds


def _trial(folder: Path, *faults: ReadError) -> None:
    run_trial(lambda: Records(folder), *faults, loader=LOADER)


def explore_records(folder: Path) -> None:
    explore(lambda: Records(folder), loader=LOADER, max_examples=EXAMPLES, database=None, seed=1)


def _draw(drawn: Any) -> None:
    """Draw as many as a search does."""

    @settings(database=None, max_examples=EXAMPLES, deadline=None)
    @given(drawn)
    def draw(schedule: object) -> None:
        del schedule

    draw()
