"""A loader that is gone while the supervisor has an answer for it."""

from __future__ import annotations

import os
import socket

import pytest

from pytest_dataloader_faults._engine.plan import Plan
from pytest_dataloader_faults._engine.protocol import Channel, EndFaults
from pytest_dataloader_faults._engine.supervisor.server import Supervisor
from pytest_dataloader_faults.faults import ReadError
from support.children import in_a_process


def _answer_a_loader_that_is_gone():
    ours, theirs = socket.socketpair()
    with socket.socket(socket.AF_UNIX) as listening:
        supervisor = Supervisor(Channel(ours), listening, Plan((ReadError(),)), os.getpid())
        Channel(theirs).send(EndFaults())
        theirs.close()
        supervisor._on_control(0)  # Its question.
        assert supervisor.control is not None
        supervisor._on_control(0)  # Its end.
        assert supervisor.control is None


@pytest.mark.usefixtures("engine")
def test_an_answer_to_a_loader_that_is_gone_is_dropped():
    """The supervisor reads its question, and then that it has hung up."""
    assert in_a_process(_answer_a_loader_that_is_gone) == ""
