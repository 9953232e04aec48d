"""``inject`` around one's own loop: which loaders it reaches, and what it says at its end."""

from __future__ import annotations

import itertools
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
from support.attempts import epoch_of
from support.datasets import COUNT, Records, RecordStream, write_records
from support.epochs import alone, epoch, take_before_hang
from support.rows import rows
from support.tries import WAYS, Tries, number_of


@pytest.fixture(name="paths")
def _paths(records):
    """The 16 files."""
    return [str(path) for path in sorted(records.iterdir())]


@pytest.fixture(name="contents")
def _contents(records):
    """What is in them."""
    return [path.read_bytes() for path in sorted(records.iterdir())]


def failed_indices(results):
    """The indices of the attempts that gave an error."""
    return [each.index for each in results if isinstance(each.gave, str)]


KINDS = {"open": OpenError, "read": ReadError, "closed": ClosedDescriptor}
COUNTS = {
    "one in each worker": ({"nth": 2, "times": 1}, [2, 3]),
    "the last of each worker": ({"nth": 8}, [14, 15]),
    "one worker's": ({"workers": (1,)}, [*range(1, COUNT, 2)]),
}
"""Triggers, and which of the files are struck, of which two workers read every other one."""


@pytest.fixture(name="struck", scope="module")
def _struck(tmp_path_factory):
    """What a loader over files of its own gives under each row and kind, and the fault's facts."""
    cells = list(itertools.product(COUNTS, KINDS))
    folders = [write_records(tmp_path_factory.mktemp("counts") / "records") for _ in cells]
    faults = [
        KINDS[kind](f"{folder}/*", **COUNTS[row][0])
        for folder, (row, kind) in zip(folders, cells, strict=True)
    ]
    results = {}
    with inject(*faults) as injection:
        for place, (row, kind) in enumerate(cells):
            paths = [str(path) for path in sorted(folders[place].iterdir())]
            loader = alone(Tries(paths, WAYS["pread"]), num_workers=2)
            read, facts = epoch_of(injection, loader)
            results[row, kind] = paths, read.batches, facts[place]
    return results


@rows(("row", "kind"), list(itertools.product(COUNTS, KINDS)))
def test_occurrences_are_counted_in_each_worker(struck, row, kind):
    triggers, expected = COUNTS[row]
    paths, results, facts = struck[row, kind]
    assert expected == failed_indices(results)
    places = sorted((firing.path, firing.worker, firing.fetch) for firing in facts.firings)
    assert [(paths[i], i % 2, i // 2 + 1) for i in expected] == places
    matched = len(expected) if "workers" in triggers else COUNT
    assert (matched, len(expected)) == (facts.matched, facts.fired)


def test_no_descriptor_is_left_in_the_worker_that_is_meant(paths):
    with inject(DescriptorExhaustion(workers=(1,))) as injection:
        results = epoch(alone(Tries(paths, WAYS["pread"]), num_workers=2)).batches
    assert list(range(1, COUNT, 2)) == failed_indices(results)
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
    faults = (
        OpenError("*/01.rec"), ReadError("*/02.rec"), TruncatedFile("*/03.rec", keep=9),
        ClosedDescriptor("*/04.rec"), WorkerKilled(at=6),
    )  # fmt: skip
    with inject(*faults) as injection:
        read = epoch(alone(Tries(paths, WAYS["pread"])))
        live = [each.fired for each in injection.faults if injection.fired]
    assert [1, 1, 1, 1, 1] == live == [each.fired for each in injection.faults]
    assert ([1, 2, 4], 9) == (failed_indices(read.batches), len(read.batches[3].gave))
    assert "killed" in read.text


def test_counters_are_live(paths):
    loader = alone(Tries(paths, WAYS["read"]), prefetch_factor=1)
    with inject(ReadError("*.rec")) as injection:
        counts = [injection.fired for _ in loader]
    assert sorted(counts) == counts
    assert (COUNT, COUNT) == (counts[-1], injection.fired)


def test_iterable_datasets_are_reached(records):
    """Their workers fetch by another class of torch's."""
    with (
        inject(ReadError("*/07.rec")) as injection,
        pytest.raises(OSError, match=r"Errno 5"),
    ):
        list(DataLoader(RecordStream(records), num_workers=2, batch_size=2))
    (firing,) = injection.faults[0].firings
    assert (1, 2) == (firing.worker, firing.fetch)
    assert 1 == injection.mentioned


class _Opener:
    """A worker_init_fn that reads a file, and leaves what it got in its worker's dataset."""

    def __init__(self, path):
        self.path = path

    def __call__(self, worker):
        dataset = get_worker_info().dataset
        dataset.sources = [f"{worker} {os.getpid()}"] * len(dataset)
        dataset.read = lambda source: (source, WAYS["read"](self.path))


def test_a_worker_init_function_still_runs(paths, contents):
    opener = _Opener(paths[0])
    loader = alone(Tries(["nobody"] * 4, str), num_workers=2, worker_init_fn=opener)
    with inject(ReadError("*/00.rec", workers=(1,))) as injection:
        results = epoch(loader).batches
    pids = {each.worker: each.pid for each in injection.workers}
    assert [(f"0 {pids[0]}", contents[0])] * 2 == [each.gave for each in results[::2]]
    assert [1, 3] == failed_indices(results)
    assert loader.worker_init_fn is opener


def test_persistent_workers_are_armed_for_good(paths, contents):
    loader = alone(Tries(paths, WAYS["read"]), persistent_workers=True, num_workers=2)
    with inject(ReadError("*/03.rec")) as injection:
        first_epoch, second_epoch = epoch(loader).batches, epoch(loader).batches
    third_epoch = epoch(loader).batches
    loader._iterator._shutdown_workers()
    assert [[3], [3], []] == [
        failed_indices(first_epoch),
        failed_indices(second_epoch),
        failed_indices(third_epoch),
    ]
    assert contents == [each.gave for each in third_epoch]
    assert (2, 2) == (injection.fired, len(injection.workers))


def test_workers_from_before_the_scope_are_not_reached(paths):
    loader = alone(Tries(paths, WAYS["read"]), persistent_workers=True)
    epoch(loader)
    message = "no DataLoader worker was started while"
    with pytest.raises(FaultNotFiredError, match=message), inject(ReadError("*.rec")):
        results = epoch(loader).batches
    assert [] == failed_indices(results)
    loader._iterator._shutdown_workers()


def test_two_scopes_at_once_are_refused(paths):
    with inject(ReadError("*/03.rec")) as injection:
        with pytest.raises(InvalidArgumentError, match="already armed"), inject(ReadError("*")):
            pytest.fail("two scopes at once")
        assert [3] == failed_indices(epoch(alone(Tries(paths, WAYS["read"]))).batches)
    assert 1 == injection.fired


def test_scopes_one_after_the_other(paths):
    loader = alone(Tries(paths, WAYS["read"]))
    with inject(ReadError("*/03.rec")):
        first_failed = failed_indices(epoch(loader).batches)
    between = failed_indices(epoch(loader).batches)
    with inject(ReadError("*/04.rec")):
        second_failed = failed_indices(epoch(loader).batches)
    assert [[3], [], [4]] == [first_failed, between, second_failed]


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


def test_what_is_no_fault_is_refused():
    message = "'*.jpg' is not a fault"
    with pytest.raises(InvalidArgumentError, match=re.escape(message)), inject("*.jpg"):
        pytest.fail("armed")


@pytest.mark.parametrize("engine", ["kernel", "python"])
def test_a_read_may_be_as_slow_as_one_likes(paths, engine):
    faults = SlowRead("*/00.rec", seconds=3e6), SlowRead("*/01.rec", seconds=1e12)
    iterators = []  # One that is dropped waits for its worker.
    with inject(*faults, engine=engine) as injection:
        for first in range(len(faults)):
            iterators.append(iter(alone(Tries(paths[first:], WAYS["read"]))))
            take_before_hang(iterators[-1], injection, 0)
            with pytest.raises(RuntimeError, match="timed out"):
                next(iterators[-1])
    assert [1, 1] == [each.fired for each in injection.faults]


def test_the_bodys_own_error_goes_first():
    with pytest.raises(ZeroDivisionError), inject(ReadError("*.nothing")):
        raise ZeroDivisionError


def test_two_thousand_files_in_turn(tmp_path):
    path = tmp_path / "file.rec"
    path.write_bytes(b"record")
    sources = [[str(path)] * 500] * 4
    with inject(ReadError("*.rec", nth=1900, times=1)) as injection:
        results = epoch(alone(Tries(sources, _read_each))).batches
    assert [[500], [500], [500], [399, "OSError: [Errno 5] Input/output error", 100]] == [
        _count_runs(result.gave) for result in results
    ]
    assert (2000, 1) == (injection.matched, injection.fired)


def _read_each(paths):
    return [each.gave for each in Tries(paths, WAYS["pread"])]


def _count_runs(gave):
    """Good reads in a row are counted."""
    runs = []
    for content in gave:
        if content == b"record" and runs and isinstance(runs[-1], int):
            runs[-1] += 1
        else:
            runs.append(1 if content == b"record" else content)
    return runs
