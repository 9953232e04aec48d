"""A stream is tried with another number of workers, too, since its author has to divide it."""

import functools
from typing import Any

import pytest
from torch.utils.data import get_worker_info

from support.corpus.streams import RestDropped
from support.datasets import COUNT, Records, RecordStream
from support.results import failure_of, result_of
from support.specimens import Unsharded

_run_checks = functools.partial(result_of, check="workers-agree")
_failure = functools.partial(failure_of, check="workers-agree")


def _numbers(result):
    """Of the workers of each trial."""
    return [len({each.worker for each in outcome.workers}) for outcome in result.trials]


def test_what_is_left_over_of_a_division_is_missed(records):
    result = _failure(lambda: RestDropped(records))

    sentence = f"corrupted: with 3 workers, 1 of {COUNT} samples is missing"
    assert result.explanation.startswith(sentence)
    assert result.cause == "loses or repeats samples when the number of workers changes"
    assert "shards[info.id :: info.num_workers]" in result.explanation
    assert "exclude 'workers-agree': 'two-epochs' still compares" in result.explanation
    assert "2 workers (survived); 3 workers (corrupted)" in result.explanation


@pytest.mark.parametrize(("dataset", "numbers"), [(Records, [2]), (RecordStream, [2, 3])])
def test_the_number_of_workers_is_kept_if_it_shows_nothing(dataset, numbers, records):
    """Torch divides indices, and of a stream without an end nobody knows what is missing."""
    result = _run_checks(lambda: dataset(records))

    assert (result.passed, _numbers(result)) == (True, numbers)


class _ForTwo(RecordStream):
    """Says so where the number of workers is one that it was not made for."""

    def __iter__(self) -> Any:
        info = get_worker_info()
        if info and info.num_workers > 2:
            message = f"{info.num_workers} workers, and shards for 2"
            raise ValueError(message)
        return super().__iter__()


def test_a_stream_that_refuses_a_number_of_workers_loses_nothing(records):
    result = _run_checks(lambda: _ForTwo(records))

    assert (result.passed, _numbers(result)) == (True, [2])


def test_a_stream_for_one_worker_need_not_be_divided(records):
    alone = _run_checks(lambda: Unsharded(records), loader={"num_workers": 1})
    result = _failure(lambda: Unsharded(records))

    assert (alone.passed, _numbers(alone)) == (True, [1])
    assert (result.verdict, set(_numbers(result))) == ("corrupted", {2})
    assert "1 worker" not in result.explanation


def test_a_stream_that_fails_with_its_own_number_is_not_run_again(records):
    (records / "15.rec").unlink()
    result = _failure(lambda: RestDropped(records))

    assert result.explanation.startswith("corrupted: 1 of 15 samples is missing")
    assert set(_numbers(result)) == {2}
