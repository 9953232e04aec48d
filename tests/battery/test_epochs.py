"""What the checks of two epochs conclude, from facts made by hand and from real trials."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pytest_dataloader_faults import check_dataset
from pytest_dataloader_faults.battery.checks import CHECKS
from pytest_dataloader_faults.outcomes import Delivery, Pass
from support.datasets import COUNT, Records
from support.facts import EIO, fired, map_reference, ordinary, raised

OTHER = raised("KeyError", "7")
INDICES = tuple(range(COUNT))


def _pass(salt, count=COUNT):
    """An epoch whose samples all have the same shape, and content that *salt* decides."""
    parts = tuple(((("", "Tensor", f"{salt}{index}"),)) for index in INDICES[:count])
    came = Delivery(INDICES[:count], ("same",) * count, "whole", parts)
    return Pass((INDICES[:count],), (came,), complete=True)


def _found(first, second, **reference):
    outcome = replace(ordinary(first), passes=(first, second))
    known = replace(map_reference(COUNT), **reference)
    return CHECKS["two-epochs"].extra_rule(outcome, known)


@pytest.mark.parametrize(
    ("first", "second", "varied", "repeats"),
    [
        (_pass("a"), _pass("a"), COUNT, True),
        (_pass("a"), _pass("b"), COUNT, False),
        (_pass("a"), _pass("a"), 0, False),
        (_pass("a"), _pass("a"), 3, False),
        (_pass("a", 4), _pass("a", 4), COUNT, False),
    ],
    ids=["same", "other", "not random", "hardly random", "too few to tell"],
)
def test_epoch_that_repeats_the_random_numbers(first, second, varied, repeats):
    """It fails where many samples are random, and all of them are the same again."""
    assert repeats == bool(_found(first, second, nondeterministic_count=varied))


@pytest.mark.parametrize(
    ("epochs", "is_violation"), [((1,), True), ((1, 2), False), ((2,), False), ((None,), False)]
)
def test_error_of_an_epoch_without_a_failing_read_was_remembered(epochs, is_violation):
    """One that a read of its own had is none."""
    (facts,) = fired(EIO, len(epochs))
    told = tuple(
        replace(one, epoch=epoch) for one, epoch in zip(facts.firings, epochs, strict=True)
    )
    failed = replace(_pass("a"), exception=OTHER, complete=False)
    outcome = ordinary(failed, (replace(facts, firings=told),))
    found = CHECKS["read-error-next-epoch"].extra_rule(
        replace(outcome, passes=(failed, failed)), map_reference()
    )

    assert is_violation == bool(found)
    assert not found or "the same workers raised KeyError: 7" in found[1]


def test_workers_that_live_on_are_asked_again(records):
    """The second epoch is that of the same processes, and their reads work again."""
    (result,) = check_dataset(lambda: Records(records), only="read-error-next-epoch")

    first, second = result.outcome.passes
    assert (first.exception.type, second.exception) == ("OSError", None)
    assert len(result.outcome.workers) == 2
    assert {each.fetches > 2 for each in result.outcome.workers} == {True}
    assert result.outcome.fired == 2
