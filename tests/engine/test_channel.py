"""The channel, and the messages that go through it."""

import os
import socket
import subprocess
import sys
from enum import IntEnum
from typing import get_args

import numpy as np
import psutil
import pytest

from pytest_dataloader_faults._engine import protocol
from pytest_dataloader_faults._engine.plan import FaultPlan
from pytest_dataloader_faults._engine.protocol import (
    Channel,
    Done,
    Hello,
    Proceed,
    SampleStarted,
    TakesFreeMemory,
    packed,
)
from pytest_dataloader_faults.faults import ReadError, SlowRead
from pytest_dataloader_faults.faults.base import FiringKind
from pytest_dataloader_faults.outcomes import FaultFacts, FileCounts, Firing, WorkerFacts
from support.rows import rows


@pytest.fixture(name="ends")
def _ends():
    near, far = Channel.pair()
    yield near, far
    near.close()
    far.close()


@rows("reason", ["", "ü", "/data/\udcff", "x" * 65_536, "x" * 10_000_000])
def test_a_message_of_any_size_arrives_at_once(ends, reason):
    """Nobody has to receive the large ones meanwhile: they are in files in memory."""
    near, far = ends
    descriptors = psutil.Process().num_fds()
    near.send(Done(reason))
    assert (Done(reason), []) == far.receive()
    assert psutil.Process().num_fds() == descriptors


def test_messages_keep_their_order_and_borders(ends):
    near, far = ends
    assert [] == list(far.arrived())
    for number in range(5):
        near.send(TakesFreeMemory(number))
    assert [TakesFreeMemory(number) for number in range(5)] == list(far.arrived())
    near.send(TakesFreeMemory(5))
    assert (TakesFreeMemory(5), []) == far.receive()


@rows("reason", ["", "x" * 100_000])
def test_descriptors_travel_along(ends, tmp_path, reason):
    near, far = ends
    paths = [tmp_path / name for name in "ab"]
    for path in paths:
        path.write_text(path.name)
    files = [os.open(path, os.O_RDONLY) for path in paths]
    near.send(Done(reason), files)
    near.send(Done())
    (_, received), (_, none) = far.receive(), far.receive()
    assert [] == none
    assert [str(path) for path in paths] == [os.readlink(f"/proc/self/fd/{n}") for n in received]
    assert not set(files) & set(received)
    assert [False, False] == [os.get_inheritable(each) for each in received]
    for descriptor in (*files, *received):
        os.close(descriptor)


def test_descriptors_that_find_no_number_are_an_error_that_leaves_none_open(ends):
    near, far = ends
    descriptors = psutil.Process().num_fds()
    with open(os.devnull, "rb") as file:
        with packed(Done()) as (packet, _):
            socket.send_fds(near.connection, [packet], [file.fileno()] * 253)
        with _at_most(descriptors + 100), pytest.raises(OSError, match="descriptors"):
            far.receive()
    assert psutil.Process().num_fds() == descriptors


class _at_most:  # noqa: N801  # It reads as a limit.
    """In this scope this process can have *count* descriptors."""

    def __init__(self, count):
        self._count = count

    def __enter__(self):
        self._before = psutil.Process().rlimit(psutil.RLIMIT_NOFILE)
        psutil.Process().rlimit(psutil.RLIMIT_NOFILE, (self._count, self._before[1]))

    def __exit__(self, *_):
        psutil.Process().rlimit(psutil.RLIMIT_NOFILE, self._before)


def test_a_closed_connection_is_an_end(ends):
    near, far = ends
    near.send(Done())
    near.close()
    assert (Done(), []) == far.receive()
    with pytest.raises(EOFError):
        far.receive()


class _Level(IntEnum):
    LOW = 1


_UNPICKLE = "import pickle, sys; pickle.load(sys.stdin.buffer); sys.exit('numpy' in sys.modules)"


@rows(
    "message",
    [
        Done(np.str_("why")),
        SampleStarted(_Level.LOW, alone=True),
        protocol.Configure(FaultPlan((SlowRead("*", seconds=np.float64(0.5)),)), _Level.LOW),
    ],
    ids=lambda message: type(message).__name__,
)
def test_nothing_of_the_users_is_imported_where_a_message_arrives(message):
    """The second one would need this module of tests."""
    with packed(message) as (packet, _):
        end = subprocess.run([sys.executable, "-c", _UNPICKLE], input=packet[1:], check=False)
    assert end.returncode == 0


PLAN = FaultPlan((ReadError("*.jpg", nth=2),), watch=True, own_folders=("/tmp",))
FIRING = Firing(0, 1, 17, "read", "/a", 3, time=0.5, kind=FiringKind.REPLACED)
FILES = {"/a": FileCounts(1, 2, 3), "/\udcff": FileCounts()}
MESSAGES = [
    protocol.Configure(PLAN, 17),
    Done("why"),
    protocol.AwaitingBatch(loader=1, worker=0, epoch=2, nth=3),
    protocol.ReleaseLoader(1),
    protocol.WaitUntilIdle(1, 2, ((0, 4), (1, 3))),
    protocol.WaitUntilIdle(1, 2, ((0, 4), (1, 3)), 2.0),
    protocol.Idle((0,), (1, 2)),
    protocol.EndFaults(),
    protocol.DatasetMade(),
    protocol.GetReport(finish=True),
    protocol.WorkerReports(
        (FaultFacts(PLAN.faults[0], 2, 1, firings=(FIRING,)),),
        (WorkerFacts(None, 17, 2, FILES, unobserved={"mmap": 1}, settings=("a.b",)),),
        ("an error",),
        (),
    ),
    Hello(0, 1, 17, None, ((3, "/data/\udcff"),), ("/b",)),
    TakesFreeMemory(18),
    protocol.FetchStarted(epoch=1, nth=2, queue_threads=(18,)),
    SampleStarted(7, alone=True),
    protocol.FetchFinished(2, ended=False),
    protocol.WorkerIdle(),
    Proceed(True, False, (("close", 3), ("replace", 4), ("remap", 0)), has_more=True),
    Proceed(False, True),
    Proceed(True, True, (("exit", 3), ("die", 9))),
]


@rows("message", MESSAGES, ids=lambda message: type(message).__name__)
def test_a_message_arrives_as_it_was_sent(ends, message):
    near, far = ends
    near.send(message)
    arrived, _ = far.receive()
    assert (type(arrived), arrived) == (type(message), message)


def test_no_message_is_missing_here():
    sent = protocol.FromLoader | protocol.ToLoader | protocol.FromWorker
    assert set(map(type, MESSAGES)) == {*get_args(sent), Proceed}
