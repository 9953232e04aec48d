"""Connections through the supervisor carry what they would without it, until faults end them."""

import contextlib
import errno
import functools
import hashlib
import select
import socket
import ssl
import threading
import time
from multiprocessing.connection import Client, Listener

import pytest
from torch.utils.data import Dataset

from pytest_dataloader_faults import inject, run_trial
from pytest_dataloader_faults._engine.kernel import caller
from pytest_dataloader_faults._engine.supervisor.answers import network
from pytest_dataloader_faults.exceptions import HarnessError
from pytest_dataloader_faults.faults import (
    ConnectError,
    ConnectionClosed,
    ConnectionReset,
    HungRead,
    SlowRead,
)
from support.attempts import NEVER, attempt
from support.contracts.connections import SIZE, answer_requests, request
from support.epochs import alone, epoch
from support.network_datasets import ByHttp, write_samples
from support.servers import http_server, path_of, read_all, tcp_server, write_certificate
from support.surroundings import refuse_duplicate
from support.tries import Tries
from support.waiting import allowed, until

MEGABYTES = 20
PART = bytes(range(256)) * 4096


def run_followed(*calls):
    """What each call returns in a worker whose connections go through the supervisor."""
    with inject(SlowRead("tcp://*", nth=NEVER), require_fired=False) as injection:
        results = epoch(alone(Tries(list(calls), lambda call: call()))).batches
    assert (0, []) == (injection.fired, injection.errors)
    return [each.gave for each in results], injection


def _echo(connection):
    while data := connection.recv(1 << 16):
        connection.sendall(data)


def _digest_back(connection):
    """What comes is answered by its digest, once its end has come, and by all of it again."""
    data = read_all(connection)
    connection.sendall(hashlib.sha256(data).digest() + data)


@pytest.fixture(name="echo", scope="module", params=["127.0.0.1", "::1"])
def _echo_fixture(request):
    with tcp_server(_echo, request.param) as address:
        yield address


def _send_and_receive(address):
    with socket.create_connection(address) as connection:
        for _ in range(MEGABYTES):
            connection.sendall(PART)
        connection.shutdown(socket.SHUT_WR)
        data = read_all(connection, 1 << 20)
    return data[:32] == hashlib.sha256(data[32:]).digest(), data[32:] == PART * MEGABYTES


def _use_hundred_connections(address):
    """A hundred connections at a time, and what came back through each."""
    open_ones = [socket.create_connection(address) for _ in range(100)]
    for place, connection in enumerate(open_ones):
        connection.sendall(bytes([place]) * 1000)
    answers = [connection.recv(1000, socket.MSG_WAITALL) for connection in open_ones]
    for connection in open_ones:
        connection.close()
    return [set(each) for each in answers] == [{place} for place in range(100)]


def _without_blocking(address):
    """connect(2), poll(2) and SO_ERROR, as clients with a time limit do; connect(2) once more."""
    family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
    with socket.socket(family) as connection:
        connection.setblocking(False)
        assert connection.connect_ex(address) in (0, errno.EINPROGRESS)
        waiting = select.poll()
        waiting.register(connection, select.POLLOUT)
        assert waiting.poll(10_000)
        assert connection.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) == 0
        assert connection.connect_ex(address) in (0, errno.EISCONN)
        connection.setblocking(True)
        connection.sendall(b"x")
        return connection.recv(1)


ECHOED = {
    "a hundred at a time": (_use_hundred_connections, True, 100),
    "without blocking": (_without_blocking, b"x", 1),
}
"""Ways to use connections to a server that echoes: what they give, and how many they make."""


def test_connections_of_either_family(echo):
    ways, expected, counts = zip(*ECHOED.values(), strict=True)
    gave, injection = run_followed(*(functools.partial(way, echo) for way in ways))
    assert [*expected] == gave
    assert {path_of(echo): sum(counts)} == injection.workers[0].counts_of("connections")


def _connect_refused(address, timeout):
    with socket.socket() as connection:
        connection.settimeout(timeout)
        try:
            connection.connect(address)
        except OSError as error:
            return error.errno


def _reset_by_peer(connection):
    connection.recv(1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    connection.close()


def _request_once(address):
    with socket.create_connection(address) as connection:
        connection.sendall(b"?")
        try:
            return connection.recv(1)
        except OSError as error:
            return error.errno


def test_an_end_of_the_worker_is_handed_on():
    ended = threading.Event()

    def see_end(connection):
        connection.sendall(b"unread")
        try:
            while connection.recv(1):
                pass
        except ConnectionResetError:
            pass
        ended.set()

    def leave(address):
        with socket.create_connection(address):
            return True

    with tcp_server(see_end) as address:
        assert run_followed(functools.partial(leave, address))[0] == [True]
        assert ended.wait(20)


def _read_slowly(address):
    """Small reads out of a small buffer: the peer is kept waiting."""
    with socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.connect(address)
        connection.sendall(PART)
        connection.shutdown(socket.SHUT_WR)
        return read_all(connection, 700)[32:] == PART


def _mapped(address):
    with socket.socket(socket.AF_INET6) as connection:
        connection.connect((f"::ffff:{address[0]}", address[1]))
        connection.sendall(b"x")
        return connection.recv(1)


def test_what_comes_is_handed_on():
    """As it comes without the supervisor.

    Of 20 MB each way, the second come after this side has ended. What the peer sends to a slow
    reader is kept. A closed port refuses, whether or not the client has a time limit, and the peer
    may reset the connection. An IPv4 address of an IPv6 socket is counted as it was given.
    """
    with (
        tcp_server(_digest_back) as digesting,
        tcp_server(_reset_by_peer) as resetting,
        tcp_server(_echo) as echoing,
        socket.create_server(("127.0.0.1", 0)) as listening,
    ):
        closed = listening.getsockname()
        listening.close()
        gave, injection = run_followed(
            functools.partial(_send_and_receive, digesting),
            functools.partial(_read_slowly, digesting),
            functools.partial(_connect_refused, closed, timeout=None),
            functools.partial(_connect_refused, closed, timeout=10.0),
            functools.partial(_request_once, resetting),
            functools.partial(_mapped, echoing),
        )
    refused, reset = [errno.ECONNREFUSED] * 2, errno.ECONNRESET
    assert [(True, True), True, *refused, reset, b"x"] == gave
    connections = injection.workers[0].counts_of("connections")
    assert 2 == connections[path_of(digesting)]
    assert 1 == connections[f"tcp://[::ffff:127.0.0.1]:{echoing[1]}"]


ANSWER = bytes(range(250)) * 400


@pytest.fixture(name="contexts", scope="module")
def _contexts(tmp_path_factory):
    path = write_certificate(tmp_path_factory.mktemp("tls"))
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(path)
    return server, str(path)


def _request_by_tls(source):
    address, path = source
    context = ssl.create_default_context(cafile=path)
    context.check_hostname = False
    with (
        socket.create_connection(address, timeout=allowed(20)) as plain,
        context.wrap_socket(plain, suppress_ragged_eofs=False) as connection,
    ):
        connection.sendall(b"?")
        return read_all(connection)


VIOLATION = "EOF occurred in violation of protocol"
"""Within a record, OpenSSL calls both an end and a reset that."""
SECURED = (
    (functools.partial(SlowRead, seconds=0.01), None),
    (ConnectionReset, "ConnectionResetError"),
    (functools.partial(ConnectionReset, after=50_000), VIOLATION),
    (functools.partial(ConnectionClosed, after=50_000), VIOLATION),
)


def test_tls_meets_the_fault(contexts):
    server, path = contexts

    def answer(connection):
        with server.wrap_socket(connection, server_side=True) as secured:
            secured.recv(1)
            secured.sendall(ANSWER)
            secured.unwrap()

    with contextlib.ExitStack() as stack:
        addresses = [stack.enter_context(tcp_server(answer)) for _ in SECURED]
        faults = [make(path_of(at)) for at, (make, _) in zip(addresses, SECURED, strict=True)]
        sources = [(address, path) for address in addresses]
        gave, injection = attempt(sources, _request_by_tls, *faults)
    assert all(each.fired for each in injection.faults)
    assert gave[0] == ANSWER
    for (_, message), text in zip(SECURED[1:], gave[1:], strict=True):
        assert message in text


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
    monkeypatch.setattr(caller, "duplicate", refuse_duplicate)


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


class ByClient(Dataset):
    def __init__(self, address):
        self.address = address

    def __len__(self):
        return 2

    def __getitem__(self, index):
        with Client(self.address) as client:
            client.send_bytes(bytes([index]))
            return list(client.recv_bytes())


def _answer_each(listener):
    with contextlib.suppress(OSError):
        while True:
            with contextlib.suppress(EOFError), listener.accept() as connection:
                connection.send_bytes(connection.recv_bytes())


def test_an_error_of_a_connection_of_the_user_is_the_user_s():
    with Listener(("127.0.0.1", 0)) as listener:
        threading.Thread(target=_answer_each, args=(listener,), daemon=True).start()
        outcome = run_trial(lambda: ByClient(listener.address), ConnectionReset())
    assert outcome.exception.type == "ConnectionResetError"
    assert "[Errno 104] Connection reset by peer" in outcome.exception.text


def test_a_failure_of_the_relay_is_an_error_of_the_run(url, monkeypatch):
    def fail(*_):
        raise OSError(errno.ENOBUFS, "no room")

    monkeypatch.setattr(network.Relayed, "_apply_faults", fail)
    with pytest.raises(HarnessError, match="no room"):
        run_trial(lambda: ByHttp(url), ConnectionReset())
