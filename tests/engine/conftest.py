"""Shared by the tests of the engine: one small data file, and sixteen of them."""

import pytest

from support.attempts import CONTENT


@pytest.fixture(name="path")
def _path(tmp_path):
    path = tmp_path / "data" / "file.rec"
    path.parent.mkdir()
    path.write_bytes(CONTENT)
    return str(path)


@pytest.fixture(name="paths")
def _paths(records):
    return sorted(map(str, records.iterdir()))
