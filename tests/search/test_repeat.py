"""What was found once is found again: by Hypothesis' own means, and trial by trial."""

import ast
import functools

import pytest
from hypothesis import given, reproduce_failure, seed, settings
from hypothesis.database import InMemoryExampleDatabase

from pytest_dataloader_faults import run_trial
from pytest_dataloader_faults.exceptions import (
    CheckFailedError,
    FaultNotFiredError,
    InvalidArgumentError,
)
from pytest_dataloader_faults.faults import OpenError
from pytest_dataloader_faults.search import replay
from pytest_dataloader_faults.search._assertion import assert_survives_or_fails_cleanly
from pytest_dataloader_faults.search._runner import cases
from pytest_dataloader_faults.strategies import DEFAULT_KINDS, fault_schedules, loader_options
from support.datasets import Records
from support.planted import Zeros
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


@pytest.fixture(name="searched")
def _searched_fixture(records):
    """A function that tries the property on a broken dataset: what was tried, and the error."""
    return functools.partial(_searched, records, survey(lambda: Zeros(records)))


def _searched(folder, found, decorate=lambda test: test, **options):
    tried = []
    drawn = fault_schedules(files=found.files, kinds=[OpenError], max_faults=1)
    how = {"max_examples": 10, "deadline": None, "report_multiple_bugs": False, **options}

    @decorate
    @settings(**how)
    @given(schedule=drawn)
    def trial(schedule):
        tried.append(schedule)
        outcome = run_trial(lambda: Zeros(folder), *schedule, loader={"num_workers": 1})
        assert_survives_or_fails_cleanly(outcome, found)

    with pytest.raises(CheckFailedError) as raised:
        trial()
    return tried, raised.value


@pytest.mark.slow
def test_the_database_has_the_failure_first_and_a_blob_reproduces_it(searched):
    database = InMemoryExampleDatabase()
    first, error = searched(database=database, print_blob=True)
    second, _ = searched(database=database)
    assert second[0] == first[-1]

    (note,) = (note for note in error.__notes__ if "@reproduce_failure(" in note)
    version, blob = ast.literal_eval(note[note.index("(") : note.rindex(")") + 1])
    again, _ = searched(reproduce_failure(version, blob), database=None)
    assert set(again) == {first[-1]}


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
