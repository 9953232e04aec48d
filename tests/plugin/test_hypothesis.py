"""``inject`` and ``replay`` in Hypothesis tests, and the settings of a search."""

import re

import pytest
from torch.utils.data import DataLoader

from pytest_dataloader_faults import faults, inject
from support.datasets import COUNT, Records, write_records
from support.suites import failures_of

pytestmark = pytest.mark.usefixtures("engine")
hypothesis = pytest.importorskip("hypothesis")
short_run = hypothesis.settings(
    max_examples=5,
    deadline=None,
    database=None,
    derandomize=True,
    suppress_health_check=[hypothesis.HealthCheck.function_scoped_fixture],
)


def test_each_example_has_its_own_faults(records):
    numbers = set()

    @short_run
    @hypothesis.given(number=hypothesis.strategies.integers(0, COUNT - 1))
    def example(number):
        with inject(faults.ReadError(f"*/{number:02}.rec")) as armed:
            iterator = iter(DataLoader(Records(records), num_workers=1))
            with pytest.raises(OSError, match="Errno 5"):
                list(iterator)
            assert (armed.fired, armed.mentioned) == (1, 1)
        (firing,) = armed.faults[0].firings
        assert firing.path == str(records / f"{number:02}.rec")
        numbers.add(number)

    example()
    assert len(numbers) > 1
    assert len(list(DataLoader(Records(records), num_workers=1))) == COUNT


CONFTEST = """
from hypothesis import Verbosity, settings
from hypothesis.database import InMemoryExampleDatabase

KEPT = InMemoryExampleDatabase()
settings.register_profile(
    "quick", max_examples=3, database=KEPT, verbosity=Verbosity.verbose, deadline=1
)
"""
SUITE = """
from pytest_dataloader_faults import explore, faults
from support.datasets import Records
from support.planted import Zeros

ONE = {"kinds": [faults.OpenError], "max_epochs": 1, "max_faults": 1}

def test_quick(records):
    found = explore(lambda: Records(records), **ONE)
    assert 1 <= sum(found.verdicts.values()) <= 3

def test_call(records, capsys):
    found = explore(lambda: Records(records), max_examples=4, verbosity=0, seed=1, **ONE)
    assert sum(found.verdicts.values()) == 4
    assert "case=Case" not in capsys.readouterr().out
"""
PROFILE = ("-p", "_hypothesis_pytestplugin", "--hypothesis-profile")


@pytest.mark.slow
def test_a_search_asks_the_profile(suite):
    suite.add_to_conftest(CONFTEST)
    result = suite.run(SUITE, *PROFILE, "quick", "-rP")

    result.assert_outcomes(passed=2)
    assert "case=Case(" in result.stdout.str()


GIVEN = """
from pathlib import Path

from hypothesis import given, settings, strategies as st
from support.planted import Zeros

from pytest_dataloader_faults import faults
from pytest_dataloader_faults.search import replay

def make():
    return Zeros(Path(__file__).parent / "kept")

@settings(max_examples=3, database=None, derandomize=True, deadline=None)
@given(st.just("a falsifying example"))
def test_given(word):
    replay(make, faults.OpenError("*/00.rec", times=1))
"""


def test_the_line_of_the_test_and_the_example_of_hypothesis_are_shown(suite):
    write_records(suite.path / "kept")
    (text,) = failures_of(suite.run(GIVEN, *PROFILE[:2])).values()
    assert "\nE  " not in text
    assert re.search(r"-- raised at test_inner\.py:\d+ --", text)
    assert text.index("reproduce: ") < text.index("word='a falsifying example'")
    (traceback,) = failures_of(suite.again(*PROFILE[:2], "--showlocals")).values()
    assert "\nE  " in traceback
    assert "replay(make, faults.OpenError(" in traceback
