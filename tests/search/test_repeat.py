"""What was found once is found again: by Hypothesis' own means, and trial by trial."""

import pytest
from hypothesis import given, seed, settings

from pytest_dataloader_faults import run_trial
from pytest_dataloader_faults.exceptions import (
    FaultNotFiredError,
    InvalidArgumentError,
)
from pytest_dataloader_faults.faults import OpenError
from pytest_dataloader_faults.search import replay
from pytest_dataloader_faults.search._assertion import assert_survives_or_fails_cleanly
from pytest_dataloader_faults.search._runner import cases
from pytest_dataloader_faults.strategies import DEFAULT_KINDS, loader_options
from support.datasets import Records
from support.surveys import survey

pytestmark = [pytest.mark.usefixtures("engine"), pytest.mark.timeout(600)]


def test_outside_of_hypothesis_nothing_shown_is_an_error(records):
    found = survey(lambda: Records(records))
    outcome = run_trial(lambda: Records(records), OpenError("*.none"))
    with pytest.raises(FaultNotFiredError, match=r"not_exercised: OpenError\(path='\*.none'\)"):
        assert_survives_or_fails_cleanly(outcome, found)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"loader": loader_options()}, r"loader=.* must be a dict of DataLoader options"),
        ({"contract": 3}, r"contract=3 must be a Contract"),
    ],
)
def test_what_cannot_be_replayed_is_refused(options, text):
    with pytest.raises(InvalidArgumentError, match=text):
        replay(list, OpenError(), **options)


def test_a_search_can_be_repeated(records):
    found = survey(lambda: Records(records))
    first, second = (_drawn(found) for _ in range(2))
    assert first == second
    assert len(set(first)) > 10


def _drawn(found):
    drawn = []

    @seed(7)
    @settings(max_examples=20, database=None, deadline=None, derandomize=False)
    @given(cases(found, None, 2, max_faults=3, kinds=DEFAULT_KINDS))
    def draw(case):
        drawn.append(repr(case))

    draw()
    return drawn
