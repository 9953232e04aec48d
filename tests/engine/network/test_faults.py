"""Faults of connections, and an end in an error where the supervisor cannot do what they need."""

from __future__ import annotations

import errno
import functools
import socket
import time

import pytest
import torch
from torch.utils.data import Dataset

from pytest_dataloader_faults import inject, run_trial
from pytest_dataloader_faults._engine.kernel import caller
from pytest_dataloader_faults._engine.supervisor.answers.network import Relayed
from pytest_dataloader_faults.exceptions import InjectionError
from pytest_dataloader_faults.faults import (
    ConnectError,
    ConnectionClosed,
    ConnectionReset,
    HungRead,
    ReadError,
    SlowRead,
)
from support.attempts import attempt
from support.epochs import alone, epoch
from support.network_datasets import ByHttp, write_samples
from support.servers import http_server, path_of, tcp_server
from support.tries import Tries
from support.waiting import until

SIZE = 100_000
ANSWER = bytes(range(250)) * (SIZE // 250)


def _answer(connection):
    """Send the same after each byte that comes."""
    while connection.recv(1):
        connection.sendall(ANSWER)


@pytest.fixture(name="address", scope="module")
def _address():
    with tcp_server(_answer) as address:
        yield address


def _asked(address, times=1, limit=20.0, pause=0.0):
    """How many bytes of each answer came, and how the connection ended."""
    came = []
    with socket.socket() as connection:
        connection.settimeout(limit)
        try:
            connection.connect(address)
            for _ in range(times):
                connection.sendall(b"?")
                came.append(0)
                while came[-1] < SIZE:
                    data = connection.recv(1 << 12)
                    assert ANSWER[came[-1] :].startswith(data)
                    if not data:
                        return (*came, "end")
                    came[-1] += len(data)
        except OSError as error:
            return (*came, errno.errorcode.get(error.errno, type(error).__name__))
    return tuple(came)


@pytest.mark.parametrize(
    ("fault", "times", "gave"),
    [
        (ConnectError("tcp://*"), 1, ("ECONNREFUSED",)),
        (ConnectError("tcp://*", errno=errno.ENETUNREACH), 1, ("ENETUNREACH",)),
        (ConnectionReset("tcp://*"), 1, (0, "ECONNRESET")),
        (ConnectionReset("tcp://*", after=70_001), 1, (70_001, "ECONNRESET")),
        (ConnectionReset("tcp://*", after=9, nth=2), 3, (SIZE, 9, "ECONNRESET")),
        (ConnectionClosed("tcp://*"), 1, (0, "end")),
        (ConnectionClosed("tcp://*", after=1), 1, (1, "end")),
        (ConnectionClosed("tcp://*", after=SIZE - 1, nth=3), 3, (SIZE, SIZE, SIZE - 1, "end")),
        (HungRead("tcp://*", nth=2), 2, (SIZE, 0, "TimeoutError")),
    ],
    ids=str,
)
def test_client_meets_the_fault(address, fault, times, gave):
    """At the byte that the fault says, and as the kernel tells it."""
    ask = functools.partial(_asked, times=times, limit=0.5 if isinstance(fault, HungRead) else 20)
    (result,), injection = attempt([address], ask, fault)
    assert gave == result
    firing = injection.faults[0].firings[0]
    is_connect = isinstance(fault, ConnectError)
    assert ("connect" if is_connect else "recv", path_of(address)) == (firing.call, firing.path)


def test_slow_answers_come_late_and_whole(address):
    """Each of them by as much."""
    began = time.monotonic()
    results, injection = attempt(
        [address], functools.partial(_asked, times=2), SlowRead("tcp://*", seconds=0.3)
    )
    assert ([(SIZE, SIZE)], 2) == (results, injection.fired)
    assert time.monotonic() - began >= 0.6


def test_answers_that_are_too_short_do_not_count(address):
    """An answer that has just as many bytes as are let through is whole."""
    fault = ConnectionReset("tcp://*", after=SIZE)
    with inject(fault, require_fired=False) as injection:
        (result,) = epoch(alone(Tries([address], _asked))).batches
    assert ((SIZE,), 0, 0) == (result.gave, injection.reached, injection.fired)


@pytest.mark.parametrize("fault", [ConnectError(nth=2, times=1), ConnectionReset(nth=2, times=1)])
def test_triggers_count_connections_and_answers(address, fault):
    """The second one alone."""
    results, injection = attempt([address] * 3, _asked, fault)
    assert [(SIZE,), (SIZE,)] == [results[0], results[2]]
    assert results[1][-1] in ("ECONNREFUSED", "ECONNRESET")
    assert (3, 1) == (injection.reached, injection.fired)
    assert {path_of(address): 3} == injection.workers[0].connections


@pytest.mark.parametrize(
    "globs", ["tcp://192.0.2.1:*", "tcp://[[]::1]:*", "tcp://127.0.0.1:1"], ids=str
)
def test_other_addresses_are_left_alone(address, globs):
    """Only that of the glob meets the fault."""
    with inject(ConnectError(globs), require_fired=False) as injection:
        (result,) = epoch(alone(Tries([address], _asked))).batches
    assert ((SIZE,), 0) == (result.gave, injection.reached)


def test_files_globs_mean_no_connection(address):
    """A star means every file, and nothing that comes from a network."""
    with inject(ReadError("*"), require_fired=False) as injection:
        (result,) = epoch(alone(Tries([address], _asked))).batches
    assert ((SIZE,), 0) == (result.gave, injection.reached)


def _sockets_of_other_kinds(_address):
    """Datagram sockets are connected to choose an address; nobody listens to these."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as datagrams:
        datagrams.connect(("127.0.0.1", 9))
    one, other = socket.socketpair()
    with one, other:
        one.sendall(b"x")
        return other.recv(1)


def test_only_tcp_counts():
    """Neither datagrams nor sockets of this machine meet a fault, or are counted."""
    with inject(ConnectError(), require_fired=False) as injection:
        (result,) = epoch(alone(Tries([0], _sockets_of_other_kinds))).batches
    assert (b"x", {}) == (result.gave, injection.workers[0].connections)


def test_a_hung_answer_comes_at_the_end_of_the_scope(address):
    """Nothing is lost, once the scope is over."""
    loader = alone(Tries([address], functools.partial(_asked, limit=60)))
    with inject(HungRead("tcp://*")) as injection:
        iterator = iter(loader)
        assert until(lambda: injection.fired)
    assert (SIZE,) == next(iterator).gave


def _kept(address):
    """A connection that the worker keeps and uses for each sample."""
    connection = _KEPT.get(address)
    if connection is None:
        connection = _KEPT[address] = socket.create_connection(address)
    connection.sendall(b"?")
    return len(connection.recv(SIZE, socket.MSG_WAITALL))


_KEPT: dict = {}


def test_a_connection_that_is_kept_goes_on_after_the_scope(address):
    """A worker that lives on uses it as before, and nothing of the scope happens to it."""
    loader = alone(Tries([address] * 2, _kept), persistent_workers=True)
    with inject(SlowRead("tcp://*", seconds=0.01)) as injection:
        first = [each.gave for each in loader]
    assert ([SIZE, SIZE], 2) == (first, injection.fired)
    assert [SIZE, SIZE] == [each.gave for each in loader]


ALONE = {"num_workers": 1, "batch_size": 8}


@pytest.fixture(name="_forbidden")
def _forbidden_fixture(monkeypatch):
    """As in containers of Docker. A trial's supervisor is a fork of this process."""

    def refuse(*_, **__):
        raise PermissionError(errno.EPERM, "pidfd_getfd: Operation not permitted")

    monkeypatch.setattr(caller, "duplicate", refuse)


@pytest.fixture(name="url", scope="module")
def _url(tmp_path_factory):
    with http_server(write_samples(tmp_path_factory.mktemp("served"))) as url:
        yield url


@pytest.mark.usefixtures("_forbidden")
def test_connections_are_counted_and_can_fail(url):
    """What a socket is, its extended attribute tells."""
    outcome = run_trial(lambda: ByHttp(url), ConnectError(nth=2), loader=ALONE)
    assert "refused" in outcome.exception.message
    assert (1, [2]) == (outcome.fired, [*outcome.workers[0].connections.values()])


@pytest.mark.usefixtures("_forbidden")
def test_faults_of_answers_are_an_error_of_the_run(url):
    """It names the call that is missing, and what to do."""
    with pytest.raises(InjectionError, match=r"pidfd_getfd\(2\).*--cap-add SYS_PTRACE"):
        run_trial(lambda: ByHttp(url), ConnectionReset())


def test_a_failure_of_the_relay_is_an_error_of_the_run(url, monkeypatch):
    """The supervisor goes on, and says what failed."""

    def fail(*_):
        raise OSError(errno.ENOBUFS, "no room")

    monkeypatch.setattr(Relayed, "_under_faults", fail)
    with pytest.raises(InjectionError, match="no room"):
        run_trial(lambda: ByHttp(url), ConnectionReset())


class Idle(Dataset):
    """Connects to nothing."""

    def __len__(self):
        return 2

    def __getitem__(self, index):
        return torch.tensor(index)


@pytest.mark.usefixtures("_forbidden")
def test_a_dataset_without_connections_is_no_error():
    """The fault did not happen, and nothing else is wrong."""
    outcome = run_trial(Idle, ConnectionReset())
    assert (0, None) == (outcome.fired, outcome.exception)
