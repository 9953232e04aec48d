"""What was found once is found again: by Hypothesis' own means, and trial by trial."""

from __future__ import annotations

import itertools
import sys

import pytest
from hypothesis import given, settings

from pytest_dataloader_faults import run_trial
from pytest_dataloader_faults._search import cases
from pytest_dataloader_faults.exceptions import FaultNotFiredError
from pytest_dataloader_faults.exploring import assert_survives_or_fails_cleanly
from pytest_dataloader_faults.faults import OpenError
from pytest_dataloader_faults.surveys import survey
from support.datasets import Records

pytestmark = [pytest.mark.usefixtures("engine"), pytest.mark.timeout(600)]


def _facts(outcome, found):
    """All that must be the same again: process ids, times and places of shared work may not be."""
    firings = [
        sorted((one.worker, one.call, one.path, one.fetch) for one in each.firings)
        for each in outcome.faults
    ]
    counts = [(each.fired, each.surfaced) for each in outcome.faults]
    error = outcome.exception and outcome.exception.type
    return found.judge(outcome).verdict, firings, counts, outcome.delivered, error


@pytest.mark.parametrize(
    "times", [20, pytest.param(1000, marks=[pytest.mark.slow, pytest.mark.timeout(7200)])]
)
def test_a_schedule_gives_the_same_again(records, times):
    """Random schedules and loaders, each tried twice: what fired and the verdict agree."""
    found = survey(lambda: Records(records))
    number, unlike = itertools.count(), []

    @settings(max_examples=times // 2, database=None, derandomize=True, deadline=None)
    @given(cases(found, None, 2, max_faults=3))
    def example(case):
        next(number)
        one, two = (
            _facts(
                run_trial(
                    lambda: Records(records),
                    *case.schedule,
                    loader=case.loader,
                    epochs=case.epochs,
                    seed=case.seed,
                ),
                found,
            )
            for _ in range(2)
        )
        if one != two:
            unlike.append((case, one, two))

    example()
    told = f"{next(number) - len(unlike)} schedules gave the same twice, {len(unlike)} did not"
    sys.stdout.write(f"{told}\n")
    assert unlike == [], told


def test_outside_of_hypothesis_nothing_shown_is_an_error(records):
    """There, no statistics would tell."""
    found = survey(lambda: Records(records))
    outcome = run_trial(lambda: Records(records), OpenError("*.none"))
    with pytest.raises(FaultNotFiredError, match=r"not_exercised: OpenError\(path='\*.none'\)"):
        assert_survives_or_fails_cleanly(outcome, found)


GUILTY = """
import tempfile
from pathlib import Path

import pytest
from hypothesis import Phase, example, given, reproduce_failure, settings

from pytest_dataloader_faults import faults, run_trial, strategies
from pytest_dataloader_faults.exploring import assert_survives_or_fails_cleanly
from pytest_dataloader_faults.faults import *
from pytest_dataloader_faults.surveys import survey
from support.datasets import Records, write_records


class Guilty(Records):
    def __getitem__(self, index):
        try:
            return super().__getitem__(index)[0]
        except OSError:
            return super().__getitem__(0)[0] * 0


FOLDER = write_records(Path(tempfile.mkdtemp()) / "records")
FOUND = survey(lambda: Guilty(FOLDER))
SCHEDULES = strategies.fault_schedules(files=FOUND, kinds=[faults.OpenError], max_faults=2)

@settings(
    max_examples={examples},
    deadline=None,
    phases=set(Phase) - {{Phase.explain}}{settings}
)
@given(schedule=SCHEDULES)
{decorator}def test_x(schedule):
    outcome = run_trial(lambda: Guilty(FOLDER), *schedule, loader={{"num_workers": 1}})
    print("TRIED", schedule)
    assert_survives_or_fails_cleanly(outcome, FOUND)
"""


def _source(examples=15, settings="", decorator=""):
    return GUILTY.format(examples=examples, settings=settings, decorator=decorator)


def _tried(result):
    return [line for line in result.outlines if line.startswith("TRIED")]


def test_the_database_has_the_failure_first(inner):
    """The second run begins with what the first one ended with; a forced seed has no database."""
    first = inner(_source(40))
    first.assert_outcomes(failed=1)
    last = _tried(first)[-1]
    assert last.startswith("TRIED (OpenError(path='")
    second = inner(_source(40))
    second.assert_outcomes(failed=1)
    assert _tried(second)[0] == last


def test_an_example_can_be_given(inner):
    """What the failure printed, as ``@example``, is what fails."""
    given = "@example(schedule=(OpenError(path='*/03.rec', times=1),))\n"
    result = inner(_source(1, "", given))
    result.assert_outcomes(failed=1)
    assert set(_tried(result)) == {"TRIED (OpenError(path='*/03.rec', times=1),)"}
    result.stdout.fnmatch_lines(["*corrupted: sample 3 in batch 0 has wrong content*"])


def test_a_blob_reproduces_the_failure(inner):
    """``@reproduce_failure`` as Hypothesis prints it."""
    first = inner(_source(15, ", print_blob=True, database=None"), "--hypothesis-seed=1")
    first.assert_outcomes(failed=1)
    (blob,) = {line for line in first.outlines if "@reproduce_failure(" in line}
    decorator = blob[blob.index("@") : blob.rindex(")") + 1] + "\n"
    again = inner(_source(15, ", database=None", decorator))
    again.assert_outcomes(failed=1)
    assert set(_tried(again)) == {_tried(first)[-1]}


def test_a_seed_gives_the_same_search(inner):
    """``--hypothesis-seed`` and ``derandomize`` both repeat a whole search."""
    runs = [_tried(inner(_source(3, ", database=None"), "--hypothesis-seed=5")) for _ in range(2)]
    assert runs[0] == runs[1] != []
    fixed = [_tried(inner(_source(3, ", derandomize=True"))) for _ in range(2)]
    assert fixed[0] == fixed[1] != []


def test_the_statistics_tell_verdicts_and_faults(inner):
    """What fired and what came of it, also of trials that showed nothing."""
    result = inner(
        _source(4, ", database=None").replace("Guilty(FOLDER)", "Records(FOLDER)"),
        *("--hypothesis-show-statistics", "--hypothesis-seed=1"),
    )
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["*%, verdict: *"])
    result.stdout.fnmatch_lines(["*%, OpenError: fired*"])
