"""``inject`` in Hypothesis tests, the settings of a search, and a database of several machines."""

import pytest
from torch.utils.data import DataLoader

from pytest_dataloader_faults import faults, inject
from support.datasets import COUNT, Records
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


def test_a_search_asks_the_profile(suite):
    suite.add_to_conftest(CONFTEST)
    result = suite.run(SUITE, *PROFILE, "quick", "-rP")

    result.assert_outcomes(passed=2)
    assert "case=Case(" in result.stdout.str()


SHARED = """
from hypothesis import Phase, settings
from hypothesis.database import DirectoryBasedExampleDatabase

shared = DirectoryBasedExampleDatabase("shared")
settings.register_profile("find", database=shared, phases=[Phase.generate])
settings.register_profile("replay", database=shared, phases=[Phase.reuse])
"""
SHARED_SUITE = """
import functools
from pytest_dataloader_faults import explore, faults
from support.planted import Zeros

def test_zeros(records):
    make_dataset = functools.partial(Zeros, records)
    explore(make_dataset, kinds=[faults.OpenError], max_epochs=1, max_examples=9)
"""


def test_another_process_replays_what_one_has_found(suite):
    suite.add_to_conftest(SHARED)
    suite.run(SHARED_SUITE, *PROFILE, "replay").assert_outcomes(skipped=1)
    found = suite.again(*PROFILE, "find")
    found.assert_outcomes(failed=1)
    replayed = suite.again(*PROFILE, "replay")
    replayed.assert_outcomes(failed=1)
    assert (
        failures_of(found)["zeros"].split("\n")[0] == failures_of(replayed)["zeros"].split("\n")[0]
    )
