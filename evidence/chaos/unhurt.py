"""Run random trials in one process, with nothing hurt, and look at what they take and leave.

python evidence unhurt --trials 10000 --seed 1

Each search draws faults, files and options of the loader. A healthy dataset must fail none, one
that gives zeros for a failed read must be found. After each search no process and no file may be
left; the memory and the descriptors of this process are printed for every tenth one.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random

import psutil

from chaos.subjects import Retries
from pytest_dataloader_faults import explore, strategies
from pytest_dataloader_faults.exceptions import DataLoaderFaultsError
from pytest_dataloader_faults.faults import OpenError, ReadError
from pytest_dataloader_faults.search import Exploration
from support.datasets import Records, RecordStream, write_records
from support.planted import Zeros

_HEALTHY = (Records, Records, RecordStream, Retries)
_IN_A_SEARCH = 25
_METHODS = ("fork", "fork", "fork", "forkserver")
_KINDS = [OpenError, ReadError]
"""By which ``Zeros`` is found."""
_LASTING = ("process.fork_server", "resource_tracker")
"""Processes that stay until this one ends."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run them; 1 if anything was not as it should be."""
    parser = argparse.ArgumentParser(prog="python evidence unhurt", description=__doc__)
    parser.add_argument("--trials", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    trials, wrong, verdicts = 0, 0, Counter[str]()
    with tempfile.TemporaryDirectory() as folder:
        tempfile.tempdir = folder
        records = write_records(Path(folder, "records"))
        for number in range(options.trials):
            exploration, problems = _one_search(options.seed + number, records)
            trials += exploration.trials if exploration else 0
            verdicts.update(exploration.verdicts if exploration else {})
            for problem in (*problems, *_leftovers(folder)):
                wrong += 1
                _print(f"search {number}: {problem}")
            if not number % 10 or trials >= options.trials:
                _print(f"{trials} trials, {_resource_use()}, verdicts {dict(verdicts)}")
            if trials >= options.trials:
                break
    tempfile.tempdir = None
    _print(f"seed {options.seed}: {trials} trials, {wrong} violations")
    return int(bool(wrong))


def _one_search(seed: int, records: Path) -> tuple[Exploration | None, list[str]]:
    stream = Random(seed)
    is_planted = not stream.randrange(10)
    make = Zeros if is_planted else stream.choice(_HEALTHY)
    kinds = {"kinds": _KINDS} if is_planted else {}
    loader = strategies.loader_options(
        start_methods=[stream.choice(_METHODS)], shuffle=make is not RecordStream
    )
    settings = {"seed": seed, "max_examples": _IN_A_SEARCH, "database": None, "on_fail": None}
    try:
        exploration = explore(lambda: make(records), loader=loader, **kinds, **settings)
    except DataLoaderFaultsError as error:
        return None, [f"{make.__name__}: {error!r}"]
    if bool(exploration.failure) != is_planted:
        return exploration, [f"{make.__name__}: {exploration.failure or 'not found'}"]
    return exploration, []


def _leftovers(folder: str) -> Iterator[str]:
    for process in psutil.Process().children(recursive=True):
        command = " ".join(process.cmdline())
        if not any(name in command for name in _LASTING):
            yield f"left: {process}"
    names = [each for each in os.listdir(folder) if not each.startswith("torchinductor_")]
    yield from (f"left: {name}" for name in names if name != "records")


def _resource_use() -> str:
    me = psutil.Process()
    return (
        f"{me.memory_info().rss >> 20} MiB, {me.num_fds()} descriptors, {me.num_threads()} threads"
    )


def _print(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
