"""The supervisor: who may talk to it, what it hears first, and what becomes of it."""

import os
import socket
import sys

import pytest
from torch.utils.data import DataLoader

from pytest_dataloader_faults import inject
from pytest_dataloader_faults._engine.plan import FaultPlan
from pytest_dataloader_faults._engine.protocol import Channel, EndFaults
from pytest_dataloader_faults._engine.supervisor import start
from pytest_dataloader_faults._engine.supervisor.events import Events
from pytest_dataloader_faults._engine.supervisor.server import Supervisor
from pytest_dataloader_faults.exceptions import HarnessError
from pytest_dataloader_faults.faults import OpenError, ReadError
from support.attempts import error_of
from support.children import in_its_own_process
from support.datasets import Records
from support.epochs import alone, epoch
from support.tries import WAYS, Tries


@pytest.mark.usefixtures("engine")
@in_its_own_process()
def test_an_answer_to_a_loader_that_is_gone_is_dropped():
    (ours, theirs), (door, _) = Channel.pair(), Channel.pair()
    supervisor = Supervisor(ours, door, FaultPlan((ReadError(),)), os.getpid())
    theirs.send(EndFaults())
    theirs.close()
    supervisor._on_control(0)  # Its question.
    assert supervisor.control is not None
    supervisor._on_control(0)  # Its end.
    assert supervisor.control is None


MUCH = 1 << 20
"""Bytes: more than a pipe takes."""
MOST = 6000
"""Characters of an error, with a message of ours."""


def _die_as_it_starts(*_):
    sys.stderr.write("its beginning" + "." * MUCH)
    raise RuntimeError("its end")


@pytest.mark.usefixtures("engine")
def test_a_supervisor_that_dies_as_it_starts(monkeypatch):
    monkeypatch.setattr(start, "_serve", _die_as_it_starts)
    descriptors = len(os.listdir("/proc/self/fd"))
    with pytest.raises(HarnessError, match=r"\) exited with status 70") as caught:
        inject(ReadError("*.none"), require_fired=False).__enter__()
    text = str(caught.value)
    assert "its end" in text
    assert "its beginning" not in text
    assert len(text) < MOST
    assert len(os.listdir("/proc/self/fd")) == descriptors


def _send_what_is_no_message(records):
    with inject(ReadError("*.none"), require_fired=False) as injection:
        next(iter(DataLoader(Records(records), num_workers=1, batch_size=4)))
        injection._client._channel.connection.send(b"?")


@pytest.mark.usefixtures("engine")
def test_a_supervisor_that_dies_in_its_scope(records, capfd):
    with pytest.raises(HarnessError, match=r"\) exited with status 70,") as caught:
        _send_what_is_no_message(records)
    assert "Traceback" in str(caught.value)
    assert "Traceback" not in capfd.readouterr().err


@pytest.fixture(name="pairs")
def _pairs():
    """Three connections, whose first ends are watched."""
    pairs = [socket.socketpair() for _ in range(3)]
    yield pairs
    for connection in (connection for pair in pairs for connection in pair):
        connection.close()


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 0, 2)])
def test_messages_come_before_calls_and_the_loader_last(pairs, order):
    names = ("loader", "call", "message")
    events, heard = Events(), []
    events.last = pairs[0][0].fileno()
    for number, (ours, _) in enumerate(pairs):
        watch = events.watch_calls if names[number] == "call" else events.watch
        watch(ours.fileno(), lambda _flags, number=number: heard.append(names[number]))
    for number in order:
        pairs[number][1].send(b"x")
    for handler, flags in events.wait(None):
        handler(flags)
    assert ["message", "call", "loader"] == heard


def test_a_handler_may_end_the_watch_of_others(pairs):
    events, heard = Events(), []
    descriptors = [ours.fileno() for ours, _ in pairs]

    def end_all(_flags):
        heard.append("ended")
        for descriptor in descriptors:
            events.unwatch(descriptor)

    for descriptor in descriptors[:2]:
        events.watch(descriptor, end_all)
    events.watch_calls(descriptors[2], end_all)
    for _, theirs in pairs:
        theirs.send(b"x")
    for _ in range(2):
        for handler, flags in events.wait(0):
            handler(flags)
    assert ["ended"] == heard


def test_a_firing_has_the_fetch_in_which_it_happened(tmp_path):
    paths = [tmp_path / f"{number:03}.rec" for number in range(150)]
    for path in paths:
        path.write_bytes(b"contents")
    with inject(OpenError("*.rec")) as injection:
        epoch(alone(Tries(list(map(str, paths)), error_of(WAYS["read"])), num_workers=2))
    firings = injection.faults[0].firings
    assert len(paths) == len(firings)
    for firing in firings:
        number = int(os.path.splitext(os.path.basename(firing.path))[0])
        assert (number % 2, number // 2 + 1) == (firing.worker, firing.fetch)
