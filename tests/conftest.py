"""What all tests share: real data files, and a check that nothing is left behind."""

from __future__ import annotations

import resource
from pathlib import Path

import pytest

from support.datasets import write_records


@pytest.fixture(autouse=True)
def _limits_are_kept():
    """A test that leaves a limit of descriptors behind would have later ones fail for it."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    yield
    assert resource.getrlimit(resource.RLIMIT_NOFILE) == before


@pytest.fixture(name="records")
def _records(tmp_path: Path) -> Path:
    """A folder of 16 files of 64 bytes, each of its own content."""
    return write_records(tmp_path / "records")
