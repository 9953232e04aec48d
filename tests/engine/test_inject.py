"""``inject`` around one's own loop: which loaders it reaches, and what it says at its end."""

import pytest
from torch.utils.data import DataLoader, _utils

from pytest_dataloader_faults import inject
from pytest_dataloader_faults.exceptions import (
    DataLoaderFaultsError,
    FaultNotFiredError,
    InvalidArgumentError,
)
from pytest_dataloader_faults.faults import DescriptorExhaustion, ReadError, SlowRead, TruncatedFile
from support.datasets import COUNT, Records
from support.epochs import alone, epoch, take_before_hang
from support.tries import WAYS, Tries, number_of


@pytest.fixture(name="contents")
def _contents(records):
    return [path.read_bytes() for path in sorted(records.iterdir())]


def failed_indices(results):
    return [each.index for each in results if isinstance(each.gave, str)]


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


def test_a_read_may_be_as_slow_as_one_likes(paths, monkeypatch):
    faults = SlowRead("*/00.rec", seconds=3e6), SlowRead("*/01.rec", seconds=1e12)
    # How long an iterator that is dropped waits for its worker.
    monkeypatch.setattr(_utils, "MP_STATUS_CHECK_INTERVAL", 0.1)
    iterators = []
    with inject(*faults) as injection:
        for first in range(len(faults)):
            iterators.append(iter(alone(Tries(paths[first:], WAYS["read"]))))
            take_before_hang(iterators[-1], injection, 0)
            with pytest.raises(RuntimeError, match="timed out"):
                next(iterators[-1])
    assert [1, 1] == [each.fired for each in injection.faults]


def test_the_bodys_own_error_goes_first():
    with pytest.raises(ZeroDivisionError), inject(ReadError("*.nothing")):
        raise ZeroDivisionError
