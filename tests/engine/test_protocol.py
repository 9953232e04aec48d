"""Each message survives the wire, and what is no message is refused by name."""

from __future__ import annotations

import json

import pytest

from pytest_dataloader_faults._engine import protocol
from pytest_dataloader_faults._engine.plan import Plan
from pytest_dataloader_faults._engine.protocol import UnknownMessageError, decode, encode
from pytest_dataloader_faults.faults import ReadError
from support.rows import rows

PLAN = Plan((ReadError("*.jpg", nth=2),), watch=True)
MESSAGES = [
    protocol.Configure(PLAN.to_dict(), 17),
    protocol.Ready(),
    protocol.AwaitingBatch(loader=1, worker=0, epoch=2, nth=3),
    protocol.ReleaseLoader(1),
    protocol.WaitUntilIdle(1, 2, ((0, 4), (1, 3))),
    protocol.Idle((0,), (1, 2)),
    protocol.EndFaults(),
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
