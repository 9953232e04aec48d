"""Each start method, kind of dataset and persistence, with a few faults: they fire and are judged.

The datasets are sound: they open a file for each sample and check its length. What each fault does
is in tests/engine/test_contracts.py, and the specimens of tests/corpus have a verdict for most.
"""

import contextlib
import functools
import itertools
import signal
from typing import Any, NamedTuple

import pytest

from pytest_dataloader_faults import inject, run_trial
from pytest_dataloader_faults._trial import take_reference
from pytest_dataloader_faults.fake_files import FakeDatasetFs
from pytest_dataloader_faults.faults import (
    KINDS,
    ClosedDescriptor,
    CorruptedFile,
    DescriptorExhaustion,
    LockError,
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
from support.attempts import attempt, epoch_of
from support.contracts.locks import AT_ONCE
from support.contracts.offsets import CONTENT, PAGE, PAGES, touch_pages
from support.contracts.writes import WRITING
from support.datasets import (
    COUNT,
    CopiedRecords,
    CopiedRecordStream,
    Records,
    RecordStream,
    write_records,
)
from support.epochs import alone, epoch, reserves_shared_memory
from support.fake_datasets import COUNT as FAKE_COUNT
from support.fake_datasets import FakeRecords, write_fake_records
from support.fault_rows import FAULTS, OTHER_KINDS, require_result
from support.tries import WAYS, Tries

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


TRIGGERED = {
    "open": (OpenError, WAYS["read"]),
    "read": (ReadError, WAYS["read"]),
    "short read": (functools.partial(ShortRead, max_bytes=9), WAYS["read"]),
    "closed": (ClosedDescriptor, WAYS["read"]),
    "slow": (functools.partial(SlowRead, seconds=0.001), WAYS["read"]),
    "write": (WriteError, WRITING["write"]),
    "short write": (functools.partial(ShortWrite, max_bytes=9), WRITING["write"]),
    "lock": (LockError, AT_ONCE["F_SETLK"]),
}
RHYTHMS = [
    ({"nth": 15}, [15, 16]),
    ({"nth": 3, "times": 2}, [3, 4]),
    ({"every": 5}, [1, 6, 11, 16]),
    ({"nth": 2, "every": 4, "times": 3}, [2, 6, 10]),
]


def _hits_by_fault(folder, cells, **options):
    """For each kind and its triggers, of sixteen files of its own, the numbers of those it befell.

    All in one worker; *options* are of ``inject``.
    """
    folders = [folder / str(number) for number in range(len(cells))]
    paths = [
        sorted(map(str, (each if each.exists() else write_records(each)).iterdir()))
        for each in folders
    ]
    faults = [
        TRIGGERED[kind][0](f"{each}/*.rec", **triggers)
        for each, (kind, triggers) in zip(folders, cells, strict=True)
    ]
    calls = [
        functools.partial(TRIGGERED[kind][1], path)
        for (kind, _), each in zip(cells, paths, strict=True)
        for path in each
    ]
    _, injection = attempt(calls, lambda call: call(), *faults, require_fired=False, **options)
    struck = [{each.path for each in facts.firings} for facts in injection.faults]
    return [
        [number for number, path in enumerate(each, 1) if path in of_fault]
        for each, of_fault in zip(paths, struck, strict=True)
    ]


def test_counts_and_rhythm(tmp_path):
    cells = [(kind, triggers) for kind in TRIGGERED for triggers, _ in RHYTHMS]
    hits = dict(
        zip(
            itertools.product(TRIGGERED, range(len(RHYTHMS))),
            _hits_by_fault(tmp_path, cells),
            strict=True,
        )
    )
    assert hits == {(kind, at): RHYTHMS[at][1] for kind, at in hits}


def test_chance_is_the_seeds(tmp_path):
    cells = [(kind, {"probability": 0.8}) for kind in TRIGGERED]
    first, same, other = (_hits_by_fault(tmp_path, cells, seed=seed) for seed in (3, 3, 4))
    assert first == same
    for name, first_draw, other_draw in zip(TRIGGERED, first, other, strict=True):
        assert first_draw != other_draw, name
    assert 0.6 < sum(map(len, first)) / (COUNT * len(TRIGGERED)) < 1


def test_chance_is_of_those_that_the_other_triggers_choose(tmp_path):
    triggers = {"every": 2, "probability": 0.5}
    cells = [("open", {**triggers, "times": times}) for times in (None, 2)]
    cells += [("open", {"probability": 1.0})]
    # Each fault has a stream of its own, so that one of the first place is compared with another.
    (unlimited,), (limited,), (_, _, certain) = (
        _hits_by_fault(tmp_path, each) for each in (cells[:1], cells[1:2], cells)
    )
    assert set(unlimited) < set(range(1, COUNT, 2))
    assert unlimited[:2] == limited
    assert [*range(1, COUNT + 1)] == certain


def test_a_mapping_has_no_page_after_that_place(tmp_path):
    """Before it, reads succeed: see the contract. A place behind the end is never reached."""
    offsets = [0, 1, PAGE, 3 * PAGE]
    paths = [tmp_path / f"{offset}.bin" for offset in (*offsets, PAGES * PAGE)]
    for path in paths:
        path.write_bytes(CONTENT)
    faults = [ReadError(path, offset=int(path.stem)) for path in paths]
    with inject(*faults, require_fired=False) as injection:
        for place, offset in enumerate(offsets):
            touch = functools.partial(touch_pages, range(-(-offset // PAGE), PAGES))
            read, facts = epoch_of(injection, alone(Tries([str(paths[place])], touch)))
            assert ([], {signal.SIGBUS}) == (read.batches, read.signals)
            assert facts[place].fired
        epoch(alone(Tries([str(paths[-1])], WAYS["read"])))
    assert 0 == injection.faults[-1].matched
