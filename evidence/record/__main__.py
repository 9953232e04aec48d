"""Record what the battery says about many datasets.

python evidence record FILE             a short record: the corpus, odd loaders, a few classes
python evidence record FILE --full      also each other class of evidence/field that is installed
python evidence record FILE corpus field/hf_disk ...      only these parts and cases

Each case runs in its own process, with a home and folders of its own, because datasets remove what
they cannot read. FILE gets the entries of a case when it ends, and a check that it has is not run
again. At the end, FILE is sorted.
"""

from __future__ import annotations

import argparse
import contextlib
import multiprocessing
import os
import random
import signal
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from pathlib import Path

import numpy as np
import torch

import pytest_dataloader_faults
import record
from pages.datasets import without_places
from pytest_dataloader_faults import check_dataset
from pytest_dataloader_faults.battery.checks import CHECKS
from pytest_dataloader_faults.exceptions import InvalidArgumentError, UnusableDatasetError
from record import Entry
from record.cases import NEEDS_ACCELERATOR, Case, all_cases

_LIMIT = 1500
"""Seconds for one case. The slowest takes a few minutes: its checks hang."""


def main(arguments: list[str] | None = None) -> None:
    """Run the chosen cases, and print a summary of the record."""
    options = _parse(arguments)
    print(
        f"the package is that of {os.path.dirname(pytest_dataloader_faults.__file__)}", flush=True
    )
    cases = [each for each in all_cases(full=options.full) if _is_chosen(each, options.names)]
    with tempfile.TemporaryDirectory(prefix="record-") as folder:
        _run(cases, options.file, Path(folder), options.jobs)
    entries = record.read(options.file)
    options.file.write_text("".join(map(record.line_of, _in_order(entries))), encoding="utf-8")
    print("\n".join(_summary(entries.values())))


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python evidence record")
    parser.add_argument("file", type=Path, metavar="FILE")
    parser.add_argument("names", nargs="*", metavar="NAME", help="a part, or a case of a part")
    parser.add_argument("--full", action="store_true", help="with all classes of evidence/field")
    parser.add_argument("--jobs", type=int, default=2, metavar="N", help="cases at once (2)")
    return parser.parse_args(arguments)


def _is_chosen(case: Case, names: list[str]) -> bool:
    return not names or case.name in names or case.name.partition("/")[0] in names


def _run(cases: Iterable[Case], file: Path, folder: Path, jobs: int) -> None:
    """Run *cases*, *jobs* of them at once, and add their entries to *file*."""
    known = {(key.case, key.check) for key in record.read(file)}
    running: dict[BaseProcess, tuple[Case, float]] = {}
    try:
        for case in cases:
            checks = [each for each in case.checks if (case.name, each) not in known]
            if (case.name, "") in known or not checks:
                continue
            while len(running) >= jobs:
                _wait(running, file)
            arguments = case, checks, file, Path(tempfile.mkdtemp(dir=folder))
            process = multiprocessing.get_context("fork").Process(target=_record, args=arguments)
            process.start()
            running[process] = case, time.monotonic()
        while running:
            _wait(running, file)
    finally:
        for process in running:
            _end(process)


def _wait(running: dict[BaseProcess, tuple[Case, float]], file: Path) -> None:
    """Wait for one of the processes, or for a second, and end those that take too long."""
    wait([process.sentinel for process in running], timeout=1)
    for process, (case, began) in list(running.items()):
        seconds = time.monotonic() - began
        if process.is_alive() and seconds < _LIMIT:
            continue
        _end(process)
        del running[process]
        if process.exitcode:
            _add(file, [_without_results(case, record.ENDED, f"exit status {process.exitcode}")])
        print(f"{case.name}: {seconds:.0f} s", flush=True)


def _end(process: BaseProcess) -> None:
    """Kill the session of *process* if it still runs. A process that has ended may share its id."""
    with contextlib.suppress(ProcessLookupError):
        if process.is_alive():
            os.killpg(process.pid, signal.SIGKILL)
    process.join()


def _record(case: Case, checks: list[str], file: Path, folder: Path) -> None:
    """Run a case, in a process of its own."""
    os.setsid()
    home, data = folder / "home", folder / "data"
    home.mkdir()
    data.mkdir()
    os.environ.update(dict.fromkeys(("HOME", "HF_HOME", "XDG_CACHE_HOME"), str(home)))
    os.environ["TMPDIR"] = str(folder)
    tempfile.tempdir = None
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in range(3):
        os.dup2(null, descriptor)
    warnings.simplefilter("ignore")
    random.seed(0)
    np.random.seed(0)  # noqa: NPY002  # the one that datasets use
    torch.manual_seed(0)
    _add(file, _entries(case, checks, data))


def _entries(case: Case, checks: list[str], folder: Path) -> list[Entry]:
    if case.lacks:
        return [_without_results(case, record.NOT_INSTALLED, case.lacks)]
    try:
        case.load()
        with case.prepare(folder) as arguments:
            results = check_dataset(only=checks, on_fail=None, **arguments)
    except (InvalidArgumentError, UnusableDatasetError) as error:
        return [_without_results(case, record.REFUSED, str(error))]
    except ImportError as error:  # A library of another version may lack what this one needs.
        return [_without_results(case, record.NOT_INSTALLED, str(error).partition("\n")[0])]
    except Exception as error:  # noqa: BLE001  # whatever it is, it is the result
        return [_without_results(case, record.ENDED, f"{type(error).__name__}: {error}")]
    return [record.entry_of(case.name, each) for each in results]


def _without_results(case: Case, status: str, note: str) -> Entry:
    """An entry for the whole *case*. An error that ended it is a defect, and kept in full."""
    note = note if status == record.ENDED else record.without_varying_names(without_places(note))
    return {"case": case.name, "status": status, "notes": [note]}


def _add(file: Path, entries: list[Entry]) -> None:
    """Append *entries* in one write, because other cases do that as well."""
    with open(file, "ab", buffering=0) as lines:
        lines.write("".join(map(record.line_of, entries)).encode())


def _in_order(entries: dict[record.Key, Entry]) -> list[Entry]:
    """The entries by case, those of a case in the order of the battery."""
    places = {check: place for place, check in enumerate(CHECKS)}
    keys = sorted(entries, key=lambda key: (key.case, places.get(key.check, -1)))
    return [entries[key] for key in keys]


def _summary(entries: Iterable[Entry]) -> Iterator[str]:
    """How many entries have each status, and which checks fail, or pass, nowhere."""
    statuses: dict[str, set[str]] = {}
    counts: Counter[str] = Counter()
    for entry in entries:
        counts[entry["status"]] += 1
        statuses.setdefault(entry["status"], set()).add(entry.get("check", ""))
    yield ", ".join(f"{count} {status}" for status, count in counts.most_common())
    for status in ("failed", "passed"):
        missing = CHECKS.keys() - statuses.get(status, set()) - {NEEDS_ACCELERATOR}
        if missing:
            yield f"no case {status}: {', '.join(sorted(missing))}"


if __name__ == "__main__":
    if os.environ.get("PYTHONHASHSEED") != "0":  # The order of a set of strings may be a result.
        os.environ["PYTHONHASHSEED"] = "0"
        os.execv(sys.executable, sys.orig_argv)  # noqa: S606  # the same command again
    main()
