"""The contract of faults: a row for each fault and operation, by family.

One worker goes through the rows of a family. It performs the operation of each row on a place of
the fault, on another place, on the place of an equal fault that is not due, and, when the scope is
over, on a further place of the first fault. A worker without faults shows what comes otherwise.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatch
from typing import Any

from pytest_dataloader_faults import inject
from pytest_dataloader_faults.outcomes import FaultFacts, FileCounts
from support.attempts import NEVER
from support.contracts import (
    connections,
    listings,
    locks,
    offsets,
    paths,
    reads,
    short_reads,
    writes,
)
from support.contracts.connections import answer_requests
from support.contracts.row import Row
from support.epochs import alone, epoch
from support.servers import path_of, tcp_server
from support.tries import Tries

FAMILIES: dict[str, dict[str, Row]] = {
    "open": reads.OPENS,
    "read": reads.READS,
    "read from a place on": offsets.OFFSETS,
    "close": reads.CLOSES,
    "truncation": reads.TRUNCATIONS,
    "corruption": reads.CORRUPTIONS,
    "odd path": paths.ODD_PATHS,
    "fake files": reads.OF_FAKE_FILES,
    "short read": short_reads.SHORT_READS,
    "full disk": writes.FULL_DISKS,
    "short write": writes.SHORT_WRITES,
    "listing": listings.LISTINGS,
    "locked file": locks.LOCKED,
    "no locks": locks.NO_LOCKS,
    "connection": connections.CONNECTIONS,
}
_IN_SCOPE = ("hit", "spared", "later")
_ENOUGH = 1 << 20
AFTER, BARE = "hit, after the scope", "bare"


@dataclass
class Observation:
    """What became of a row: what each place gave, what files hold then, and two faults' facts."""

    gave: dict[str, Any]
    left: dict[str, bytes | None]
    globs: dict[str, str]
    hit: FaultFacts
    later: FaultFacts
    counts: list[FileCounts]
    """Of the files of the fault that is not due."""


def perform(source: tuple[str, str, Any]) -> Any:
    """Perform the operation of a row, by names, so that a spawned worker knows it as well."""
    family, name, target = source
    return FAMILIES[family][name].operation(target)


def observe(family: str, root: str, **loader: Any) -> dict[str, Observation]:
    """Each row of *family*, with files below *root*, in a loader with these options."""
    rows = FAMILIES[family]
    with contextlib.ExitStack() as stack:
        prepare = _serve if family == "connection" else _write
        prepared = {
            name: prepare(stack, row, f"{root}/{number}")
            for number, (name, row) in enumerate(rows.items())
        }
        sources = [
            (family, name, targets[place])
            for place in (*_IN_SCOPE, AFTER, BARE)
            for name, (targets, _) in prepared.items()
        ]
        order = list(range(len(_IN_SCOPE) * len(rows)))
        loader_of_rows = alone(
            Tries(sources, perform), sampler=order, persistent_workers=True, **loader
        )
        faults = [_faults(rows[name], globs) for name, (_, globs) in prepared.items()]
        with inject(*(each for pair in faults for each in pair), require_fired=False) as injection:
            batches = epoch(loader_of_rows).batches
            facts, files = iter(injection.faults), injection.workers[0].files
        order[:] = range(len(order), len(order) + len(rows))
        batches += epoch(loader_of_rows).batches
        bare = alone(Tries(sources[len(batches) :], perform), **loader)
        gave = iter([each.gave for each in (*batches, *epoch(bare).batches)])
        results = {
            place: dict(zip(rows, gave, strict=False)) for place in (*_IN_SCOPE, AFTER, BARE)
        }
        loader_of_rows._iterator._shutdown_workers()
        return {
            name: Observation(
                {place: each[name] for place, each in results.items()},
                {place: _content(target) for place, target in prepared[name][0].items()},
                prepared[name][1],
                next(facts),
                next(facts),
                [
                    counts
                    for path, counts in files.items()
                    if fnmatch(path, prepared[name][1]["later"])
                ],
            )
            for name in rows
        }


def _faults(row: Row, globs: Mapping[str, str]) -> tuple[Any, Any]:
    """The fault of a row, and one that is not due, since its turn or its worker does not come."""
    fault = row.fault(globs["hit"])
    triggers = {"nth": NEVER} if row.is_counted and hasattr(fault, "nth") else {"workers": (1,)}
    return fault, row.fault(globs["later"], **triggers)


Prepared = tuple[dict[str, Any], dict[str, str]]


def _write(_stack: Any, row: Row, folder: str) -> Prepared:
    """Files of one name, since some operations store it."""
    targets = {place: f"{folder}/{place}/{row.name}" for place in (*_IN_SCOPE, AFTER, BARE)}
    for target in targets.values():
        os.makedirs(os.path.dirname(target))
        if callable(row.content):
            row.content(target)
        elif row.content is not None:
            with open(target, "wb") as file:
                file.write(row.content)
    return targets, {place: f"{folder}/{place}*/*" for place in ("hit", "later")}


def _serve(stack: Any, _row: Row, _folder: str) -> Prepared:
    targets = {place: stack.enter_context(tcp_server(answer_requests)) for place in _IN_SCOPE}
    globs = {place: path_of(targets[place]) for place in ("hit", "later")}
    return {**targets, AFTER: targets["hit"], BARE: targets["spared"]}, globs


def _content(target: Any) -> bytes | None:
    if not isinstance(target, str) or os.path.isdir(target):
        return None
    try:
        with open(target, "rb") as file:
            return file.read(_ENOUGH)
    except FileNotFoundError:
        return b""
