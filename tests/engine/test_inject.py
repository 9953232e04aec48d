"""``inject`` around one's own loop: which loaders it reaches, and what it says at its end."""

import pytest
from torch.utils.data import DataLoader, _utils

from pytest_dataloader_faults import inject
from pytest_dataloader_faults.exceptions import (
    DataLoaderFaultsError,
    FaultNotFiredError,
    InvalidArgumentError,
)
from pytest_dataloader_faults.faults import (
    CorruptedFile,
    DescriptorExhaustion,
    ReadError,
    SlowRead,
    TruncatedFile,
)
from support.attempts import epoch_of
from support.datasets import COUNT, Records
from support.epochs import alone, epoch, take_before_hang
from support.tries import WAYS, Tries, number_of


@pytest.fixture(name="contents")
def _contents(records):
    return [path.read_bytes() for path in sorted(records.iterdir())]


def failed_indices(results):
    return [each.index for each in results if isinstance(each.gave, str)]


def test_files_that_are_not_meant_are_read_as_ever(paths, contents):
    """By the numbers that the kernel gives."""
    with inject(ReadError("*/03.rec"), TruncatedFile("*/05.rec")):
        results = epoch(alone(Tries(paths, WAYS["read"]))).batches
        numbers = epoch(alone(Tries(paths, number_of))).batches
    spared = [index for index in range(COUNT) if index not in (3, 5)]
    assert [contents[index] for index in spared] == [results[index].gave for index in spared]
    assert all(each.gave < 1000 for each in numbers)


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


# All kinds of faults in one scope.


SCARCE, SHARED = 7, 8


def test_an_open_without_a_free_number_counts_whatever_file_it_is_to_open(records):
    """Otherwise "Too many open files" would be an error without a cause."""
    faults = CorruptedFile("*/00.rec"), TruncatedFile("*/01.rec")
    scope = inject(DescriptorExhaustion(), *faults, require_fired=False)
    with scope as injection:
        for first in range(len(faults)):
            loader = alone(Records(records), sampler=[first, first + 1])
            _, (exhaustion, *_) = epoch_of(injection, loader)
            assert f"{first:02}.rec" in exhaustion.firings[0].path
            assert exhaustion.mentioned
