"""Several machines share what a search finds: Hypothesis' database in a Redis server."""

from __future__ import annotations

import contextlib
import functools
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest
from hypothesis import Phase

from pytest_dataloader_faults import explore, faults
from support.planted import Zeros
from support.waiting import until

redis = pytest.importorskip("redis")
from hypothesis.extra.redis import RedisExampleDatabase  # noqa: E402  # It needs redis.

pytestmark = pytest.mark.usefixtures("engine")

CONFTEST = """
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
SUITE = """
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
    """It has nothing on its disk, and draws nothing by itself."""
    suite.pytester.makeconftest(CONFTEST.format(path=socket))
    shared = RedisExampleDatabase(redis.Redis(unix_socket_path=socket))
    replay = ("-p", "_hypothesis_pytestplugin", "--hypothesis-profile", "replay")
    suite.run(SUITE, *replay).assert_outcomes(skipped=1)
    found = explore(
        functools.partial(Zeros, records),
        kinds=[faults.OpenError],
        max_epochs=1,
        max_examples=9,
        phases=[Phase.generate],
        database=shared,
        on_fail=None,
    )
    assert found.failure
    result = suite.again(*replay)
    result.assert_outcomes(failed=1)
    assert found.failure.splitlines()[0] in result.outlines
