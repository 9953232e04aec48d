"""An accelerator for these tests: a stand-in, and a real one."""

import pytest
from torch.utils.data.dataloader import _MultiProcessingDataLoaderIter

from support.accelerators import REAL, stand_in


@pytest.fixture(name="accelerator", params=["stand-in", pytest.param("real", marks=REAL)], ids=str)
def _accelerator(request, monkeypatch):
    """One is there, or is taken for there, in this process and all that it forks."""
    # Torch looks every 5 s whether the thread still runs: MP_STATUS_CHECK_INTERVAL.
    monkeypatch.setattr(_MultiProcessingDataLoaderIter._try_get_data, "__defaults__", (0.5,))
    if request.param == "real":
        yield
        return
    with stand_in(monkeypatch):
        yield
