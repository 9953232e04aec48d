"""A worker that cannot reach its supervisor fails, and does not wait for an answer of its own."""

from __future__ import annotations

import errno
import os
import signal
import socket

import pytest

from pytest_dataloader_faults._engine.plan import Plan
from pytest_dataloader_faults._engine.protocol import Channel, Hello, WorkerConfig
from pytest_dataloader_faults._engine.worker.kernel_session import _hand_over
from pytest_dataloader_faults.faults import ReadError
from support.children import in_a_process

PATIENCE = 20


def test_a_supervisor_that_is_gone_when_the_listener_is_sent():
    """The next open(2) has nobody to wait for: the kernel refuses it, with ENOSYS."""

    def body():
        signal.alarm(PATIENCE)  # A process that waits for itself is ended by nothing else.
        config = WorkerConfig("", os.getpid(), Plan((ReadError("*"),)), "kernel")
        ours, theirs = socket.socketpair()
        theirs.close()
        hello = Hello(0, 1, os.getpid(), "kernel", high_fds=(512, 1024))
        with pytest.raises(BrokenPipeError):
            _hand_over(Channel(ours), config, hello)
        with pytest.raises(OSError, match="not implemented") as refused:
            os.open(os.devnull, os.O_RDONLY)
        assert errno.ENOSYS == refused.value.errno

    assert not (told := in_a_process(body)), told
