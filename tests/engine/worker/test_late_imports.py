"""A worker that shares its first tensor has everything imported for that."""

from __future__ import annotations

import pytest
from torch.utils.data import DataLoader

from pytest_dataloader_faults import inject, run_trial
from pytest_dataloader_faults.faults import ReadError
from support.served import SharesTensors

SPAWN = pytest.param("spawn", marks=pytest.mark.slow)


@pytest.mark.parametrize("method", ["fork", "forkserver", SPAWN])
def test_sharing_a_tensor_imports_nothing(records, method):
    """Not in the workers of a trial, however they are started."""
    outcome = run_trial(
        lambda: SharesTensors(records), loader={"multiprocessing_context": method, "num_workers": 1}
    )
    assert outcome.passes[0].exception is None
    assert outcome.passes[0].complete


@pytest.mark.parametrize("method", ["fork", SPAWN])
def test_sharing_a_tensor_under_faults_imports_nothing(records, method):
    """Nor in a loop of the user's own: an import would meet the faults."""
    loader = DataLoader(SharesTensors(records), num_workers=1, multiprocessing_context=method)
    with inject(ReadError("*.rec"), require_fired=False):
        assert len(list(loader)) == len(loader)
