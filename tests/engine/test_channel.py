"""The channel, and the messages that go through it."""

from __future__ import annotations

import json
import os
import socket
import struct
import threading

import psutil
import pytest

from pytest_dataloader_faults._engine import protocol
from pytest_dataloader_faults._engine.plan import Plan
from pytest_dataloader_faults._engine.protocol import (
    Channel,
    ExitNow,
    FaultRefused,
    Hello,
    Ready,
    UnknownMessageError,
    decode,
    encode,
)
from pytest_dataloader_faults.faults import ReadError
from support.rows import rows


@pytest.fixture(name="ends")
def _ends():
    """Both ends of a connection."""
    left, right = map(Channel, socket.socketpair())
    yield left, right
    left.close()
    right.close()


@rows("reason", ["", "ü", "/data/\udcff", "x" * 300_000])
def test_a_message_arrives_as_it_was(ends, reason):
    """Whatever its size: a long one is longer than the socket's buffer."""
    left, right = ends
    sender = threading.Thread(target=left.send, args=(FaultRefused(reason),))
    sender.start()
    received = right.receive()
    sender.join()
    assert (FaultRefused(reason), []) == received


def test_messages_keep_their_order_and_borders(ends):
    """Several that came at once are told apart."""
    left, right = ends
    for number in range(5):
        left.send(ExitNow(number))
    assert [(ExitNow(number), []) for number in range(5)] == right.ready()
    left.send(ExitNow(5))
    assert (ExitNow(5), []) == right.receive()


def test_descriptors_stay_with_their_message(ends):
    """Also where the kernel hands over a plain message and the next one in one piece."""
    left, right = ends
    with open(os.devnull, "rb") as file:
        left.send(Ready())
        left.send(Hello(0, 1, 2, "kernel"), [file.fileno()])
        left.send(Ready())
    counts = [len(descriptors) for _, descriptors in (right.receive() for _ in range(3))]
    assert [0, 1, 0] == counts


def test_descriptors_travel_along(ends, tmp_path):
    """The other side gets duplicates: same file, other numbers, not inherited by programs."""
    left, right = ends
    paths = [tmp_path / name for name in "ab"]
    for path in paths:
        path.write_text(path.name)
    files = [os.open(path, os.O_RDONLY) for path in paths]
    left.send(Ready(), files)
    left.send(Ready())
    (_, received), (_, none) = right.receive(), right.receive()
    assert [] == none
    assert [str(path) for path in paths] == [os.readlink(f"/proc/self/fd/{n}") for n in received]
    assert not set(files) & set(received)
    assert [False, False] == [os.get_inheritable(each) for each in received]
    for each in (*files, *received):
        os.close(each)


def test_sixty_one_descriptors_travel_along(ends):
    """The listener, and as many inherited files as a filter program lists."""
    left, right = ends
    with open(os.devnull, encoding="utf-8") as file:
        left.send(Ready(), [file.fileno()] * 61)
    _, received = right.receive()
    assert 61 == len(set(received))
    for each in received:
        os.close(each)


@rows("split", [1, 3, 4, 5, 20])
def test_half_a_message_is_waited_for_without_blocking(ends, split):
    """One look takes what is there; the message comes with the look that completes it."""
    left, right = ends
    message = FaultRefused("a message of some length")
    left.send(message)
    head, tail = right.connection.recv(split), right.connection.recv(1 << 16)
    left.connection.sendall(head)
    assert [] == right.ready()
    left.connection.sendall(tail + head)
    assert [(message, [])] == right.ready()
    left.connection.sendall(tail)
    assert [(message, [])] == right.ready()


def test_an_unknown_message_leaves_no_descriptor_open(ends):
    """Its descriptors are closed with the channel."""
    left, right = ends
    before = psutil.Process().num_fds()
    with open(os.devnull, "rb") as file:
        data = struct.pack("=II", 2, 1) + b"{}"
        socket.send_fds(left.connection, [data], [file.fileno()])
    with pytest.raises(UnknownMessageError):
        right.receive()
    assert psutil.Process().num_fds() == before + 1
    right.close()
    assert psutil.Process().num_fds() == before - 1


@pytest.mark.parametrize("read", [Channel.receive, Channel.ready])
def test_a_closed_connection_is_an_end(ends, read):
    """After the messages that were sent before."""
    left, right = ends
    left.send(Ready())
    left.close()
    assert (Ready(), []) == right.receive()
    with pytest.raises(EOFError):
        read(right)


def test_nothing_is_left_open():
    """Closing both ends closes their descriptors."""
    before = psutil.Process().num_fds()
    for end in map(Channel, socket.socketpair()):
        end.close()
    assert before == psutil.Process().num_fds()


PLAN = Plan((ReadError("*.jpg", nth=2),), watch=True)
MESSAGES = [
    protocol.Configure(PLAN.to_dict(), 17),
    protocol.Ready(),
    protocol.AwaitingBatch(loader=1, worker=0, epoch=2, nth=3),
    protocol.ReleaseLoader(1),
    protocol.WaitUntilIdle(1, 2, ((0, 4), (1, 3))),
    protocol.WaitUntilIdle(1, 2, ((0, 4), (1, 3)), 2.0),
    protocol.Idle((0,), (1, 2)),
    protocol.EndFaults(),
    protocol.DatasetMade(),
    protocol.MadeNoted(),
    protocol.FaultsEnded(),
    protocol.GetReport(finish=True),
    protocol.Report(({"worker": 0, "files": {"/a": (1, 2, 3)}},), ("an error",), ()),
    protocol.Hello(0, 1, 17, "kernel", ((3, "/data/\udcff"),), ("/b",), (512, 1024)),
    protocol.FetchStarted(epoch=1, nth=2, time=0.5),
    protocol.SampleStarted(7, alone=True),
    protocol.FetchFinished(2, ended=False),
    protocol.WorkerIdle(),
    protocol.Counts(
        {"/a": (1, 2, 3)}, {"dup2": 1}, (0, 5), {"tcp://192.0.2.1:80": 2}, ((0.5, "open", "/a"),), 3
    ),
    protocol.FaultFired(0, 17, "read", "/a", 3, 0.5, "call"),
    protocol.FaultRefused("why"),
    protocol.Proceed(True, False, (3,), ((4, 0),), ((0, 1),), more=True),
    protocol.Proceed(False, True),
    protocol.ExitNow(3),
    protocol.DieWhileSending(9),
    protocol.Block(hold_gil=True),
]


@rows("message", MESSAGES, ids=lambda message: type(message).__name__)
def test_a_message_arrives_as_it_was_sent(message):
    """As a value of the same type; sequences arrive as tuples."""
    if isinstance(message, protocol.Configure):
        arrived = decode(encode(message))
        assert (Plan.from_dict(arrived.plan), arrived.driver) == (PLAN, message.driver)
    else:
        assert decode(encode(message)) == message


def test_no_message_is_missing_here():
    """Every type of message is among those that are tried."""
    assert {type(each).__name__ for each in MESSAGES} == protocol.KINDS.keys()


def test_a_message_names_its_type():
    """On the wire it is an object whose "type" is the class."""
    assert {"type": "ExitNow", "code": 3} == json.loads(encode(protocol.ExitNow(3)))


@rows(
    "text",
    [
        '{"type": "Hi"}',
        '{"code": 3}',
        '{"type": "ExitNow"}',
        '{"type": "ExitNow", "code": 3, "why": 0}',
        "[1, 2]",
        "3",
        "no JSON",
    ],
)
def test_an_unknown_message_is_an_error_that_shows_it(text):
    """Whether its type or its fields are unknown."""
    with pytest.raises(UnknownMessageError) as refused:
        decode(text.encode())
    assert text in str(refused.value)
