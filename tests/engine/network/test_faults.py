"""Faults of connections, and an end in an error where the supervisor cannot do what they need."""

import errno
import functools
import socket
import time

import pytest

from pytest_dataloader_faults import inject, run_trial
from pytest_dataloader_faults._engine.supervisor.answers import network
from pytest_dataloader_faults.exceptions import HarnessError
from pytest_dataloader_faults.faults import (
    ConnectError,
    ConnectionReset,
    HungRead,
    SlowRead,
)
from support.attempts import attempt
from support.contracts.connections import SIZE, answer_requests, request
from support.epochs import alone
from support.network_datasets import ByHttp, write_samples
from support.servers import http_server, path_of, tcp_server
from support.surroundings import refuse_duplicate
from support.tries import Tries
from support.waiting import until


@pytest.fixture(name="address", scope="module")
def _address():
    with tcp_server(answer_requests) as address:
        yield address


def test_an_answer_that_is_just_as_long_as_is_let_through_is_whole(address):
    fault = ConnectionReset(path_of(address), after=SIZE)
    (gave,), injection = attempt([address], request, fault, require_fired=False)
    assert ((SIZE,), 0) == (gave, injection.matched)


def test_slow_answers_come_late_and_whole(address):
    began = time.monotonic()
    results, injection = attempt(
        [address], functools.partial(request, times=2), SlowRead("tcp://*", seconds=0.3)
    )
    assert ([(SIZE, SIZE)], 2) == (results, injection.fired)
    assert time.monotonic() - began >= 0.6


def test_triggers_count_connections_and_answers():
    with tcp_server(answer_requests) as refusing, tcp_server(answer_requests) as resetting:
        paths = path_of(refusing), path_of(resetting)
        faults = [
            kind(path, nth=2, times=1)
            for kind, path in zip((ConnectError, ConnectionReset), paths, strict=True)
        ]
        results, injection = attempt([refusing] * 3 + [resetting] * 3, request, *faults)
    assert [(SIZE,)] * 4 == [results[place] for place in (0, 2, 3, 5)]
    assert ["ECONNREFUSED", "ECONNRESET"] == [results[place][-1] for place in (1, 4)]
    assert [(3, 1)] * 2 == [(each.matched, each.fired) for each in injection.faults]
    assert dict.fromkeys(paths, 3) == injection.workers[0].counts_of("connections")


def _sockets_of_other_kinds(_address):
    """Datagram sockets are connected to choose an address; nobody listens to these."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as datagrams:
        datagrams.connect(("127.0.0.1", 9))
    left_socket, right_socket = socket.socketpair()
    with left_socket, right_socket:
        left_socket.sendall(b"x")
        return right_socket.recv(1)


def test_only_tcp_counts():
    (gave,), injection = attempt([0], _sockets_of_other_kinds, ConnectError(), require_fired=False)
    assert (b"x", {}) == (gave, injection.workers[0].counts_of("connections"))


def test_a_hung_answer_comes_at_the_end_of_the_scope(address):
    loader = alone(Tries([address], functools.partial(request, limit=60)))
    with inject(HungRead("tcp://*")) as injection:
        iterator = iter(loader)
        assert until(lambda: injection.fired)
    assert (SIZE,) == next(iterator).gave


ALONE = {"num_workers": 1, "batch_size": 8}


@pytest.fixture(name="_forbidden")
def _forbidden_fixture(monkeypatch):
    """As in containers of Docker. A trial's supervisor is a fork of this process."""
    monkeypatch.setattr(network, "duplicate", refuse_duplicate)


@pytest.fixture(name="url", scope="module")
def _url(tmp_path_factory):
    with http_server(write_samples(tmp_path_factory.mktemp("served"))) as url:
        yield url


@pytest.mark.usefixtures("_forbidden")
def test_connections_are_counted_and_can_fail(url):
    """What a socket is, its extended attribute tells."""
    outcome = run_trial(lambda: ByHttp(url), ConnectError(nth=2), loader=ALONE)
    assert "refused" in outcome.exception.message
    assert (1, [2]) == (outcome.fired, [*outcome.workers[0].counts_of("connections").values()])


@pytest.mark.usefixtures("_forbidden")
def test_faults_of_answers_are_an_error_of_the_run(url):
    with pytest.raises(HarnessError, match=r"pidfd_getfd\(2\).*--cap-add SYS_PTRACE"):
        run_trial(lambda: ByHttp(url), ConnectionReset())


def test_a_failure_of_the_relay_is_an_error_of_the_run(url, monkeypatch):
    def fail(*_):
        raise OSError(errno.ENOBUFS, "no room")

    monkeypatch.setattr(network.Relayed, "_apply_faults", fail)
    with pytest.raises(HarnessError, match="no room"):
        run_trial(lambda: ByHttp(url), ConnectionReset())
