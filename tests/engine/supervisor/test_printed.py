"""What a supervisor prints before it dies is in the error of inject()."""

from __future__ import annotations

import os

import pytest
from torch.utils.data import DataLoader

from pytest_dataloader_faults import inject
from pytest_dataloader_faults._engine.loader import client
from pytest_dataloader_faults._engine.protocol import Idle
from pytest_dataloader_faults.exceptions import InjectionError
from pytest_dataloader_faults.faults import ReadError
from support.datasets import Records

MUCH = 1 << 20
"""Bytes: more than a pipe takes."""
MOST = 6000
"""Characters of an error, with a message of ours."""
DIES = f"""
import sys
print("its beginning", file=sys.stderr)
sys.stderr.write("." * {MUCH})
print("its end", file=sys.stderr)
sys.exit(70)
"""

pytestmark = pytest.mark.usefixtures("engine")


def test_a_supervisor_that_dies_as_it_starts(monkeypatch):
    """The error has its exit status and the end of what it printed, and no descriptor stays."""
    monkeypatch.setattr(client, "code_to_run", lambda _module: DIES)
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(InjectionError, match=r"is gone: it ended with exit status 70") as caught:
        inject(ReadError("*.none"), require_fired=False).__enter__()
    text = str(caught.value)
    assert "its end" in text
    assert "its beginning" not in text
    assert len(text) < MOST
    assert len(os.listdir("/proc/self/fd")) == before


def _send_what_it_does_not_know(records):
    with inject(ReadError("*.none"), require_fired=False) as injection:
        next(iter(DataLoader(Records(records), num_workers=1, batch_size=4)))
        injection._client._channel.send(Idle())


def test_a_supervisor_that_dies_in_its_scope(records, capfd):
    """The error has its traceback, and the test's own output has not."""
    with pytest.raises(InjectionError, match=r"it ended with exit status 1;") as caught:
        _send_what_it_does_not_know(records)
    assert "UnknownMessageError: a loader does not send Idle" in str(caught.value)
    assert "UnknownMessageError" not in capfd.readouterr().err
