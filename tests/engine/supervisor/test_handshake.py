"""Whoever else connects to the supervisor is sent away, and no worker misses its faults for it."""

from __future__ import annotations

import json
import os
import socket
import struct

import pytest

from pytest_dataloader_faults import inject
from pytest_dataloader_faults.faults import ReadError
from support.datasets import Records
from support.epochs import alone, epoch


def _message(body, descriptors=0):
    text = body if isinstance(body, bytes) else json.dumps(body).encode()
    return struct.pack("=II", len(text), descriptors) + text


def _worker(**other):
    hello = {"type": "Hello", "worker": 0, "loader": 1, "pid": os.getpid(), "engine": "kernel"}
    return {**hello, **other}


JUNK = {
    "no JSON": (_message(b"\xff{"), 0),
    "deep": (_message(b"[" * 100_000), 0),
    "no descriptor": (_message(_worker()), 0),
    "a list": (_message([1, 2], 1), 1),
    "too few words": (_message({"type": "Hello", "pid": os.getpid()}, 1), 1),
    "another message": (_message({"type": "WorkerIdle"}, 1), 1),
    "no known message": (_message(_worker(type="Hi"), 1), 1),
    "a listener that is none": (_message(_worker(), 1), 1),
    "the python engine of another process": (_message(_worker(pid=1, engine="python"), 1), 1),
    "many descriptors": (_message(_worker(), 62), 62),
    "more descriptors than a message has": (_message(_worker(), 200), 200),
    "half a message with descriptors": (_message(_worker(), 62)[:-1], 62),
}


@pytest.mark.parametrize(("data", "count"), JUNK.values(), ids=JUNK)
def test_a_stranger_is_sent_away(records, data, count):
    """The line is closed, nothing is kept of what came, and the fault happens to the workers."""
    with inject(ReadError("*/00.rec")) as injection:
        with _connected(injection) as stranger, open(os.devnull, "rb") as file:
            before = _descriptors(injection)
            socket.send_fds(stranger, [data], [file.fileno()] * count)
            assert b"" == _end_of(stranger)
        assert _descriptors(injection) <= before
        read = epoch(alone(Records(records)))
    assert "Errno 5" in read.text
    assert (1, 1) == (injection.fired, len(injection.workers))


def test_a_stranger_with_much_to_say(records):
    """It is not listened to forever."""
    with inject(ReadError("*/00.rec")) as injection:
        with _connected(injection) as stranger:
            stranger.sendall(struct.pack("=II", (1 << 32) - 1, 0))
            with pytest.raises(ConnectionError):
                _talk(stranger)
        read = epoch(alone(Records(records)))
    assert "Errno 5" in read.text


def _talk(stranger):
    for _ in range(1 << 10):
        stranger.sendall(bytes(1 << 16))


def _connected(injection):
    stranger = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    # With a timeout, connect(2) fails where the supervisor has not accepted the one before.
    stranger.connect(f"\0{injection._client.config.address}")
    stranger.settimeout(30)
    injection.refresh()  # It has answered the door by then.
    return stranger


def _end_of(stranger):
    try:
        return stranger.recv(1)
    except ConnectionResetError:  # Not all of it was read.
        return b""


def _descriptors(injection):
    return len(os.listdir(f"/proc/{injection._client.pid}/fd"))
