"""The supervisor: who may talk to it, what it hears first, and workers that it lets stand still."""

import functools
import os
import signal
import socket
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest
from torch.utils.data import DataLoader

from pytest_dataloader_faults import inject
from pytest_dataloader_faults._engine.supervisor import start
from pytest_dataloader_faults._engine.supervisor.events import Events
from pytest_dataloader_faults.exceptions import HarnessError
from pytest_dataloader_faults.faults import HungRead, ReadError, SlowRead, WorkerHung
from support.attempts import attempt, epoch_of
from support.datasets import COUNT, Records
from support.epochs import alone, take_before_hang
from support.tries import WAYS, Tries
from support.waiting import until

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


STANDING_STILL = [WorkerHung(at=3), HungRead("*/02.rec")]


def _reading(paths, **options):
    return alone(Tries(paths, WAYS["read"]), **options)


def _seconds(way):
    def timed(path):
        began = time.monotonic()
        way(path)
        return time.monotonic() - began

    return timed


class Beside(Tries):
    """Reads its first file in a thread that nobody waits for."""

    def __init__(self, paths):
        super().__init__(paths, WAYS["read"])
        self.thread = None

    def __getitem__(self, index):
        if not index:
            path = self.sources[0]
            self.thread = threading.Thread(target=self.read, args=(path,), daemon=True)
            self.thread.start()
            return self.thread.is_alive()
        return self.thread.is_alive() and super().__getitem__(index).gave


def test_a_slow_read_is_late(paths):
    ways = ("read", "pread", "readv", "preadv", "fread", "thread")
    calls = [functools.partial(_seconds(WAYS[n]), p) for n, p in zip(ways, paths, strict=False)]
    faults = [SlowRead(path, seconds=0.2, times=1) for path in paths[: len(ways)]]
    gave, injection = attempt(calls, lambda call: call(), *faults)
    assert min(gave) >= 0.2
    assert [1] * len(ways) == [each.fired for each in injection.faults]


def test_other_threads_go_on_meanwhile(paths):
    """Only the one that reads waits, and it does not keep the worker from ending."""
    with inject(HungRead("*/00.rec")) as injection:
        iterator = iter(alone(Beside(paths), prefetch_factor=1))
        assert next(iterator)
        assert until(lambda: injection.fired)
        assert [Path(path).read_bytes() for path in paths[1:]] == list(iterator)
    assert until(lambda: iterator._workers[0].exitcode == 0)


@pytest.mark.parametrize("fault", STANDING_STILL, ids=repr)
def test_a_worker_stands_still(paths, fault):
    """In three loops of a scope, which end in different ways. What came before has come.

    One loader runs out of patience: the worker goes on when its loader ends it, and ends itself.
    Another worker is killed by others. The third loop raises, and once its iterator is dropped no
    process is left of it: the worker goes on when the scope ends.
    """
    with inject(fault) as injection:
        read, (facts,) = epoch_of(injection, _reading(paths), (injection, 2))
        assert [0, 1] == [each.index for each in read.batches]
        assert "DataLoader timed out after 0.5 seconds" in read.text
        assert ([0], 1, 1) == (read.exit_codes, facts.fired, facts.mentioned)
        _kill_worker_that_hangs(_reading(paths), injection)
        iterator = iter(_reading(paths))
        (worker,) = iterator._workers
        _time_out(iterator, injection)
        assert worker.is_alive()
    assert injection.fired == 3
    del iterator
    assert until(lambda: worker.exitcode == 0)
    assert not psutil.pid_exists(worker.pid)


def _kill_worker_that_hangs(loader, injection):
    """From then on nobody waits until it goes on."""
    iterator = iter(loader)
    _time_out(iterator, injection)
    (worker,) = iterator._workers
    with pytest.raises(RuntimeError, match="killed by signal"):  # torch's handler of SIGCHLD.
        _kill_and_wait(worker)
    assert worker.exitcode == -signal.SIGKILL


@pytest.mark.parametrize("fault", STANDING_STILL, ids=repr)
def test_a_worker_continues_at_the_end_of_the_scope(paths, fault):
    with inject(fault, require_fired=False):
        iterator = iter(_reading(paths, prefetch_factor=4))
        next(iterator)
        (worker,) = iterator._workers
        assert worker.is_alive()
    assert [*range(1, COUNT)] == [each.index for each in iterator]
    iterator._shutdown_workers()
    assert worker.exitcode == 0


def _time_out(iterator, injection):
    """Take the two batches that come, and the error that tells that the next one does not."""
    take_before_hang(iterator, injection, 2, 0.5)
    with pytest.raises(RuntimeError, match="timed out"):
        next(iterator)


def _kill_and_wait(worker):
    worker.kill()
    assert until(lambda: worker.exitcode is not None)
