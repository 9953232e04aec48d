"""A search takes its settings from the call, or else from Hypothesis' active profile."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.usefixtures("engine")

CONFTEST = """
from hypothesis import Phase, Verbosity, settings
from hypothesis.database import InMemoryExampleDatabase

KEPT = InMemoryExampleDatabase()
settings.register_profile(
    "quick", max_examples=3, database=KEPT, verbosity=Verbosity.verbose, deadline=1
)
settings.register_profile("fixed", max_examples=4, derandomize=True, phases=[Phase.generate])
settings.register_profile("idle", phases=[Phase.reuse, Phase.shrink], database=KEPT)
"""
SUITE = """
import unittest

import pytest
from conftest import KEPT
from hypothesis import Phase

from pytest_dataloader_faults import explore, faults
from support.datasets import Records
from support.planted import Zeros

ONE = {"kinds": [faults.OpenError], "max_epochs": 1, "max_faults": 1}


def test_quick(dataloader_faults, records):
    found = dataloader_faults.explore(lambda: Records(records), **ONE)
    assert 1 <= sum(found.verdicts.values()) <= 3


def test_call(records, capsys):
    found = explore(lambda: Records(records), max_examples=4, verbosity=0, seed=1, **ONE)
    assert sum(found.verdicts.values()) == 4
    assert "case=Case" not in capsys.readouterr().out


def test_kept(records):
    explore(lambda: Zeros(records), on_fail=None, **ONE)
    assert KEPT.data


def test_fixed(records):
    failed = [explore(lambda: Zeros(records), on_fail=None, **ONE) for _ in range(2)]
    one, two = (each.outcome.schedule for each in failed)
    assert one == two
    assert [each.trials for each in failed] == [each.examples for each in failed]  # None to shrink.
    shrunk = explore(lambda: Zeros(records), on_fail=None, phases=Phase, database=None, **ONE)
    assert shrunk.outcome.schedule[0].times in (1, None)


def test_idle(records):
    with pytest.raises(unittest.SkipTest, match="told to run no"):  # Nothing is no pass.
        explore(lambda: Records(records), max_examples=3)
"""
PROFILE = ("-p", "_hypothesis_pytestplugin", "--hypothesis-profile")


@pytest.mark.parametrize(
    ("profile", "tests", "count"),
    [
        ("quick", "quick or call", 2),
        pytest.param("idle", "idle", 1, marks=pytest.mark.slow),
        pytest.param("quick", "kept", 1, marks=pytest.mark.slow),
        pytest.param("fixed", "fixed", 1, marks=pytest.mark.slow),
    ],
)
def test_a_search_asks_the_profile(suite, profile, tests, count):
    """For max_examples, database, verbosity, derandomize and phases; its deadline is not theirs."""
    with (suite.path / "conftest.py").open("a", encoding="utf-8") as conftest:
        conftest.write(CONFTEST)
    result = suite.run(SUITE, *PROFILE, profile, "-k", tests, "-rP")
    result.assert_outcomes(passed=count, deselected=5 - count)
    assert ("case=Case(" in result.stdout.str()) == (profile == "quick")
