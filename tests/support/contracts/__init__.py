"""The contract of faults: a row for each fault and operation, by family.

One worker goes through the rows of a family. It performs the operation of each row on a place of
the fault, on another place, on the place of an equal fault that is not due, and, when the scope is
over, on a further place of the first fault. A worker without faults shows what comes otherwise.
"""

import contextlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from typing import Any

from pytest_dataloader_faults import inject
from pytest_dataloader_faults.faults import Fault
from pytest_dataloader_faults.outcomes import FaultFacts, FileCounts
from support.attempts import NEVER
from support.contracts import (
    allocations,
    connections,
    descriptors,
    listings,
    locks,
    offsets,
    paths,
    reads,
    short_reads,
    starts,
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
    "start": starts.STARTS,
    "allocation": allocations.ALLOCATIONS,
    "descriptor": descriptors.SHORTAGES,
}
WITHOUT_PLACES = ("start", "allocation", "descriptor")
_IN_SCOPE = ("hit", "spared", "later")
AFTER, BARE = "hit, after the scope", "bare"
PLACES = (*_IN_SCOPE, AFTER, BARE)
_ENOUGH = 1 << 20


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
    if family in WITHOUT_PLACES:
        return _observe_workers(family, **loader)
    rows = FAMILIES[family]
    with contextlib.ExitStack() as stack:
        prepare = _serve if family == "connection" else _write
        prepared = {
            name: prepare(stack, row, f"{root}/{number}")
            for number, (name, row) in enumerate(rows.items())
        }
        faults = [each for name, row in rows.items() for each in _faults(row, prepared[name][1])]
        targets = {name: targets for name, (targets, _) in prepared.items()}
        gave, facts, files = _perform_all(family, targets, faults, **loader)
    return {
        name: Observation(
            {place: each[name] for place, each in gave.items()},
            {place: _content(target) for place, target in targets[name].items()},
            globs,
            *facts[2 * number : 2 * number + 2],
            [counts for path, counts in files.items() if fnmatch(path, globs["later"])],
        )
        for number, (name, (_, globs)) in enumerate(prepared.items())
    }


def _perform_all(
    family: str, targets: dict[str, dict[str, Any]], faults: list[Fault], **options: Any
) -> tuple[dict[str, dict[str, Any]], Sequence[FaultFacts], Mapping[str, FileCounts]]:
    """What each place gave, by row, and what each fault did, and the counts of files."""
    sources = {
        place: [(family, name, each[place]) for name, each in targets.items()] for place in PLACES
    }
    order = [*range(len(targets) * len(_IN_SCOPE))]
    dataset = Tries([each for place in PLACES for each in sources[place]], perform)
    loader = alone(dataset, sampler=order, persistent_workers=True, **options)
    with inject(*faults, require_fired=False) as injection:
        batches = epoch(loader).batches
        facts, files = injection.faults, injection.workers[0].files
    order[:] = range(len(order), len(order) + len(targets))
    batches += epoch(loader).batches
    loader._iterator._shutdown_workers()
    batches += epoch(alone(Tries(sources[BARE], perform), **options)).batches
    gave = iter([each.gave for each in batches])
    return {place: dict(zip(targets, gave, strict=False)) for place in PLACES}, facts, files


def _observe_workers(family: str, **options: Any) -> dict[str, Observation]:
    """Each row of a family whose fault is about no file: its places are two workers."""
    rows = FAMILIES[family]
    fault = next(iter(rows.values())).fault
    turn = {"nth": NEVER} if hasattr(fault(), "nth") else {"headroom": 500}
    sources = [(family, name, None) for name in rows for _ in range(2)]
    loader = alone(
        Tries(sources, perform), persistent_workers=True, **{"num_workers": 2, **options}
    )
    with inject(fault(workers=(0,)), fault(workers=(1,), **turn), require_fired=False) as injection:
        during = [each.gave for each in epoch(loader).batches]
        facts = injection.faults
    after = [each.gave for each in epoch(loader).batches]
    loader._iterator._shutdown_workers()
    bare = [each.gave for each in epoch(alone(Tries(sources[::2], perform), **options)).batches]
    gave = during[::2], during[1::2], during[1::2], after[::2], bare
    return {
        name: Observation(
            dict(zip(PLACES, results, strict=True)), dict.fromkeys(PLACES), {"hit": ""}, *facts, []
        )
        for name, *results in zip(rows, *gave, strict=True)
    }


def _faults(row: Row, globs: Mapping[str, str]) -> tuple[Any, Any]:
    """The fault of a row, and one that is not due, since its turn or its worker does not come."""
    fault = row.fault(globs["hit"])
    triggers = {"nth": NEVER} if row.is_counted and hasattr(fault, "nth") else {"workers": (1,)}
    return fault, row.fault(globs["later"], **triggers)


Prepared = tuple[dict[str, Any], dict[str, str]]


def _write(_stack: Any, row: Row, folder: str) -> Prepared:
    """Files of one name, since some operations store it."""
    targets = {place: f"{folder}/{place}/{row.name}" for place in PLACES}
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
