"""The record: what the battery says about many datasets, one line of JSON for each check of each.

``python evidence record`` writes one, and ``python evidence compare`` tells two apart. So an entry
has only what is the same in each run: no times, counts of operations, folders or process ids.
"""

from __future__ import annotations

import gzip
import json
import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from pytest_dataloader_faults import CheckResult
from pytest_dataloader_faults.outcomes import FaultFacts, Outcome
from pytest_dataloader_faults.report.model import item_of

Entry: TypeAlias = dict[str, Any]
"""A line. What is empty or false is left out."""
REFUSED, NOT_INSTALLED, ENDED = "refused", "not installed", "ended"
"""Statuses of a case that has no results: of an entry with an empty name of a check."""
_VARYING = (
    (re.compile(r"(?<=\btorch_)\d+_\d+"), "N_N"),
    (re.compile(r"(?<=\.)\d{2,}(?=\.|$)|(?<![a-zA-Z0-9])\d{4,}(?![a-zA-Z0-9])"), "N"),
    (re.compile(r"\btmp\w{8}\b|\b(?=[a-f]*\d)[0-9a-f]{8,}\b"), "N"),
    (re.compile(r"(?<=-)(?!packages/)[a-z0-9_]{8}(?=/)"), "N"),
    (re.compile(r"0x[0-9a-f]+"), "0xN"),
)
"""Ids of processes, temporary names and addresses."""

INTERMITTENT = {
    # Each worker ends all of them, and may do so before another one reads.
    ("corpus/TakesTheGroupDown", "read-error"): ["faults"],
    ("corpus/TakesTheJobDown", "read-error"): ["faults"],
    # Pillow tries smaller blocks if it gets no large one, and may have enough free memory for them.
    ("field/augmented", "memory-exhaustion"): ["verdict"],
    # np.fromfile ignores the error, and returns what the memory held before.
    ("field/fromfile_rows", "read-error"): ["wrong"],
    # The workers of a loader that keeps its iterator read more or less of the next epoch. A fault
    # halfway through what a worker reads in the fault-free run then hits one file or another.
    **{
        (f"odd/{name}", "read-error"): ["faults"]
        for name in ("Lazy", "Eager", "InClosure", "InGenerator", "LeavesOut", "EndsEarly")
    },
}
"""The facts of an entry that differ from run to run, by case and check."""


class Key(NamedTuple):
    """What an entry is about: a dataset and a check."""

    case: str
    check: str


def key_of(entry: Entry) -> Key:
    """What *entry* is about."""
    return Key(entry["case"], entry.get("check", ""))


def entry_of(case: str, result: CheckResult) -> Entry:
    """The entry for *result* of a check of *case*."""
    item = item_of(result, nodeid=case, test=case)
    facts = {
        "case": case,
        "check": item.check,
        "status": item.status,
        "verdict": item.verdict,
        "wrong": str(result.finding.wrong or ""),
        "cause": item.cause,
        "notes": list(map(without_varying_names, item.notes)),
        "faults": [_fault_entry(each) for each in _faults_of(result)],
        "intermittent": INTERMITTENT.get((case, item.check)),
    }
    return {name: value for name, value in facts.items() if value}


def _faults_of(result: CheckResult) -> Iterator[FaultFacts]:
    """The faults of the trial that failed; if none did, of all scenarios."""
    decides = [result.outcome] if result.outcome else []
    trials: Iterable[Outcome] = result.trials if result.passed else decides
    for trial in trials:
        for outcome in trial.ranks or (trial,):
            yield from outcome.faults


def _fault_entry(facts: FaultFacts) -> Entry:
    """Whether it fired, and where first: in the main process, or in the worker with the lowest id.

    Which of two workers is first differs from run to run, and so does how far they get.
    """
    entry: Entry = {"fault": type(facts.fault).__name__, "matched": bool(facts.matched)}
    if not facts.fired:
        return entry
    entry["fired"] = True
    first = min(facts.firings, key=lambda each: -1 if each.worker is None else each.worker)
    name = without_varying_names(os.path.basename(first.path or ""))
    return {**entry, "call": first.call, "file": name, "worker": first.worker}


def without_varying_names(text: str) -> str:
    """*text* without folders below that for temporary files, and without ids."""
    folder = re.escape(os.environ.get("TMPDIR", "/tmp"))
    text = re.sub(rf"{folder}/(?:[^\s'\"/]+/)*", "", text)
    for pattern, replacement in _VARYING:
        text = pattern.sub(replacement, text)
    return text


def read(path: Path) -> dict[Key, Entry]:
    """The entries of a record, which gzip(1) may have packed; none if there is no file yet."""
    content = path.read_bytes() if path.exists() else b""
    if path.suffix == ".gz":
        content = gzip.decompress(content)
    entries = map(json.loads, content.decode().splitlines())
    return {key_of(entry): entry for entry in entries}


def line_of(entry: Entry) -> str:
    """*entry* as a line of a record."""
    return json.dumps(entry, ensure_ascii=False) + "\n"
