"""What a plan asks of the kernel, and the table of calls that it is made from."""

import gc
import json
import time

from pytest_dataloader_faults import wire
from pytest_dataloader_faults._engine.kernel.calls import CALLS, Role, calls_with_role
from pytest_dataloader_faults._engine.plan import (
    MAP,
    MAX_FIRINGS,
    FaultCounter,
    FaultPlan,
    Operation,
    WorkerFaults,
)
from pytest_dataloader_faults._engine.protocol import WorkerReports
from pytest_dataloader_faults.faults import (
    ClosedDescriptor,
    ConnectError,
    DescriptorExhaustion,
    LockError,
    MemoryExhaustion,
    OpenError,
    ReadError,
    SharedMemoryExhaustion,
    SlowRead,
    StrayEntry,
    ThreadExhaustion,
    TruncatedFile,
    WorkerKilled,
    WriteError,
)
from pytest_dataloader_faults.faults.base import Place
from pytest_dataloader_faults.outcomes import FileCounts, Firing, WorkerFacts
from support.rows import rows

ALL = (
    OpenError("/data/*", errno=13, nth=2, times=3, workers=(0, 2)),
    ReadError(("*.a", "*.b")),
    TruncatedFile("*.c", keep=7),
    ClosedDescriptor("*.d", nth=4),
    DescriptorExhaustion(headroom=2, workers=(1,)),
    WorkerKilled(9, at=3, worker=1),
)


@rows(
    ("nth", "times", "expected"),
    [
        (1, None, [1, 2, 3, 4, 5, 6]),
        (1, 1, [1]),
        (3, None, [3, 4, 5, 6]),
        (3, 1, [3]),
        (2, 3, [2, 3, 4]),
        (6, 1, [6]),
        (7, None, []),
    ],
)
def test_a_fault_fires_from_nth_on_for_times(nth, times, expected):
    counter = FaultCounter(ReadError(nth=nth, times=times), 0)
    assert expected == [number for number in range(1, 7) if counter.reach()]
    assert counter.matched == 6


def test_many_firings_are_counted_and_not_kept():
    counter = FaultCounter(ReadError(), 0)
    for _ in range(MAX_FIRINGS + 50):
        counter.fire(Firing(0, 1, 2, "read", "/x", 3))
    assert (MAX_FIRINGS, MAX_FIRINGS + 50) == (len(counter.firings), counter.fired)


@rows(
    ("fault", "concerned"),
    [
        (ReadError(), {0, 1, 2}),
        (ReadError(workers=(1,)), {1}),
        (ReadError(workers=(0, 2)), {0, 2}),
        (DescriptorExhaustion(workers=(2,)), {2}),
        (WorkerKilled(), {0}),
        (WorkerKilled(worker=2), {2}),
        (WorkerKilled(worker=None), {0, 1, 2}),
    ],
)
def test_a_fault_concerns_the_workers_it_names(fault, concerned):
    faults = {worker: WorkerFaults(FaultPlan((fault,)), worker, 1) for worker in range(3)}
    assert concerned == {
        worker
        for worker, worker_faults in faults.items()
        if list(worker_faults.counters_of_kind(type(fault))) == worker_faults.counters
    }
    assert {1} == {len(each.counters) for each in faults.values()}


@rows("fault", [ReadError("*.a"), ReadError("*.a", workers=(1,)), WorkerKilled(reading="*.a")])
def test_no_fault_fires_in_a_bystander(fault):
    """But faults may be about its files, which its workers inherit."""
    faults = WorkerFaults(FaultPlan((fault,)), None, 1, bystander=True)

    assert [] == list(faults.counters_of_kind(type(fault)))
    assert faults.targets(PATH, Place.READ)
    assert [True, False] == [faults.targets(each) for each in (PATH, OTHER)]


def test_each_worker_counts_on_its_own():
    """A count over racing workers would not be the same twice."""
    plan = FaultPlan((ReadError(nth=2),))
    (first_fault,), (second_fault,) = (
        WorkerFaults(plan, worker, 1).counters_of_kind(ReadError) for worker in range(2)
    )
    assert [False, False] == [first_fault.reach(), second_fault.reach()]
    assert [True, True] == [first_fault.reach(), second_fault.reach()]


def test_faults_about_a_path_are_found_by_kind_and_glob():
    plan = FaultPlan((ReadError("*.a"), OpenError("*.a"), ReadError("*.b"), ReadError("*", nth=2)))
    faults = WorkerFaults(plan, 0, 1)
    assert [0, 3] == [each.index for each in faults.counters_for_path(ReadError, "/data/x.a")]
    assert [1] == [each.index for each in faults.counters_for_path(OpenError, "/data/x.a")]
    assert [3] == [each.index for each in faults.counters_for_path(ReadError, "/data/x.c")]


def test_the_globs_of_a_plan():
    assert ("/data/*", "*.a", "*.b", "*.c", "*.d") == FaultPlan(ALL).globs
    assert ("*",) == FaultPlan(ALL, watch=True).globs
    assert () == FaultPlan(ALL[4:]).globs


@rows(
    ("plan", "needs"),
    [
        (FaultPlan(()), set()),
        (FaultPlan((), watch=True), {"READ", "WRITE", "LISTING", "LOCK", "START", "CHANGE"}),
        (FaultPlan((), protects=True), {"CHANGE"}),
        (FaultPlan((ReadError("*.a"),), protects=True), {"READ", "CHANGE"}),
        (FaultPlan((WriteError("*.a"),), protects=True), {"WRITE", "CHANGE"}),
        (
            FaultPlan((), watch=True, protects=True),
            {"READ", "WRITE", "LISTING", "LOCK", "START", "CHANGE"},
        ),
        (FaultPlan((), samples=True), {"samples"}),
        (FaultPlan((ReadError("*.a"),)), {"READ"}),
        (FaultPlan((TruncatedFile("*.a"),)), {"DESCRIPTOR", "STAT"}),
        (FaultPlan((SharedMemoryExhaustion(),)), {"RESERVATION"}),
        (FaultPlan((WriteError("*.a"),)), {"WRITE"}),
        (FaultPlan((LockError("*.a"),)), {"LOCK"}),
        (FaultPlan((ThreadExhaustion(),)), {"START"}),
        (FaultPlan((StrayEntry("*/a"),)), {"OPEN", "STAT", "LISTING"}),
        (FaultPlan((MemoryExhaustion(),)), {"MEMORY", "FETCH", "memory", "fetches"}),
        (
            FaultPlan((MemoryExhaustion(sample=2),)),
            {"MEMORY", "FETCH", "memory", "fetches", "samples"},
        ),
        (FaultPlan((WorkerKilled(writing="*.a"),)), {"FETCH", "WRITE", "fetches"}),
        (FaultPlan((DescriptorExhaustion(),)), {"ALLOCATION", "FETCH", "fetches"}),
        (
            FaultPlan((DescriptorExhaustion(), ReadError("*.a"))),
            {"ALLOCATION", "FETCH", "READ", "fetches"},
        ),
        (FaultPlan((WorkerKilled(at=2),)), {"FETCH", "fetches"}),
        (FaultPlan((WorkerKilled(sample=2),)), {"FETCH", "samples", "fetches"}),
        (FaultPlan((ClosedDescriptor("*.a", sample=2),)), {"DESCRIPTOR", "samples", "fetches"}),
    ],
)
def test_the_filter_hands_over_no_more_than_a_plan_needs(plan, needs):
    """Each call that is handed over costs, and each that is not is a fault that never happens."""
    needed = {**vars(plan.needs), "places": False}
    places = {place.name for place in Place if place in plan.needs.places and place.name.isupper()}

    assert {name for name, is_needed in needed.items() if is_needed} | places == needs


PATH, OTHER, CODE = "/data/x.a", "/data/x.b", "/usr/lib/python3/x.a"


@rows(
    ("plan", "path", "expected"),
    [
        (FaultPlan((ReadError("*.a"),)), PATH, "reads concerned"),
        (FaultPlan((ReadError("*.a"),)), OTHER, ""),
        (FaultPlan((OpenError("*.a"),)), PATH, "concerned"),
        (FaultPlan((TruncatedFile("*.a"),)), PATH, "concerned"),
        (FaultPlan((WriteError("*.a"),)), PATH, "writes concerned"),
        (FaultPlan((WorkerKilled(reading="*.a"),)), PATH, "reads concerned"),
        (FaultPlan((WorkerKilled(writing="*.a"),)), PATH, "writes concerned"),
        (FaultPlan((SlowRead("tcp://*"),)), "tcp://192.0.2.1:443", "answers concerned"),
        (FaultPlan((ConnectError("tcp://*"),)), "tcp://192.0.2.1:443", "concerned"),
        (FaultPlan((), watch=True), PATH, "reads concerned"),
        (FaultPlan((), watch=True), CODE, ""),
        (FaultPlan((ReadError("*.a"),)), CODE, ""),
        (FaultPlan((ReadError("*.a", workers=(1,)),)), PATH, ""),
    ],
)
def test_what_has_to_be_seen_of_a_file(plan, path, expected):
    faults = WorkerFaults(plan, 0, 1)
    needed = {
        "reads": faults.needs_reads_of(path),
        "writes": faults.targets(path, Place.WRITE),
        "answers": faults.targets(path, Place.ANSWER),
        "concerned": faults.needs_answer(path),
    }

    assert " ".join(name for name, is_so in needed.items() if is_so) == expected


@rows(
    ("folders", "path", "may"),
    [(None, PATH, True), ((), PATH, False), (("/data",), PATH, True), (("/dat",), PATH, False)],
)
def test_writes_fail_in_the_trials_own_folders(folders, path, may):
    faults = WorkerFaults(FaultPlan((WriteError(),), own_folders=folders), 0, 1)

    due = faults.write_due(Operation("write", path), 1)

    assert [may, not may] == [bool(due.errno), bool(faults.refused)]


@rows(
    ("reads", "longest"),
    [
        ([(0, 9)], (0, 0, 0)),
        ([(0, 9), (9, 1)], (2, 9, 1)),
        ([(0, 9), (9, 4), (13, 5), (18, 5)], (3, 13, 5)),
        ([(0, 9), (9, 4), (13, 3)], (2, 9, 4)),
        ([(0, 9), (0, 0)], (0, 0, 0)),
    ],
)
def test_the_longest_read_is_not_the_first(reads, longest):
    """The first is of a header; of equal ones the earlier counts, and a mapping is none."""
    faults = WorkerFaults(FaultPlan((), True), 0, 1)
    for offset, length in reads:
        faults.read_due(Operation("read", "/x"), offset, length)
    faults.read_due(Operation(MAP, "/x"), 0, 1 << 20)

    counts = faults.files["/x"]
    assert (counts.longest, counts.longest_offset, counts.longest_bytes) == longest
    assert counts.reads == len(reads) + 1
    assert counts.bytes == sum(length for _, length in reads) + (1 << 20)


def test_a_report_of_many_files_costs_little_more_than_its_text():
    """A supervisor has a counter for each file, and answers no call while it reports them."""
    files = {f"{number:05}.bin": FileCounts(1, number, 9) for number in range(20_000)}
    numbers = {path: tuple(counts) for path, counts in files.items()}
    gc.collect()  # Or that of the suite's objects may be due in one of the two.
    gc.disable()
    began = time.thread_time()
    text = wire.encode(WorkerReports((), (WorkerFacts(0, 7, 1, files),), (), ()))
    encoded_at = time.thread_time()
    json.dumps(numbers)
    written = time.thread_time()
    gc.enable()

    (again,) = wire.decode(text.decode(), {"WorkerReports"})
    assert again.processes[0].files == files
    assert encoded_at - began < 5 * (written - encoded_at)


def test_each_call_is_found_by_its_role():
    assert sorted(calls_with_role(*Role)) == sorted(CALLS)


def test_what_can_be_short_is_what_has_buffers():
    reads = {name for name, call in CALLS.items() if call.reads_into_buffers}
    writes = {name for name, call in CALLS.items() if call.writes_buffers}

    assert reads == {"read", "pread64", "readv", "preadv", "preadv2"}
    assert writes == {"write", "pwrite64", "writev", "pwritev", "pwritev2"}
    assert {name for name in reads if CALLS[name].shares_offset} == {"read", "readv"}
