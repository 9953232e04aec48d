"""``inject`` around one's own loop: which loaders it reaches, and what it says at its end."""

from __future__ import annotations

import os
import re

import pytest
from torch.utils.data import DataLoader, get_worker_info

from pytest_dataloader_faults import inject
from pytest_dataloader_faults.exceptions import (
    DataLoaderFaultsError,
    FaultNotFiredError,
    InvalidArgumentError,
)
from pytest_dataloader_faults.faults import (
    ClosedDescriptor,
    DescriptorExhaustion,
    OpenError,
    ReadError,
    SlowRead,
    TruncatedFile,
    WorkerKilled,
)
from support.datasets import COUNT, Records, RecordStream
from support.epochs import alone, epoch
from support.tries import WAYS, Tries, number_of


@pytest.fixture(name="paths")
def _paths(records):
    """The 16 files."""
    return [str(path) for path in sorted(records.iterdir())]


@pytest.fixture(name="contents")
def _contents(records):
    """What is in them."""
    return [path.read_bytes() for path in sorted(records.iterdir())]


def failed(results):
    """The indices of the attempts that gave an error."""
    return [each.index for each in results if isinstance(each.gave, str)]


@pytest.mark.parametrize("kind", [OpenError, ReadError, ClosedDescriptor])
@pytest.mark.parametrize(
    ("nth", "times", "workers", "expected"),
    [
        (3, 2, 1, [2, 3]),
        (15, None, 1, [14, 15]),
        (2, 1, 2, [2, 3]),
        (8, None, 2, [14, 15]),
    ],
)
def test_occurrences_are_counted_in_each_worker(paths, kind, nth, times, workers, expected):
    """From *nth* on, for *times*: each file is opened once and read once."""
    fault = kind("*.rec", nth=nth, times=times)
    with inject(fault) as injection:
        results = epoch(alone(Tries(paths, WAYS["pread"]), num_workers=workers)).batches
    assert expected == failed(results)
    places = sorted((f.worker, f.fetch, f.path) for f in injection.faults[0].firings)
    assert [(i % workers, i // workers + 1, paths[i]) for i in expected] == sorted(
        places, key=lambda place: place[2]
    )
    assert (COUNT, len(expected)) == (injection.reached, injection.fired)


@pytest.mark.parametrize(
    "fault",
    [
        OpenError("*.rec", workers=(1,)),
        ReadError("*.rec", workers=(1,)),
        ClosedDescriptor("*.rec", workers=(1,)),
        DescriptorExhaustion(workers=(1,)),
    ],
)
def test_a_fault_hits_the_workers_it_names(paths, fault):
    """The other one reads all of its files."""
    with inject(fault) as injection:
        results = epoch(alone(Tries(paths, WAYS["pread"]), num_workers=2)).batches
    assert list(range(1, COUNT, 2)) == failed(results)
    assert {1} == {firing.worker for firing in injection.faults[0].firings}


def test_files_that_are_not_meant_are_read_as_ever(paths, contents):
    """And on the kernel's fast path: the filter hands no read over for a low descriptor."""
    with inject(ReadError("*/03.rec"), TruncatedFile("*/05.rec")):
        results = epoch(alone(Tries(paths, WAYS["read"]))).batches
        numbers = epoch(alone(Tries(paths, number_of))).batches
    spared = [index for index in range(COUNT) if index not in (3, 5)]
    assert [contents[index] for index in spared] == [results[index].gave for index in spared]
    low = {each.index for each in numbers if each.gave < 1000}
    assert set(spared) | {5} >= low >= set(spared)


def test_several_faults_come_together(paths):
    """Each with its own counters, each on its own files."""
    faults = (
        OpenError("*/01.rec"), ReadError("*/02.rec"), TruncatedFile("*/03.rec", keep=9),
        ClosedDescriptor("*/04.rec"), WorkerKilled(at=6),
    )  # fmt: skip
    with inject(*faults) as injection:
        read = epoch(alone(Tries(paths, WAYS["pread"])))
        live = [each.fired for each in injection.faults if injection.fired]
    assert [1, 1, 1, 1, 1] == live == [each.fired for each in injection.faults]
    assert ([1, 2, 4], 9) == (failed(read.batches), len(read.batches[3].gave))
    assert "killed" in read.text


def test_counters_are_live(paths):
    """They can be read while the loop runs."""
    loader = alone(Tries(paths, WAYS["read"]), prefetch_factor=1)
    with inject(ReadError("*.rec")) as injection:
        seen = [injection.fired for _ in loader]
    assert sorted(seen) == seen
    assert (COUNT, COUNT) == (seen[-1], injection.fired)


def test_iterable_datasets_are_reached(records):
    """Their workers fetch by another class of torch's."""
    with (
        inject(ReadError("*/07.rec")) as injection,
        pytest.raises(OSError, match=r"Errno 5"),
    ):
        list(DataLoader(RecordStream(records), num_workers=2, batch_size=2))
    (firing,) = injection.faults[0].firings
    assert (1, 2) == (firing.worker, firing.fetch)
    assert 1 == injection.surfaced


class _Opener:
    """A worker_init_fn that reads a file, and leaves what it got in its worker's dataset."""

    def __init__(self, path):
        self.path = path

    def __call__(self, worker):
        dataset = get_worker_info().dataset
        dataset.sources = [f"{worker} {os.getpid()}"] * len(dataset)
        dataset.read = lambda source: (source, WAYS["read"](self.path))


def test_a_worker_init_function_still_runs(paths, contents):
    """In each worker, once its filter is there; the loader keeps it."""
    opener = _Opener(paths[0])
    loader = alone(Tries(["nobody"] * 4, str), num_workers=2, worker_init_fn=opener)
    with inject(ReadError("*/00.rec", workers=(1,))) as injection:
        results = epoch(loader).batches
    pids = {each.worker: each.pid for each in injection.workers}
    assert [(f"0 {pids[0]}", contents[0])] * 2 == [each.gave for each in results[::2]]
    assert [1, 3] == failed(results)
    assert loader.worker_init_fn is opener


def test_persistent_workers_are_armed_for_good(paths, contents):
    """They meet the fault in each epoch of the scope, and none after it."""
    loader = alone(Tries(paths, WAYS["read"]), persistent_workers=True, num_workers=2)
    with inject(ReadError("*/03.rec")) as injection:
        first, second = epoch(loader).batches, epoch(loader).batches
    third = epoch(loader).batches
    loader._iterator._shutdown_workers()
    assert [[3], [3], []] == [failed(first), failed(second), failed(third)]
    assert contents == [each.gave for each in third]
    assert (2, 2) == (injection.fired, len(injection.workers))


def test_workers_from_before_the_scope_are_not_reached(paths):
    """The message says what to do."""
    loader = alone(Tries(paths, WAYS["read"]), persistent_workers=True)
    epoch(loader)
    message = "no DataLoader worker was started after"
    with pytest.raises(FaultNotFiredError, match=message), inject(ReadError("*.rec")):
        results = epoch(loader).batches
    assert [] == failed(results)
    loader._iterator._shutdown_workers()


def test_two_scopes_at_once_are_refused(paths):
    """And the outer one goes on."""
    with inject(ReadError("*/03.rec")) as injection:
        with pytest.raises(InvalidArgumentError, match="armed already"), inject(ReadError("*")):
            pytest.fail("two scopes at once")
        assert [3] == failed(epoch(alone(Tries(paths, WAYS["read"]))).batches)
    assert 1 == injection.fired


def test_scopes_one_after_the_other(paths):
    """Each is its own; a bare loop between them meets nothing."""
    loader = alone(Tries(paths, WAYS["read"]))
    with inject(ReadError("*/03.rec")):
        first = failed(epoch(loader).batches)
    between = failed(epoch(loader).batches)
    with inject(ReadError("*/04.rec")):
        second = failed(epoch(loader).batches)
    assert [[3], [], [4]] == [first, between, second]


def test_a_loader_without_workers_is_refused(records):
    """This very process would have to be filtered, for good."""
    message = r"num_workers=0.*Use num_workers=1 or more"
    with pytest.raises(DataLoaderFaultsError, match=message), inject(ReadError("*.rec")):
        list(DataLoader(Records(records), num_workers=0))


@pytest.mark.parametrize("value", ["no", 1, None])
def test_require_fired_is_true_or_false(value):
    """Text such as "no" would be true."""
    with pytest.raises(InvalidArgumentError, match=f"require_fired={value!r} must be True or"):
        inject(ReadError("*"), require_fired=value)


@pytest.mark.parametrize(
    ("faults", "message"),
    [
        (("*.jpg",), "'*.jpg' is no fault"),
    ],
)
def test_what_cannot_be_is_refused(faults, message):
    """Before anything is armed."""
    with pytest.raises(InvalidArgumentError, match=re.escape(message)), inject(*faults):
        pytest.fail("armed")


def test_a_fault_of_other_files_is_no_change(paths, contents):
    """The engine alone does nothing: the control."""
    with inject(ReadError("*.nothing"), require_fired=False) as injection:
        results = epoch(alone(Tries(paths, WAYS["read"]), num_workers=2)).batches
    assert contents == [each.gave for each in results]
    assert (0, 0) == (injection.reached, injection.fired)


@pytest.mark.parametrize("engine", ["kernel", "python"])
@pytest.mark.parametrize("seconds", [3e6, 1e12], ids=["a month", "forever"])
def test_a_read_may_be_as_slow_as_one_likes(paths, engine, seconds):
    """No timer is too far away for the supervisor, nor for a worker."""
    loader = alone(Tries(paths, WAYS["read"]), timeout=1)
    fault = SlowRead("*/00.rec", seconds=seconds)
    with pytest.raises(RuntimeError, match="timed out"), inject(fault, engine=engine) as injection:
        list(loader)
    assert injection.fired == 1


def test_the_bodys_own_error_goes_first():
    """Not "never fired", which would hide it."""
    with pytest.raises(ZeroDivisionError), inject(ReadError("*.nothing")):
        raise ZeroDivisionError


def test_two_thousand_files_in_turn(tmp_path):
    """More than the numbers that are looked after at a time."""
    path = tmp_path / "file.rec"
    path.write_bytes(b"record")
    sources = [[str(path)] * 500] * 4
    with inject(ReadError("*.rec", nth=1900, times=1)) as injection:
        results = epoch(alone(Tries(sources, _each))).batches
    assert [[500], [500], [500], [399, "OSError: [Errno 5] Input/output error", 100]] == [
        _runs(each.gave) for each in results
    ]
    assert (2000, 1) == (injection.reached, injection.fired)


def _each(paths):
    return [each.gave for each in Tries(paths, WAYS["pread"])]


def _runs(gave):
    """Good reads in a row are counted."""
    runs = []
    for each in gave:
        if each == b"record" and runs and isinstance(runs[-1], int):
            runs[-1] += 1
        else:
            runs.append(1 if each == b"record" else each)
    return runs
