"""Shared by the tests of the python engine: a data file that this process opens."""

import pytest

from support.attempts import CONTENT


@pytest.fixture(name="path")
def _path(tmp_path):
    path = tmp_path / "data.rec"
    path.write_bytes(CONTENT)
    return path
