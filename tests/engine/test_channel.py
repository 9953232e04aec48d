"""The channel, and the messages that go through it."""

import os
import socket
import struct
import threading
from typing import get_args

import psutil
import pytest

from pytest_dataloader_faults._engine import protocol
from pytest_dataloader_faults._engine.plan import FaultPlan
from pytest_dataloader_faults._engine.protocol import (
    Channel,
    ExitNow,
    FaultRefused,
    Hello,
    Ready,
)
from pytest_dataloader_faults._engine.worker.preparations.allocations import TakesFreeMemory
from pytest_dataloader_faults.faults import ReadError
from pytest_dataloader_faults.faults.base import FiringKind
from pytest_dataloader_faults.outcomes import FaultFacts, FileCounts, Firing, WorkerFacts
from pytest_dataloader_faults.wire import UnknownMessageError, decode, encode
from support.rows import rows


@pytest.fixture(name="ends")
def _ends():
    near, far = map(Channel, socket.socketpair())
    yield near, far
    near.close()
    far.close()


@rows("reason", ["", "ü", "/data/\udcff", "x" * 300_000])
def test_a_message_arrives_as_it_was(ends, reason):
    near, far = ends
    sender = threading.Thread(target=near.send, args=(FaultRefused(reason),))
    sender.start()
    received = far.receive()
    sender.join()
    assert (FaultRefused(reason), []) == received


def test_messages_keep_their_order_and_borders(ends):
    near, far = ends
    for number in range(5):
        near.send(ExitNow(number))
    assert [(ExitNow(number), []) for number in range(5)] == far.ready()
    near.send(ExitNow(5))
    assert (ExitNow(5), []) == far.receive()


def test_descriptors_stay_with_their_message(ends):
    """Also where the kernel hands over a plain message and the next one in one piece."""
    near, far = ends
    with open(os.devnull, "rb") as file:
        near.send(Ready())
        near.send(Hello(0, 1, 2), [file.fileno()])
        near.send(Ready())
    counts = [len(descriptors) for _, descriptors in (far.receive() for _ in range(3))]
    assert [0, 1, 0] == counts


def test_descriptors_travel_along(ends, tmp_path):
    near, far = ends
    paths = [tmp_path / name for name in "ab"]
    for path in paths:
        path.write_text(path.name)
    files = [os.open(path, os.O_RDONLY) for path in paths]
    near.send(Ready(), files)
    near.send(Ready())
    (_, received), (_, none) = far.receive(), far.receive()
    assert [] == none
    assert [str(path) for path in paths] == [os.readlink(f"/proc/self/fd/{n}") for n in received]
    assert not set(files) & set(received)
    assert [False, False] == [os.get_inheritable(each) for each in received]
    for descriptor in (*files, *received):
        os.close(descriptor)


@rows("split", [1, 3, 4, 5, 20])
def test_half_a_message_is_waited_for_without_blocking(ends, split):
    near, far = ends
    message = FaultRefused("a message of some length")
    near.send(message)
    head, tail = far.connection.recv(split), far.connection.recv(1 << 16)
    near.connection.sendall(head)
    assert [] == far.ready()
    near.connection.sendall(tail + head)
    assert [(message, [])] == far.ready()
    near.connection.sendall(tail)
    assert [(message, [])] == far.ready()


def test_an_unknown_message_leaves_no_descriptor_open(ends):
    near, far = ends
    descriptors = psutil.Process().num_fds()
    with open(os.devnull, "rb") as file:
        data = struct.pack("=II", 2, 1) + b"{}"
        socket.send_fds(near.connection, [data], [file.fileno()])
    with pytest.raises(UnknownMessageError):
        far.receive()
    assert psutil.Process().num_fds() == descriptors + 1
    far.close()
    assert psutil.Process().num_fds() == descriptors - 1


@pytest.mark.parametrize("read", [Channel.receive, Channel.ready])
def test_a_closed_connection_is_an_end(ends, read):
    near, far = ends
    near.send(Ready())
    near.close()
    assert (Ready(), []) == far.receive()
    with pytest.raises(EOFError):
        read(far)


PLAN = FaultPlan((ReadError("*.jpg", nth=2),), watch=True, own_folders=("/tmp",))
FIRING = Firing(0, 1, 17, "read", "/a", 3, time=0.5, kind=FiringKind.REPLACED)
FILES = {"/a": FileCounts(1, 2, 3), "/\udcff": FileCounts()}
MESSAGES = [
    protocol.Configure(PLAN, 17),
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
    protocol.WorkerReports(
        (FaultFacts(PLAN.faults[0], 2, 1, firings=(FIRING,)),),
        (WorkerFacts(None, 17, 2, FILES, unobserved={"mmap": 1}, settings=("a.b",)),),
        ("an error",),
        (),
    ),
    protocol.Hello(0, 1, 17, True, ((3, "/data/\udcff"),), ("/b",), (512, 1024)),
    TakesFreeMemory(18),
    protocol.FetchStarted(epoch=1, nth=2, queue_threads=(18,)),
    protocol.SampleStarted(7, alone=True),
    protocol.FetchFinished(2, ended=False),
    protocol.WorkerIdle(),
    protocol.Counts(
        FILES,
        {"dup2": 1},
        (0, 5),
        {"connections": {"tcp://192.0.2.1:443": 2}},
    ),
    FIRING,
    protocol.FaultRefused("why"),
    protocol.Proceed(True, False, (3,), ((4, 0),), ((0, 1),), has_more=True),
    protocol.Proceed(False, True),
    protocol.ExitNow(3),
    protocol.DieWhileSending(9),
    protocol.Block(),
    protocol.StartSupervisor(),
    protocol.SupervisorStarted(17, "why"),
    protocol.GetEnd(),
    protocol.EndOfSupervisor(-9),
    protocol.EndOfSupervisor(None),
]


@rows("message", MESSAGES, ids=lambda message: type(message).__name__)
def test_a_message_arrives_as_it_was_sent(message):
    arrived = decode(encode(message).decode())
    assert (type(arrived), arrived) == (type(message), message)


def test_no_message_is_missing_here():
    assert set(map(type, MESSAGES)) == {*get_args(protocol.Message), TakesFreeMemory}


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
    with pytest.raises(UnknownMessageError) as refused:
        decode(text)
    assert text in str(refused.value)
