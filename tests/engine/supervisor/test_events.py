"""What the supervisor hears first: what a worker says before a call counts for that call."""

from __future__ import annotations

import os
import socket

import pytest

from pytest_dataloader_faults import inject
from pytest_dataloader_faults._engine.supervisor.events import Events
from pytest_dataloader_faults.faults import OpenError
from support.attempts import error_of
from support.epochs import alone, epoch
from support.tries import WAYS, Tries


@pytest.fixture(name="pairs")
def _pairs():
    """Three connections, whose first ends are watched."""
    pairs = [socket.socketpair() for _ in range(3)]
    yield pairs
    for each in (each for pair in pairs for each in pair):
        each.close()


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 0, 2)])
def test_messages_come_before_calls_and_the_loader_last(pairs, order):
    """In whatever order they came."""
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
    """Neither a call nor a message is heard after that."""
    events, heard = Events(), []
    descriptors = [ours.fileno() for ours, _ in pairs]

    def end_all(_flags):
        heard.append("ended")
        for each in descriptors:
            events.unwatch(each)

    for each in descriptors[:2]:
        events.watch(each, end_all)
    events.watch_calls(descriptors[2], end_all)
    for _, theirs in pairs:
        theirs.send(b"x")
    for _ in range(2):
        for handler, flags in events.wait(0):
            handler(flags)
    assert ["ended"] == heard


def test_a_firing_has_the_fetch_in_which_it_happened(tmp_path):
    """A worker does not wait as a fetch begins, and its number is right all the same."""
    paths = [tmp_path / f"{number:03}.rec" for number in range(150)]
    for path in paths:
        path.write_bytes(b"contents")
    with inject(OpenError("*.rec")) as injection:
        epoch(alone(Tries(list(map(str, paths)), error_of(WAYS["read"])), num_workers=2))
    firings = injection.faults[0].firings
    assert len(paths) == len(firings)
    for each in firings:
        number = int(os.path.splitext(os.path.basename(each.path))[0])
        assert (number % 2, number // 2 + 1) == (each.worker, each.fetch)
