"""An accelerator for these tests: a stand-in, and a real one."""

import pytest

from support.accelerators import REAL, stand_in


@pytest.fixture(name="accelerator", params=["stand-in", pytest.param("real", marks=REAL)], ids=str)
def _accelerator(request, monkeypatch):
    """One is there, or is taken for there, in this process and all that it forks."""
    if request.param == "real":
        yield
        return
    with stand_in(monkeypatch):
        yield
