"""Each fault, start method, kind of dataset and persistence: it fires and is judged, or is refused.

The specimens are sound: they open a file for each sample and check its length. A new fault is added
to FAULTS and nowhere else. Every other axis comes by itself, and no cell is left out.
"""

import itertools

import pytest

from pytest_dataloader_faults import run_trial
from pytest_dataloader_faults._trial import take_reference
from pytest_dataloader_faults.exceptions import InvalidArgumentError
from pytest_dataloader_faults.faults import (
    KINDS,
    DescriptorExhaustion,
    OpenError,
    SharedMemoryExhaustion,
    ShortWrite,
    TruncatedFile,
    WorkerKilled,
    WriteError,
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
from support.fault_rows import FAULTS, OTHER_KINDS, require_result

METHODS: dict[str | None, int] = {None: 0, "fork": 2, "spawn": 1, "forkserver": 2}
"""Start methods, and how many workers; a spawned one imports torch, which takes seconds."""
PATIENCE = {"spawn": 10, "forkserver": 5}
"""Start methods that need a longer ``timeout``, since their workers import modules first."""
DATASETS = {"map": Records, "iterable": RecordStream}
THAT_WRITE = {"map": CopiedRecords, "iterable": CopiedRecordStream}
IN_EVERY_RUN = (
    {(None, "iterable", False), ("fork", "map", False)},
    {(None, "map", False), ("fork", "iterable", True)},
)
"""Cells of every other fault, and those of the faults between them. The others are slow tests."""
BY_FORK_SERVER = (OpenError, ShortWrite, DescriptorExhaustion, WorkerKilled)
WITHOUT_WORKERS = (OpenError, TruncatedFile, WriteError)
"""Faults of each kind that the engine tells apart there. The others are refused, or slow tests."""


def _cells():
    cells = itertools.product(enumerate(FAULTS), METHODS, DATASETS, (False, True))
    for (place, row), *cell in cells:
        method, kind, persistent = cell
        name = f"{type(row.fault).__name__}-{method}-{kind}-{'persistent' * persistent}"
        marks = [pytest.mark.slow] * (not _is_in_every_run(place, row, *cell))
        marks += [reserves_shared_memory] * isinstance(row.fault, SharedMemoryExhaustion)
        yield pytest.param(row, *cell, marks=marks, id=name)


def _is_in_every_run(place, row, method, kind, persistent):
    if method == "forkserver":
        return isinstance(row.fault, BY_FORK_SERVER) and (kind, persistent) == ("map", False)
    if method is None and row.alone and not isinstance(row.fault, WITHOUT_WORKERS):
        return False
    return (method, kind, persistent) in IN_EVERY_RUN[place % 2]


@pytest.fixture(name="folder", scope="module")
def _folder(tmp_path_factory):
    return write_records(tmp_path_factory.mktemp("matrix") / "records")


@pytest.fixture(name="references", scope="module")
def _references(folder):
    return {name: take_reference(lambda make=make: make(folder)) for name, make in DATASETS.items()}


def test_every_fault_is_in_the_table():
    kinds = {*KINDS.values()} - OTHER_KINDS
    assert kinds == {type(row.fault) for row in FAULTS}


@pytest.mark.parametrize(("row", "method", "kind", "persistent"), list(_cells()))
def test_cell(folder, references, row, method, kind, persistent):
    fault = (persistent and row.later) or row.fault
    trial = _trial(folder, fault, row, method, kind, persistent)
    if method is None and (persistent or not row.alone):
        with pytest.raises(InvalidArgumentError, match="num_workers"):
            trial()
        return
    outcome = trial()
    require_result(row, outcome, references[kind], COUNT)
    assert kind == outcome.kind
    assert outcome.exception is None or (len(outcome.epochs) > 1) == (fault is row.later)
    assert {firing.worker for firing in outcome.faults[0].firings} <= set(
        range(METHODS[method] or 1)
    )


def _trial(folder, fault, row, method, kind, persistent):
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
    return lambda: run_trial(make, fault, loader=options, epochs=3 if persistent else 1)
