"""Each start method, kind of dataset and persistence, with a few faults: they fire and are judged.

The datasets are sound: they open a file for each sample and check its length. What each fault does
is in tests/engine/test_contracts.py, and the specimens of tests/corpus have a verdict for most.
"""

import contextlib
from typing import Any, NamedTuple

import pytest

from pytest_dataloader_faults import run_trial
from pytest_dataloader_faults._trial import take_reference
from pytest_dataloader_faults.fake_files import FakeDatasetFs
from pytest_dataloader_faults.faults import (
    KINDS,
    ClosedDescriptor,
    CorruptedFile,
    DescriptorExhaustion,
    OpenError,
    ReadError,
    SharedMemoryExhaustion,
    ShortRead,
    ShortWrite,
    SlowRead,
    TruncatedFile,
    WorkerExited,
    WorkerHung,
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
from support.fake_datasets import COUNT as FAKE_COUNT
from support.fake_datasets import FakeRecords, write_fake_records
from support.fault_rows import FAULTS, OTHER_KINDS, require_result

METHODS = {None: 0, "fork": 2, "forkserver": 2}
"""Start methods, and how many workers."""
AXES = {
    (None, "iterable", False): (OpenError, TruncatedFile, WriteError),
    ("fork", "iterable", True): (ReadError, ClosedDescriptor, WorkerKilled),
    ("forkserver", "map", False): (OpenError, ShortWrite, DescriptorExhaustion, WorkerKilled),
    ("fork", "fake", False): (ShortRead, CorruptedFile, DescriptorExhaustion, WorkerKilled),
    ("fork", "map", False): (SlowRead, SharedMemoryExhaustion, WorkerExited, WorkerHung),
}
"""Start method, kind of dataset and persistence, and the faults that the engine tells apart there;
in the last row, those of which no specimen of tests/corpus has the verdict."""
DATASETS = {"map": Records, "iterable": RecordStream}
THAT_WRITE = {"map": CopiedRecords, "iterable": CopiedRecordStream}


class Cell(NamedTuple):
    """A row of FAULTS, and where it is tried; *kind* is "map", "iterable" or "fake"."""

    row: Any
    method: str | None
    kind: str
    persistent: bool = False


def _cells():
    for (method, kind, persistent), faults in AXES.items():
        for row in FAULTS:
            if isinstance(row.fault, faults):
                yield Cell(row, method, kind, persistent)


def _params():
    for cell in _cells():
        marks = [reserves_shared_memory] * isinstance(cell.row.fault, SharedMemoryExhaustion)
        name = f"{type(cell.row.fault).__name__}-{cell.method}-{cell.kind}"
        yield pytest.param(cell, marks=marks, id=name)


@pytest.fixture(name="folder", scope="module")
def _folder(tmp_path_factory):
    return write_records(tmp_path_factory.mktemp("matrix") / "records")


@pytest.fixture(name="references", scope="module")
def _references(folder):
    references = {
        name: take_reference(lambda make=make: make(folder)) for name, make in DATASETS.items()
    }
    with FakeDatasetFs() as files:
        write_fake_records(files)
        return {**references, "fake": take_reference(FakeRecords)}


def test_every_fault_is_in_the_table():
    kinds = {*KINDS.values()} - OTHER_KINDS
    assert kinds == {type(row.fault) for row in FAULTS}


@pytest.mark.parametrize("cell", list(_params()))
def test_cell(folder, references, cell):
    row, persistent = cell.row, cell.persistent
    fault = (persistent and row.later) or row.fault
    with contextlib.ExitStack() as stack:
        if cell.kind == "fake":
            write_fake_records(stack.enter_context(FakeDatasetFs()))
        outcome = _run_trial(folder, fault, cell)
    count = FAKE_COUNT if cell.kind == "fake" else COUNT
    require_result(row, outcome, references[cell.kind], count)
    assert outcome.kind == ("map" if cell.kind == "fake" else cell.kind)
    assert outcome.exception is None or (len(outcome.epochs) > 1) == (fault is row.later)
    workers = {firing.worker for firing in outcome.faults[0].firings}
    assert workers <= set(range(METHODS[cell.method] or 1))


def _run_trial(folder, fault, cell):
    options = {
        "num_workers": METHODS[cell.method],
        "batch_size": 1 if cell.kind == "fake" else 4,
        "persistent_workers": cell.persistent,
        "multiprocessing_context": cell.method,
        **cell.row.loader,
    }
    if cell.kind == "fake":
        make = FakeRecords
    elif cell.row.writes:
        make = lambda cache: THAT_WRITE[cell.kind](folder, cache)  # noqa: E731
    else:
        make = lambda: DATASETS[cell.kind](folder)  # noqa: E731
    epochs = 3 if cell.persistent else 1
    return run_trial(make, fault, loader=options, epochs=epochs)
