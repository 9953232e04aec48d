"""What trials and batteries cost, beside bare epochs of the same loader.

A trial under a fault makes two passes, so twice the epoch is what no harness could go below.
"""

from __future__ import annotations

import json
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

from processes import run_pytest
from pytest_dataloader_faults import _trial, check_dataset, run_trial
from pytest_dataloader_faults.faults import Fault, ReadError, WorkerExited, WorkerKilled
from subjects import Records, epoch, write_records
from timing import FEW_ROUNDS, ROUNDS, Table, clock, in_turn, ratio, shown

FILES, MANY_FILES, SAMPLES = 16, 100_000, (16, 256)
TRIALS: dict[str, tuple[Fault, ...]] = {
    "a trial without a fault": (),
    "a trial with failing reads": (ReadError(),),
    "a trial with a killed worker": (WorkerKilled(),),
    "a trial with a worker that exits": (WorkerExited(),),
}
TEST = """
from pathlib import Path

from subjects import Records


def test_records(fault_check):
    fault_check(lambda: Records(Path({folder!r}), count={files}))
"""
CONFTEST = """
import json
import os
from collections import defaultdict

seconds = defaultdict(float)


def pytest_runtest_logreport(report):
    seconds[report.nodeid.partition("[")[2].rstrip("]")] += report.duration


def pytest_unconfigure():
    if "PYTEST_XDIST_WORKER" not in os.environ:
        with open("seconds.json", "w") as file:
            json.dump(seconds, file)
"""


def trials(rounds: int) -> Table:
    """Trials and the battery, in bare epochs."""
    table = Table(("16 files, 2 forked workers", "bare epoch", "this", "in bare epochs"))
    with tempfile.TemporaryDirectory() as name:
        folder = write_records(Path(name, "records"), FILES)
        bare = clock(lambda: epoch(Records(folder)))
        reference = clock(lambda: _trial.take_reference(lambda: Records(folder)))
        table.compare("the reference", rounds, bare, reference)
        for text, faults in TRIALS.items():
            trial = clock(lambda faults=faults: run_trial(lambda: Records(folder), *faults))
            table.compare(text, rounds, bare, trial)
        few_rounds = max(1, rounds // 4)

        def time_epochs() -> float:
            return statistics.median(in_turn(ROUNDS, bare)[0])

        battery = clock(lambda: check_records(folder))
        table.compare("the battery, by check_dataset", few_rounds, time_epochs, battery)
        quick = clock(lambda: check_records(folder, only="quick"))
        table.compare("the quick checks, by check_dataset", few_rounds, time_epochs, quick)
        table.compare(
            "the battery, by the fixture", few_rounds, time_epochs, lambda: _by_fixture(folder)
        )
        alone, two = (clock(lambda n=n: _seconds_of_items(folder, n)) for n in (0, 2))
        table.compare("the whole pytest run", few_rounds, time_epochs, alone)
        table.compare("the whole run of pytest -n 2", few_rounds, time_epochs, two)
    return table


def ranks(rounds: int) -> Table:
    """Trials of several ranks, each with two workers, beside one of a process that is no rank."""
    table = Table(("16 files, 2 forked workers in each rank", "no rank", "this", "in trials"))
    with tempfile.TemporaryDirectory() as name:
        folder = write_records(Path(name, "records"), FILES)
        for text, faults in list(TRIALS.items())[:2]:
            for count in (2, 4):
                without_ranks, with_ranks = (
                    clock(
                        lambda faults=faults, n=n: run_trial(
                            lambda: Records(folder), *faults, ranks=n
                        )
                    )
                    for n in (None, count)
                )
                table.compare(f"{text}, {count} ranks", rounds, without_ranks, with_ranks)
    return table


def _by_fixture(folder: Path) -> float:
    return sum(_seconds_of_items(folder).values())


def check_records(folder: Path, **options: Any) -> None:
    check_dataset(lambda: Records(folder, count=FILES), on_fail=None, **options)


def _seconds_of_items(folder: Path, processes: int = 0) -> dict[str, float]:
    """Seconds of each check in a run of pytest, by the check's name; *processes* of xdist."""
    with tempfile.TemporaryDirectory() as name:
        Path(name, "test_records.py").write_text(TEST.format(folder=str(folder), files=FILES))
        Path(name, "conftest.py").write_text(CONFTEST)
        run_pytest(Path(name), f"-n{processes}")
        return json.loads(Path(name, "seconds.json").read_text())


def phases(rounds: int) -> Table:
    """Where the time of one battery goes: by what its processes do, and by check."""
    del rounds
    table = Table(("one battery over 16 files", "processes", "time", "share"))
    with tempfile.TemporaryDirectory() as name:
        folder = write_records(Path(name, "records"), FILES)
        check_records(folder, only="open-error")  # It loads torch.
        with _jobs_timed() as jobs:
            total = clock(lambda: check_records(folder))()
        spent = sum(map(sum, jobs.values()))
        for text, spans in jobs.items():
            table.rows.append((text, str(len(spans)), *_share(sum(spans), total)))
        table.rows.append(("choosing, comparing, judging", "", *_share(total - spent, total)))
        items = _seconds_of_items(folder)
    total = sum(items.values())
    dearest = sorted(items, key=lambda check: -items[check])
    for check in dearest[:8]:
        table.rows.append((f"by the fixture: {check}", "", *_share(items[check], total)))
    remaining = sum(items[check] for check in dearest[8:])
    text = f"by the fixture: {len(dearest[8:])} other checks"
    table.rows.append((text, "", *_share(remaining, total)))
    return table


def _share(seconds: float, total: float) -> tuple[str, str]:
    return shown(seconds), f"{seconds / total:.0%}"


@contextmanager
def _jobs_timed() -> Iterator[dict[str, list[float]]]:
    """The seconds of each disposable process, by what it does."""
    jobs: dict[str, list[float]] = defaultdict(list)
    run_together = _trial.run_together

    def run_timed(*requests: Any) -> Any:
        began = time.perf_counter()
        try:
            return run_together(*requests)
        finally:
            jobs[_kind(requests[0])].append(time.perf_counter() - began)

    with mock.patch.object(_trial, "run_together", run_timed):
        yield jobs


def _kind(job: Any) -> str:
    if job.is_reference:
        return "references, without workers"
    return "trials with faults" if job.faults else "trials without a fault"


def sizes(rounds: int) -> Table:
    """How the time of a battery grows with files, and with the samples it looks at."""
    table = Table(("the battery", "time", "relative to 16 files"))
    few_rounds = max(1, rounds // 4)
    with tempfile.TemporaryDirectory() as name:
        counts = (FILES, 1000, MANY_FILES if rounds > FEW_ROUNDS else MANY_FILES // 10)
        folders = [write_records(Path(name, str(count)), count) for count in counts]
        datasets = [Records(folder) for folder in folders]
        works = {
            f"{count:,} files": clock(lambda dataset=dataset: _battery_of(dataset))
            for count, dataset in zip(counts, datasets, strict=True)
        }
        works |= {
            f"1,000 files, {samples} samples": clock(
                lambda samples=samples: _battery_of(datasets[1], samples=samples)
            )
            for samples in SAMPLES
        }
        found_seconds = in_turn(few_rounds, *works.values())
    for text, seconds in zip(works, found_seconds, strict=True):
        times = f"{ratio(found_seconds[0], seconds):.2f}"
        table.rows.append((text, shown(statistics.median(seconds)), times))
    return table


def _battery_of(dataset: Records, **options: Any) -> None:
    check_dataset(lambda: dataset, on_fail=None, **options)
