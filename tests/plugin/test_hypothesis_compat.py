"""``inject`` inside the body of a Hypothesis test, and why it is not a fixture there."""

from __future__ import annotations

import re

import pytest
from torch.utils.data import DataLoader

from pytest_dataloader_faults import faults, inject
from support.datasets import COUNT, Records

hypothesis = pytest.importorskip("hypothesis")
pytestmark = pytest.mark.usefixtures("engine")

few = hypothesis.settings(
    max_examples=5,
    deadline=None,
    database=None,
    derandomize=True,
    suppress_health_check=[hypothesis.HealthCheck.function_scoped_fixture],
)
SHARED = """
from hypothesis import HealthCheck, given, settings, strategies as st
from torch.utils.data import DataLoader

from pytest_dataloader_faults import faults, inject
from support.datasets import Records


"""

UNFIRED = (
    SHARED
    + """
@settings(max_examples=20, deadline=None, database=None, derandomize=True,
          suppress_health_check=list(HealthCheck))
@given(nth=st.integers(1, 100))
def test_x(records, nth):
    with inject(faults.ReadError("*.rec", nth=nth)):
        try:
            list(DataLoader(Records(records), num_workers=1))
        except OSError:
            pass
"""
)

FIXTURE = (
    SHARED
    + """
@given(nth=st.integers(1, 3))
def test_x(eio_reads, nth):
    pass
"""
)


def test_each_example_has_its_own_faults(records):
    """Each example arms, fires and disarms; none sees what another one armed."""
    seen = set()

    @few
    @hypothesis.given(number=hypothesis.strategies.integers(0, COUNT - 1))
    def example(number):
        with inject(faults.ReadError(f"*/{number:02}.rec")) as armed:
            iterator = iter(DataLoader(Records(records), num_workers=1))
            with pytest.raises(OSError, match="Errno 5"):
                list(iterator)
            assert (armed.fired, armed.surfaced) == (1, 1)
        (firing,) = armed.faults[0].firings
        assert firing.path == str(records / f"{number:02}.rec")
        seen.add(number)

    example()
    assert len(seen) > 1
    assert len(list(DataLoader(Records(records), num_workers=1))) == COUNT


@pytest.mark.slow
def test_a_fault_that_does_not_fire_is_shrunk_to_the_least(suite):
    """FaultNotFiredError is an error like any other: one access too few is what is reported."""
    result = suite.run(UNFIRED, "-p", "hypothesispytest")
    result.assert_outcomes(failed=1)
    text = result.stdout.str()
    found = re.search(
        r"FaultNotFiredError: ReadError\(.*, nth=(\d+)\) never fired: (\d+) operations", text
    )
    assert found
    assert int(found[1]) == int(found[2]) + 1
    result.stdout.fnmatch_lines([f"E *nth={found[1]},"])


def test_the_fixtures_are_refused_there(suite):
    """Hypothesis itself says that a fixture of the plugin would not be reset for each example."""
    result = suite.run(FIXTURE, "-p", "hypothesispytest")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*unction-scoped fixture 'eio_reads'*"])
