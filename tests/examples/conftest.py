"""What the tests of the examples share: the examples themselves, importable as scripts do it."""

import sys
from pathlib import Path

import pytest

from pytest_dataloader_faults._engine import explain_missing_engine

EXAMPLES = Path(__file__).parents[2] / "examples"
sys.path.append(str(EXAMPLES))  # and spawned workers inherit it


@pytest.fixture(autouse=True)
def _needs_the_kernel_engine():
    if reason := explain_missing_engine():
        pytest.skip(reason)


@pytest.fixture(name="examples", scope="session")
def _examples():
    return EXAMPLES
