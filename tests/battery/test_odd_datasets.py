"""Datasets with attributes of any kind: none is read that torch does not read."""

from __future__ import annotations

import pytest
from torch.utils.data import DataLoader

from pytest_dataloader_faults import check_dataset, run_trial
from pytest_dataloader_faults.exceptions import UnusableDatasetError
from support import odd_datasets
from support.odd_datasets import COUNT, MAPS, STREAMS, plain_loop

pytestmark = pytest.mark.usefixtures("engine")
OFTEN = ("pipeline", "named like loaders", "strict", "callable", "lying dict", "no truth")


def _asked(made, **options):
    (result,) = check_dataset(made, only="workers-agree", on_fail=None, **options)
    return result.verdict


@pytest.mark.parametrize(
    "name",
    [pytest.param(each, marks=[] if each in OFTEN else pytest.mark.slow) for each in MAPS],
)
def test_a_dataset_that_torch_takes(name):
    """It is tried as any other, as what a function gives and in a loader."""
    make = MAPS[name]
    assert len(plain_loop(make(), batch_size=4, num_workers=2)) == COUNT // 4
    loader = DataLoader(make(), batch_size=4, num_workers=1)
    assert (_asked(make), _asked(loader)) == ("survived", "survived")


@pytest.mark.parametrize("name", ["strict", "callable", "strict dataset", "raising properties"])
def test_a_ready_dataset(name):
    """It is tried itself, be it callable or not."""
    assert _asked(MAPS[name]()) == "survived"


@pytest.mark.parametrize("name", STREAMS)
def test_a_stream_that_torch_takes(name):
    """Neither its length nor its items are asked for."""
    assert _asked(STREAMS[name]) == "survived"


@pytest.mark.parametrize("is_loader", [True, False])
def test_a_stream_whose_last_samples_are_dropped(is_loader):
    """Those that ``drop_last`` leaves out, in each worker, are not missing."""
    how = {"batch_size": 3, "drop_last": True, "num_workers": 2}
    assert len(plain_loop(STREAMS["stream"](), **how)) == 2
    if is_loader:
        assert _asked(lambda: DataLoader(STREAMS["stream"](), **how)) == "survived"
    else:
        assert _asked(STREAMS["stream"], loader=how) == "survived"


@pytest.mark.parametrize("is_ready", [True, False])
@pytest.mark.parametrize("kind", [odd_datasets.Raising, odd_datasets.RaisingDataset])
@pytest.mark.parametrize("entry", [_asked, run_trial])
def test_a_dataset_that_cannot_be_asked_for_its_class(kind, is_ready, entry):
    """Nor does torch take it: the error is the dataset's own, with its place."""
    with pytest.raises(LookupError, match="not __class__"):
        plain_loop(kind(), num_workers=1)
    told = rf"class of a {kind.__name__}, .*LookupError\('not __class__'\) at .*odd_datasets.py"
    with pytest.raises(UnusableDatasetError, match=told):
        entry(kind() if is_ready else kind)
