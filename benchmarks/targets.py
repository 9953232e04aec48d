"""What the project aims at, beside bare work: batteries and searches by CPU, epochs by the clock.

CPU is that of all processes, user and system. It depends less than time on what else runs here.
"""

from __future__ import annotations

import statistics
import tempfile
from pathlib import Path
from typing import Any

from torch.utils.data import DataLoader, Dataset

import cost
import search
from battery import FILES, check_records
from files import KIB, MIB, make_shard
from processes import run_pytest, write_suite
from subjects import Records, epoch, write_records
from timing import Measure, Table, clock, cpu, in_turn, ratio, shown

EPOCHS = 5
"""The kernel counts CPU in steps of 10 ms, and a bare epoch takes only a few."""
DATASETS = 3


def table(rounds: int) -> Table:
    """A row for each aim."""
    aims = Table(("", "bare", "this", "in bare", "aim"))

    def row(text: str, aim: str, bare: Measure, compared: Measure) -> None:
        samples = in_turn(rounds, bare, compared)
        medians = [shown(statistics.median(each)) for each in samples]
        aims.rows.append((text, *medians, f"{ratio(*samples):.2f}", aim))

    with tempfile.TemporaryDirectory() as name:
        folder = write_records(Path(name, "records"), FILES)
        bare = cpu(lambda: [epoch(Records(folder)) for _ in range(EPOCHS)], EPOCHS)
        row("`check_dataset`, CPU", "112", bare, cpu(lambda: check_records(folder)))
        row("one more dataset by the fixture, CPU", "115", bare, _measure_more(Path(name)))
        few = write_records(Path(name, "few"), search.FILES, search.SIZE)
        of_search = cpu(lambda: [_iterate(few) for _ in range(EPOCHS)], EPOCHS)
        per_trial, seconds = _explore(few)
        row("`explore`: a trial, CPU", "", of_search, per_trial)
        speed = f"{search.EXAMPLES / statistics.median(seconds):.1f}"
        aims.rows.append(("`explore`: trials per second", "", speed, "", "12"))
        for text, aim, dataset in _epochs(Path(name)):
            measure = clock(lambda dataset=dataset: epoch(dataset))
            row(f"an epoch of {text}, by the clock", aim, measure, cost.armed(measure))
    return aims


def _epochs(folder: Path) -> list[tuple[str, str, Dataset[Any]]]:
    """What each epoch reads, the aim under a fault of another file, and the dataset."""
    small, large = (
        Records(write_records(folder / f"{count}_files", count, size), size)
        for count, size in ((64, 4 * KIB), (16, MIB))
    )
    pieces = make_shard(64 * MIB, 4 * KIB, 64)(folder)
    return [
        ("64 files of 4 KiB", "1.4", small),
        ("16 files of 1 MiB", "1.3", large),
        ("4,096 reads of 4 KiB", "1.9", pieces),
    ]


def _iterate(folder: Path) -> None:
    for _ in DataLoader(Records(folder), **search.LOADER):
        pass


def _explore(folder: Path) -> tuple[Measure, list[float]]:
    """The CPU of one trial of a search, and the seconds of each search by the clock."""
    seconds: list[float] = []

    def explore() -> None:
        seconds.append(clock(lambda: search.explore_records(folder))())

    return cpu(explore, search.EXAMPLES), seconds


def _measure_more(folder: Path) -> Measure:
    """The CPU of a dataset in a suite of several, without that of pytest and the first one."""
    suites = {count: folder / f"suite_{count}" for count in (1, DATASETS)}
    for count, suite in suites.items():
        write_suite(suite, [list(range(count))])
    one, several = (cpu(lambda suite=suite: run_pytest(suite)) for suite in suites.values())
    return lambda: (several() - one()) / (DATASETS - 1)
