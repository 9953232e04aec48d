"""What torch's DataLoader runs, the battery runs; what torch refuses, the battery refuses."""

from __future__ import annotations

import pytest
from hypothesis import event, given, settings

from pytest_dataloader_faults import check_dataset
from pytest_dataloader_faults.exceptions import InvalidArgumentError, UnusableDatasetError
from record.odd_datasets import STREAMS
from record.odd_loaders import OddLoader, odd_loaders

pytestmark = pytest.mark.usefixtures("engine")
_NOTHING = "no batch"
_NO_ROWS = "cannot be split into samples"
"""How a stream is refused whose batches hide their samples; a contract can say how to split."""


def _plain(loader: OddLoader) -> str:
    """Why a plain loop refuses *loader*; empty if it runs."""
    try:
        return "" if loader.plain() else _NOTHING
    except Exception as error:  # noqa: BLE001  # whatever torch or the dataset says
        return repr(error)


def _describe_runs(loader: OddLoader) -> str:
    """Why the battery refuses or fails *loader*; empty if it survives."""
    try:
        (result,) = check_dataset(loader, only="workers-agree", on_fail=None)
    except (InvalidArgumentError, UnusableDatasetError) as error:
        return str(error)
    return "" if result.verdict == "survived" else result.explanation


def _agree(loader: OddLoader) -> None:
    error, why = _plain(loader), _describe_runs(loader)
    event("refused by torch" if error else "run by torch")
    if error == _NOTHING:  # The battery refuses it as empty, unless drop_last alone is why.
        return
    if loader.dataset in STREAMS and _NO_ROWS in why and not error:
        event("needs a contract")
        return
    assert bool(error) == bool(why), f"torch: {error or 'runs'}\nthe battery: {why or 'runs'}"


@settings(max_examples=12)
@given(odd_loaders())
def test_torch_and_the_battery_agree(loader):
    _agree(loader)
