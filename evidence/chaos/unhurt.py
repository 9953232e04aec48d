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


def main(arguments: Sequence[str] | None = None) -> int:
    """Run them; 1 if anything was not as it should be."""
    parser = argparse.ArgumentParser(prog="python evidence unhurt", description=__doc__)
    parser.add_argument("--trials", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args(arguments)
    trials, wrong, verdicts = 0, 0, Counter[str]()
    with tempfile.TemporaryDirectory() as folder:
        tempfile.tempdir = folder
        records = write_records(Path(folder, "records"))
        for number in range(asked.trials):
            found, problems = _one_search(asked.seed + number, records)
            trials += found.trials if found else 0
            verdicts.update(found.verdicts if found else {})
            for problem in (*problems, *_left(folder)):
                wrong += 1
                _tell(f"search {number}: {problem}")
            if not number % 10 or trials >= asked.trials:
                _tell(f"{trials} trials, {_taken()}, verdicts {dict(verdicts)}")
            if trials >= asked.trials:
                break
    tempfile.tempdir = None
    _tell(f"seed {asked.seed}: {trials} trials, {wrong} violations")
    return int(bool(wrong))


def _one_search(seed: int, records: Path) -> tuple[Exploration | None, list[str]]:
    stream = Random(seed)
    is_planted = not stream.randrange(10)
    make = Zeros if is_planted else stream.choice(_HEALTHY)
    kinds = {"kinds": _KINDS} if is_planted else {}
    loader = strategies.loader_options(
        start_methods=[stream.choice(_METHODS)], shuffle=make is not RecordStream
    )
    how = {"seed": seed, "max_examples": _IN_A_SEARCH, "database": None, "on_fail": None}
    engine = stream.choice(["kernel", "kernel", "kernel", "python"])
    try:
        found = explore(lambda: make(records), loader=loader, engine=engine, **kinds, **how)
    except DataLoaderFaultsError as error:
        return None, [f"{make.__name__}, {engine}: {error!r}"]
    if bool(found.failure) != is_planted:
        return found, [f"{make.__name__}, {engine}: {found.failure or 'not found'}"]
    return found, []


def _left(folder: str) -> Iterator[str]:
    for process in psutil.Process().children(recursive=True):
        command = " ".join(process.cmdline())
        if "fork_server_main" not in command and "resource_tracker" not in command:
            yield f"left: {process}"
    names = [each for each in os.listdir(folder) if not each.startswith("torchinductor_")]
    yield from (f"left: {name}" for name in names if name != "records")


def _taken() -> str:
    me = psutil.Process()
    return (
        f"{me.memory_info().rss >> 20} MiB, {me.num_fds()} descriptors, {me.num_threads()} threads"
    )


def _tell(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
