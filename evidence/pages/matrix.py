"""Each reader under each fault, in real DataLoader workers: what comes of it.

A worker goes through all cells, one after the other: a folder and a fault per cell keep them apart.
If a cell ends the worker, a new one continues with the next.
"""

from __future__ import annotations

import errno
import os
import re
import signal
import traceback
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from fnmatch import fnmatch
from functools import partial
from pathlib import Path

from pytest_dataloader_faults import inject
from pytest_dataloader_faults.faults import (
    ClosedDescriptor,
    CorruptedFile,
    Fault,
    OpenError,
    ReadError,
    ShortRead,
    TruncatedFile,
)
from pytest_dataloader_faults.outcomes import FaultFacts
from pytest_dataloader_faults.outcomes.chains import related_lines
from support.epochs import Epoch, alone, epoch
from support.judging import explains
from support.readers import CONTENT, Reader, load, usable
from support.tries import Reads
from support.waiting import allowed

FAULTS: dict[str, Callable[[str], Fault]] = {
    "OpenError(EIO)": OpenError,
    "OpenError(EACCES)": lambda glob: OpenError(glob, errno.EACCES),
    "ReadError(EIO)": ReadError,
    "ClosedDescriptor": ClosedDescriptor,
    "TruncatedFile(keep=0.5)": lambda glob: TruncatedFile(glob, keep=0.5),
    "TruncatedFile(keep=0)": lambda glob: TruncatedFile(glob, keep=0),
    "ShortRead(max_bytes=1000)": lambda glob: ShortRead(glob, max_bytes=1000),
    "CorruptedFile(flips=1)": CorruptedFile,
}
"""What is tried, by the name it has on the page; a new fault is a line here."""
LATER = "ReadError(EIO), later"
"""One read fails, and not the first: a bad spot further on. The worst of them counts."""
COLUMNS = (*list(FAULTS)[:3], LATER, *list(FAULTS)[3:])

RIGHT, ERROR, HIDDEN, HANG = "right data", "error", "error, cause hidden", "hang"
SHORTER, LONGER = "shorter data, no error", "longer data, no error"
WRONG, NOTHING = "wrong data, no error", "no data, no error"
SILENT = (SHORTER, LONGER, WRONG, NOTHING)

_PATIENCE = 20
"""Seconds for one sample on an idle machine. None takes one; a reader that takes 20 is stuck."""
_VARIES = (
    (r"/\S*?/x\.\w+(/[\w/.]+)?", "<file>"),
    (r"0x[0-9a-f]+", "0x…"),
    (r"(file descriptor|fd) = \d+", r"\1 = N"),
    (r"time = \w+ \w+ +\d+ [\d:]+ \d+\s*,", "time = …,"),
    (r"\bpid(\(s\))? \d+", "pid N"),
    (r"\s+", " "),
)


@dataclass(frozen=True)
class Trial:
    """A reader, and the fault that its file is under: by its name on the page, and for a glob."""

    reader: Reader
    fault: str
    make: Callable[[str], Fault]


@dataclass(frozen=True)
class Finding:
    """What a reader gave: bytes, or nothing, or an error's type and message and printed chain."""

    data: bytes | None = None
    error: str = ""
    text: str = ""


@dataclass(frozen=True)
class Cell:
    """What became of one reader under one fault.

    Attributes:
        outcome: One of the words above, or the signal that ended the worker.
        message: The error's type and message, without what differs from run to run.
        nth: Which read failed, if the fault is about one.
        calls: The system calls that the fault happened to.
        matched, fired: The fault's counters.

    """

    outcome: str
    message: str = ""
    nth: int = 1
    calls: tuple[str, ...] = ()
    matched: int = 0
    fired: int = 0


def _read_file(file: tuple[Reader, str]) -> Finding:
    reader, path = file
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return Finding(reader.read(path))
    except Exception as error:  # noqa: BLE001  # whatever it is, it is the finding
        text = "".join(traceback.format_exception(error))
        return Finding(error=f"{type(error).__name__}: {error}", text=text)


def all_cells(root: Path) -> dict[tuple[str, str], Cell]:
    """Every cell, by reader and fault, from files that are written below *root*."""
    never = [Trial(each, "", lambda glob: ReadError(glob, nth=10**6)) for each in _readers()]
    trials = [Trial(each, name, make) for name, make in FAULTS.items() for each in _readers()]
    runs = _run([*never, *trials], root / "first")
    right = {trial.reader.key: finding for trial, finding, _ in runs[: len(never)]}
    assert all(right[each.key] == Finding(CONTENT) for each in _readers() if each.exact)
    later = [each for trial, _, facts in runs[: len(never)] for each in _later(trial, facts)]
    runs += _run(later, root / "later")
    cells: dict[tuple[str, str], Cell] = {}
    for trial, finding, facts in runs[len(never) :]:
        if isinstance(facts.fault, ShortRead) and not facts.matched:
            continue  # It maps the file, or reads it in pieces that are shorter anyway.
        place = trial.reader.key, trial.fault
        candidate = cell(finding, right[trial.reader.key], facts)
        cells[place] = max(cells.get(place, candidate), candidate, key=_badness)
    return cells


def cells_of_short_files(root: Path, name: str) -> dict[str, Cell]:
    """The cells of a TruncatedFile, without a fault: the files are shorter on the disk."""
    fault = FAULTS[name]("*")
    assert isinstance(fault, TruncatedFile)
    right = [(each, _write_file(each, root / "right" / each.key)) for each in _readers()]
    cut = [(each, _write_file(each, root / "cut" / each.key)) for each in _readers()]
    for reader, path in cut:
        _cut(Path(path).parent, reader.hit, fault)
    findings = read_all([*right, *cut])
    pairs = zip(usable(), findings, findings[len(right) :], strict=False)
    return {key: cell(truncated, intact, FaultFacts(fault)) for key, intact, truncated in pairs}


def _cut(folder: Path, glob: str, fault: TruncatedFile) -> None:
    for path in folder.rglob("*"):
        if path.is_file() and fnmatch(str(path), f"{folder}/{glob}"):
            os.truncate(path, fault.kept(path.stat().st_size))


def _readers() -> Iterable[Reader]:
    return usable().values()


def _later(trial: Trial, facts: FaultFacts) -> list[Trial]:
    """A trial for each read but the first; *facts* show how many there are."""
    return [
        Trial(trial.reader, LATER, partial(ReadError, nth=nth, times=1))
        for nth in range(2, facts.matched + 1)
    ]


def _badness(judged: Cell) -> int:
    """How difficult an outcome is to notice."""
    order = (*SILENT, HANG, "SIGBUS", HIDDEN, ERROR, RIGHT)
    return -order.index(judged.outcome) if judged.outcome in order else 1


def _run(trials: list[Trial], root: Path) -> list[tuple[Trial, Finding | str, FaultFacts]]:
    """Each trial with what its reader made of the file, and the fault's counters."""
    folders = [root / str(number) for number in range(len(trials))]
    pairs = list(zip(trials, folders, strict=True))
    files = [(trial.reader, _write_file(trial.reader, folder)) for trial, folder in pairs]
    faults = [trial.make(f"{folder}/{trial.reader.hit}") for trial, folder in pairs]
    with inject(*faults, require_fired=False) as injection:
        findings = read_all(files)
    return list(zip(trials, findings, injection.faults, strict=True))


def read_all(files: list[tuple[Reader, str]]) -> list[Finding | str]:
    """What each reader makes of its file; a word where it ended its worker, or did not end."""
    load()
    findings: list[Finding | str] = []
    while len(findings) < len(files):
        unread = Reads(files[len(findings) :], _read_file)
        # One sample at once: a worker that dies must not lose an earlier one.
        read = epoch(alone(unread, prefetch_factor=1, timeout=allowed(_PATIENCE)))
        findings += [*read.batches, *([_end(read)] if read.error else [])]
    return findings


def cell(finding: Finding | str, right: Finding | str, facts: FaultFacts) -> Cell:
    calls = tuple(sorted({each.call for each in facts.firings}))
    counted = {
        "nth": facts.fault.trigger.nth,
        "calls": calls,
        "matched": facts.matched,
        "fired": facts.fired,
    }
    if isinstance(finding, str):
        return Cell(finding, **counted)
    if finding.error:
        outcome = ERROR if _is_clear(finding.text, facts.fault) else HIDDEN
        return Cell(outcome, clean_message(finding.error), **counted)
    return Cell(compare_data(finding, right), **counted)


def _is_clear(text: str, fault: Fault) -> bool:
    """Whether an error or its cause mentions the fault; a path or EINVAL alone does not."""
    message = clean_message(related_lines(text)).replace(os.strerror(errno.EINVAL), "")
    return explains(message, fault, None, "")


def compare_data(finding: Finding, right: Finding | str) -> str:
    """How data that came without an error differs from the right data."""
    assert isinstance(right, Finding)
    assert right.data
    if finding.data is None:
        return NOTHING
    if finding.data == right.data:
        return RIGHT
    surplus = len(finding.data) - len(right.data)
    return WRONG if not surplus else LONGER if surplus > 0 else SHORTER


def clean_message(message: str) -> str:
    """*message* as any run prints it."""
    for pattern, replacement in _VARIES:
        message = re.sub(pattern, replacement, message)
    return message.strip()


def _write_file(reader: Reader, folder: Path) -> str:
    folder.mkdir(parents=True)
    path = str(folder / reader.file)
    reader.write(path)
    return path


def _end(read: Epoch) -> str:
    """How the sample after the last one ended its worker."""
    if "timed out" in read.text:
        return HANG
    if read.signals:
        return signal.Signals(*read.signals).name
    return f"worker exits: {read.exit_codes}"
