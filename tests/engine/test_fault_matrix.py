"""Each fault, start method, kind of dataset and persistence: it fires and is judged, or is refused.

The specimens are sound: they open a file for each sample and check its length. A new fault is added
to FAULTS and nowhere else. Every other axis comes by itself, and no cell is left out.
"""

from __future__ import annotations

import itertools

import pytest

from pytest_dataloader_faults import Contract, run_trial
from pytest_dataloader_faults._trial import take_reference
from pytest_dataloader_faults.exceptions import InvalidArgumentError
from pytest_dataloader_faults.faults import (
    KINDS,
    ClosedDescriptor,
    DescriptorExhaustion,
    ListingError,
    ListingOrder,
    LockError,
    MemoryExhaustion,
    OpenError,
    PinMemoryThreadDeath,
    SharedMemoryExhaustion,
    ShortWrite,
    StrayEntry,
    ThreadExhaustion,
    TruncatedFile,
    WorkerKilled,
    has_connections,
)
from support.datasets import (
    COUNT,
    CopiedRecords,
    CopiedRecordStream,
    Records,
    RecordStream,
    write_records,
)
from support.epochs import reserves_shared_memory
from support.fault_rows import FAULTS

METHODS: dict[str | None, int] = {None: 0, "fork": 2, "spawn": 1, "forkserver": 2}
"""Start methods, and how many workers; a spawned one imports torch, which takes seconds."""
PATIENCE = {"spawn": 10, "forkserver": 5}
"""Start methods that need a longer ``timeout``, since their workers import modules first."""
DATASETS = {"map": Records, "iterable": RecordStream}
THAT_WRITE = {"map": CopiedRecords, "iterable": CopiedRecordStream}
IN_EVERY_RUN = {
    "fork": {("map", False), ("iterable", True)},
    "spawn": {("map", False)},
    "forkserver": {("map", False)},
}
"""The others are slow tests. So are most faults with methods whose workers import modules first."""
FEW_FAULTS = {
    "spawn": ClosedDescriptor,
    "forkserver": (OpenError, TruncatedFile, ShortWrite, DescriptorExhaustion, WorkerKilled),
}


def _cells():
    for row, *cell in itertools.product(FAULTS, METHODS, DATASETS, (False, True)):
        method, kind, persistent = cell
        name = f"{type(row.fault).__name__}-{method}-{kind}-{'persistent' * persistent}"
        marks = [pytest.mark.slow] * _is_slow(row, *cell)
        marks += [reserves_shared_memory] * isinstance(row.fault, SharedMemoryExhaustion)
        yield pytest.param(row, *cell, marks=marks, id=name)


def _is_slow(row, method, kind, persistent):
    if method is None:
        return False
    is_tried = isinstance(row.fault, FEW_FAULTS.get(method, object))
    return not is_tried or (kind, persistent) not in IN_EVERY_RUN[method]


@pytest.fixture(name="folder", scope="module")
def _folder(tmp_path_factory):
    """The files of both specimens."""
    return write_records(tmp_path_factory.mktemp("matrix") / "records")


@pytest.fixture(name="references", scope="module")
def _references(folder):
    """What each specimen gives when nothing is wrong."""
    return {name: take_reference(lambda make=make: make(folder)) for name, make in DATASETS.items()}


def test_every_fault_is_in_the_table():
    """A fault that is added to the vocabulary is added here.

    ``network/`` has those of sockets, ``test_listings.py`` those of folders, ``test_locks.py`` that
    of locks, ``test_threads.py`` that of threads,
    and ``test_memory.py`` that of memory.
    """
    excluded = {PinMemoryThreadDeath, ListingError, ListingOrder, StrayEntry, LockError}
    excluded |= {ThreadExhaustion, MemoryExhaustion}
    excluded |= {kind for kind in KINDS.values() if has_connections(kind())}
    assert set(KINDS.values()) - excluded == {type(row.fault) for row in FAULTS}


@pytest.mark.parametrize(("row", "method", "kind", "persistent"), list(_cells()))
def test_cell(folder, references, row, method, kind, persistent):
    """The fault fires in the epoch it is due in, and the verdict is right; or no cell is made."""
    fault = (persistent and row.later) or row.fault
    trial = _trial(folder, fault, row, method, kind, persistent)
    if method is None and (persistent or not row.alone):
        with pytest.raises(InvalidArgumentError, match="num_workers"):
            trial()
        return
    outcome = trial()
    judgement = outcome.judge(references[kind], Contract(detects_corruption=True))
    assert (row.verdict, kind) == (judgement.verdict, outcome.kind), judgement.sentence
    assert outcome.fired
    assert outcome.exception is None or (len(outcome.epochs) > 1) == (fault is row.later)
    assert {firing.worker for firing in outcome.faults[0].firings} <= set(
        range(METHODS[method] or 1)
    )
    assert _samples(outcome.recovery) == COUNT


def _trial(folder, fault, row, method, kind, persistent):
    """Run that cell, when called."""
    options = {
        "num_workers": METHODS[method],
        "batch_size": 4,
        "persistent_workers": persistent,
        "multiprocessing_context": method,
        **row.loader,
    }
    if method in PATIENCE and "timeout" in options:
        options["timeout"] = PATIENCE[method]

    def make_that_writes(cache):
        return THAT_WRITE[kind](folder, cache)

    make = make_that_writes if row.writes else lambda: DATASETS[kind](folder)
    return lambda: run_trial(make, fault, loader=options, epochs=3)


def _samples(loader_pass):
    return sum(len(each.rows) for each in loader_pass.delivered)
