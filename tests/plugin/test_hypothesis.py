"""``inject`` in Hypothesis tests, the settings of a search, and a database of several machines."""

from __future__ import annotations

import contextlib
import functools
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest
from hypothesis import Phase
from hypothesis.extra.redis import RedisExampleDatabase  # It needs redis.
from torch.utils.data import DataLoader

from pytest_dataloader_faults import explore, faults, inject
from support.datasets import COUNT, Records
from support.planted import Zeros
from support.rows import slow
from support.waiting import until

pytestmark = pytest.mark.usefixtures("engine")
hypothesis = pytest.importorskip("hypothesis")
short_run = hypothesis.settings(
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
def test_x(read_errors, nth):
    pass
"""
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


@pytest.mark.slow
def test_a_fault_that_does_not_fire_is_shrunk_to_the_least(suite):
    result = suite.run(UNFIRED, "-p", "hypothesispytest")
    result.assert_outcomes(failed=1)
    text = result.stdout.str()
    match = re.search(
        r"FaultNotFiredError: ReadError\(.*, nth=(\d+)\) never fired: (\d+) operations", text
    )
    assert match
    assert int(match[1]) == int(match[2]) + 1
    result.stdout.fnmatch_lines([f"E *nth={match[1]},"])


def test_the_fixtures_are_refused_there(suite):
    """Hypothesis itself says that a fixture of the plugin would not be reset for each example."""
    result = suite.run(FIXTURE, "-p", "hypothesispytest")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*unction-scoped fixture 'read_errors'*"])


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


def test_quick(records):
    found = explore(lambda: Records(records), **ONE)
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
        slow("idle", "idle", 1),
        slow("quick", "kept", 1),
        slow("fixed", "fixed", 1),
    ],
)
def test_a_search_asks_the_profile(suite, profile, tests, count):
    with (suite.path / "conftest.py").open("a", encoding="utf-8") as conftest:
        conftest.write(CONFTEST)
    result = suite.run(SUITE, *PROFILE, profile, "-k", tests, "-rP")
    result.assert_outcomes(passed=count, deselected=5 - count)
    assert ("case=Case(" in result.stdout.str()) == (profile == "quick")


redis = pytest.importorskip("redis")
REDIS_CONFTEST = """
import pytest
from hypothesis import Phase, settings
from hypothesis.extra.redis import RedisExampleDatabase
from redis import Redis
from support.datasets import write_records

shared = RedisExampleDatabase(Redis(unix_socket_path={path!r}))
settings.register_profile("replay", database=shared, phases=[Phase.reuse])


@pytest.fixture
def records(tmp_path):
    return write_records(tmp_path / "records")
"""
REDIS_SUITE = """
import functools
from pytest_dataloader_faults import explore, faults
from support.planted import Zeros


def test_zeros(records):
    make_dataset = functools.partial(Zeros, records)
    explore(make_dataset, kinds=[faults.OpenError], max_epochs=1, max_examples=9)
"""


def _answers(path: str) -> bool:
    with contextlib.suppress(redis.ConnectionError):
        return redis.Redis(unix_socket_path=path).ping()
    return False


@pytest.fixture(name="socket")
def _socket():
    """The socket of a Redis server. Its path is short, as paths of sockets have to be."""
    if not (program := shutil.which("redis-server")):
        pytest.skip("redis-server is not installed: apt-get install redis-server")
    with tempfile.TemporaryDirectory(prefix="redis-") as folder:
        path = str(Path(folder, "socket"))
        options = ["--port", "0", "--unixsocket", path, "--save", "", "--dir", folder]
        with subprocess.Popen([program, *options], stdout=subprocess.DEVNULL) as server:
            try:
                assert until(lambda: _answers(path)), "the Redis server does not answer"
                yield path
            finally:
                server.terminate()


def test_another_process_replays_what_one_has_found(suite, socket, records):
    suite.pytester.makeconftest(REDIS_CONFTEST.format(path=socket))
    shared = RedisExampleDatabase(redis.Redis(unix_socket_path=socket))
    replay = ("-p", "_hypothesis_pytestplugin", "--hypothesis-profile", "replay")
    suite.run(REDIS_SUITE, *replay).assert_outcomes(skipped=1)
    exploration = explore(
        functools.partial(Zeros, records),
        kinds=[faults.OpenError],
        max_epochs=1,
        max_examples=9,
        phases=[Phase.generate],
        database=shared,
        on_fail=None,
    )
    assert exploration.failure
    result = suite.again(*replay)
    result.assert_outcomes(failed=1)
    assert exploration.failure.splitlines()[0] in result.outlines
