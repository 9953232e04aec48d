"""Each fault, start method and persistence on fake files: judged as on real ones, or refused.

The rows are those of real files: a fault that is added there is tried here.
"""

import itertools

import pytest

from pytest_dataloader_faults import run_trial
from pytest_dataloader_faults._trial import take_reference
from pytest_dataloader_faults.exceptions import InvalidArgumentError
from pytest_dataloader_faults.fake_files import FakeDatasetFs
from pytest_dataloader_faults.faults import (
    KINDS,
    CorruptedFile,
    DescriptorExhaustion,
    ListingError,
    ListingOrder,
    LockError,
    MemoryExhaustion,
    ReadError,
    SharedMemoryExhaustion,
    ShortRead,
    ShortWrite,
    StrayEntry,
    ThreadExhaustion,
    WorkerKilled,
    WriteError,
    has_connections,
)
from support.fake_datasets import COUNT, FakeRecords, write_fake_records
from support.fault_rows import FAULTS, require_result
from support.rows import rows

IN_EVERY_RUN = {
    *(("fork", kind) for kind in (ShortRead, CorruptedFile, DescriptorExhaustion, WorkerKilled)),
    ("forkserver", ReadError),
}
"""All faults reach workers the same way, and `test_faults_on_fake_files.py` has more of them."""
METHODS = {"fork": 2, "spawn": 1, "forkserver": 1}
"""Start methods, and how many workers; a spawned one imports torch, which takes seconds."""
PATIENCE = {"spawn": 20, "forkserver": 20}
"""Start methods that need a longer ``timeout``, since their workers import modules first."""
REFUSED = {
    SharedMemoryExhaustion: "torch reserves shared memory in C",
    WriteError: "pyfakefs itself handles writes",
    ShortWrite: "pyfakefs itself handles writes",
    ListingOrder: "Python lists folders in C code",
    ListingError: "Python lists folders in C code",
    StrayEntry: "Python lists folders in C code",
    LockError: "libraries lock their files in C",
    ThreadExhaustion: "libraries start their threads in C",
    MemoryExhaustion: "libraries allocate memory in C",
}
"""What happens to no fake file, and what is said of it."""


def _cells():
    for row, method, persistent in itertools.product(FAULTS, METHODS, (False, True)):
        if type(row.fault) not in REFUSED:
            name = f"{type(row.fault).__name__}-{method}-{'persistent' * persistent}"
            is_slow = persistent or (method, type(row.fault)) not in IN_EVERY_RUN
            marks = [pytest.mark.slow] * is_slow
            yield pytest.param(row, method, persistent, marks=marks, id=name)


@pytest.fixture(name="reference", scope="module")
def _reference():
    with FakeDatasetFs() as files:
        write_fake_records(files)
        return take_reference(FakeRecords)


def test_every_fault_is_tried_or_refused():
    cell_kinds = {type(cell.values[0].fault) for cell in _cells()}
    kinds = [kind for kind in KINDS.values() if not has_connections(kind())]
    assert sorted(map(str, kinds)) == sorted(map(str, [*cell_kinds, *REFUSED]))


@pytest.mark.parametrize(("row", "method", "persistent"), list(_cells()))
def test_cell(reference, files, row, method, persistent):
    fault = (persistent and row.later) or row.fault
    options = {
        "num_workers": METHODS[method],
        "batch_size": 1,
        "persistent_workers": persistent,
        "multiprocessing_context": method,
        **row.loader,
    }
    if method in PATIENCE and "timeout" in options:
        options["timeout"] = PATIENCE[method]

    outcome = run_trial(FakeRecords, fault, loader=options, epochs=1 + persistent, deadline=60)

    require_result(row, outcome, reference, COUNT)


@rows("kind", REFUSED)
def test_what_happens_to_no_fake_file_is_refused(files, kind):
    with pytest.raises(InvalidArgumentError, match=REFUSED[kind]):
        run_trial(FakeRecords, kind())
