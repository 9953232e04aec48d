"""Loops that failed leave their iterators to the garbage collector, which may come at any time."""

from __future__ import annotations

import gc
import sys

import pytest
from torch.utils.data import DataLoader

from pytest_dataloader_faults import faults, inject
from support.datasets import Records
from support.waiting import unhindered_time

pytestmark = [pytest.mark.usefixtures("engine"), pytest.mark.timeout(30)]


@pytest.fixture(autouse=True)
def _collect_by_hand():
    """Only the tests decide when the collector runs."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def _fail_and_forget(records) -> None:
    """A loop that fails, of which nothing is kept."""
    with pytest.raises(OSError, match="Errno 5"):
        list(DataLoader(Records(records), num_workers=1))


def _collect_while_sending(frame, event, _argument) -> None:
    if event == "call" and frame.f_code.co_name == "send":
        gc.collect()


def test_collecting_inside_the_scope_takes_no_time(records):
    with inject(faults.ReadError("*.rec")):
        _fail_and_forget(records)
        began = unhindered_time()
        gc.collect()
        assert unhindered_time() - began < 4


def test_collecting_in_the_midst_of_a_question_does_nothing(records):
    with inject(faults.ReadError("*.rec")) as armed:
        _fail_and_forget(records)
        sys.setprofile(_collect_while_sending)
        try:
            fired = armed.fired
        finally:
            sys.setprofile(None)
    assert fired >= 1
