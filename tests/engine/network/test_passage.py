"""Connections through the supervisor carry what they would without it, also by TLS."""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import errno
import functools
import hashlib
import resource
import select
import socket
import ssl
import threading
import time

import psutil
import pytest

from pytest_dataloader_faults import inject
from pytest_dataloader_faults.faults import ConnectionClosed, ConnectionReset, SlowRead
from support.attempts import NEVER, attempt
from support.children import in_a_process
from support.epochs import alone, epoch
from support.servers import path_of, read_all, tcp_server
from support.tries import Tries

MEGABYTES = 50
PART = bytes(range(256)) * 4096


def passed(source, way):
    """What *way* gives of *source* in a worker whose connections go through the supervisor."""
    with inject(SlowRead("tcp://*", nth=NEVER), require_fired=False) as injection:
        (result,) = epoch(alone(Tries([source], way))).batches
    assert (0, []) == (injection.fired, injection.errors)
    return result.gave, injection


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


def _sent_and_come(address):
    with socket.create_connection(address) as connection:
        for _ in range(MEGABYTES):
            connection.sendall(PART)
        connection.shutdown(socket.SHUT_WR)
        data = read_all(connection, 1 << 20)
    return data[:32] == hashlib.sha256(data[32:]).digest(), data[32:] == PART * MEGABYTES


def test_large_transfers_and_half_closed_connections():
    """50 MB each way, of which the second comes after this side has ended."""
    with tcp_server(_digest_back) as address:
        assert ((True, True), {path_of(address): 1}) == (
            (gave := passed(address, _sent_and_come))[0],
            gave[1].workers[0].connections,
        )


def _many(address):
    """A hundred connections at a time, and what came back through each."""
    open_ones = [socket.create_connection(address) for _ in range(100)]
    for place, connection in enumerate(open_ones):
        connection.sendall(bytes([place]) * 1000)
    came = [connection.recv(1000, socket.MSG_WAITALL) for connection in open_ones]
    for connection in open_ones:
        connection.close()
    return [set(each) for each in came] == [{place} for place in range(100)]


def test_many_connections_of_either_family(echo):
    """None gets what is for another."""
    gave, injection = passed(echo, _many)
    assert (True, {path_of(echo): 100}) == (gave, injection.workers[0].connections)


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


def test_connect_without_blocking(echo):
    """The repeated call that asks for the result makes no second connection."""
    gave, injection = passed(echo, _without_blocking)
    assert (b"x", {path_of(echo): 1}) == (gave, injection.workers[0].connections)


def _with_asyncio(address):
    async def ask(word):
        reader, writer = await asyncio.open_connection(*address[:2])
        writer.write(word)
        writer.write_eof()
        data = await reader.read()
        writer.close()
        await writer.wait_closed()
        return data

    async def ask_all():
        return await asyncio.gather(*(ask(bytes([each]) * 9) for each in range(8)))

    return asyncio.run(ask_all())


def test_asyncio(echo):
    """Streams of asyncio, several at a time."""
    assert passed(echo, _with_asyncio)[0] == [bytes([each]) * 9 for each in range(8)]


def _in_threads(address):
    came = []

    def ask(word):
        with socket.create_connection(address) as connection:
            connection.sendall(word)
            came.append(connection.recv(1))

    threads = [threading.Thread(target=ask, args=(bytes([each]),)) for each in range(8)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    return sorted(came)


def test_threads_of_a_worker(echo):
    """A call of a thread is one of its process."""
    assert passed(echo, _in_threads)[0] == [bytes([each]) for each in range(8)]


def _refused(address, timeout):
    with socket.socket() as connection:
        connection.settimeout(timeout)
        try:
            connection.connect(address)
        except OSError as error:
            return error.errno


@pytest.mark.parametrize("timeout", [None, 10.0])
def test_a_closed_port_refuses(timeout):
    """As it does without the supervisor."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        address = listening.getsockname()
    gave, _ = passed(address, functools.partial(_refused, timeout=timeout))
    assert errno.ECONNREFUSED == gave


def _reset_by_peer(connection):
    connection.recv(1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    connection.close()


def _asked_once(address):
    with socket.create_connection(address) as connection:
        connection.sendall(b"?")
        try:
            return connection.recv(1)
        except OSError as error:
            return error.errno


def test_a_reset_of_the_peer_is_handed_on():
    """It is no orderly end."""
    with tcp_server(_reset_by_peer) as address:
        assert errno.ECONNRESET == passed(address, _asked_once)[0]


def test_who_waits_for_the_peer_sleeps():
    """The worker, and the supervisor: that a socket takes more is no reason to wake."""
    before, states = psutil.Process().children(), []

    def answer_late(connection):
        connection.recv(1)
        started = [each for each in psutil.Process().children() if each not in before]
        for _ in range(20):
            time.sleep(0.02)
            states.extend(each.status() for each in started)
        connection.sendall(b"x")

    with tcp_server(answer_late) as address:
        assert passed(address, _asked_once)[0] == b"x"
    assert len(states) >= 40
    assert states.count(psutil.STATUS_SLEEPING) > 0.75 * len(states)


def test_an_end_of_the_worker_is_handed_on():
    """The peer sees that the connection has ended, although no byte of its answer was read."""
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
        assert passed(address, leave)[0]
        assert ended.wait(20)


def _slowly(address):
    """Small reads out of a small buffer: the peer is kept waiting."""
    with socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.connect(address)
        connection.sendall(PART)
        connection.shutdown(socket.SHUT_WR)
        return read_all(connection, 700)[32:] == PART


def test_a_slow_reader_gets_everything():
    """What the peer sends meanwhile is kept."""
    with tcp_server(_digest_back) as address:
        assert passed(address, _slowly)[0]


def _mapped(address):
    with socket.socket(socket.AF_INET6) as connection:
        connection.connect((f"::ffff:{address[0]}", address[1]))
        connection.sendall(b"x")
        return connection.recv(1)


def test_an_ipv4_address_of_an_ipv6_socket():
    """Its path is that of the address as it was given."""
    with tcp_server(_echo) as address:
        gave, injection = passed(address, _mapped)
    assert b"x" == gave
    assert {f"tcp://[::ffff:127.0.0.1]:{address[1]}": 1} == injection.workers[0].connections


@pytest.fixture(name="full")
def _full():
    """The address of a server that accepts no more, as it does not look after those that wait."""
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=0))
        for _ in range(3):
            waiting = stack.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(server.getsockname())
        yield server.getsockname()


def _impatient(address):
    return socket.create_connection(address, timeout=0.3)


def test_the_limit_of_a_client_holds_while_it_connects(full):
    """A server that does not accept is the worker's own to wait for, and no fault is on that."""
    with inject(SlowRead("tcp://*", nth=NEVER), require_fired=False) as injection:
        (result,) = epoch(alone(Tries([full], _impatient), timeout=20)).batches
    assert "TimeoutError: timed out" == result.gave
    assert {"connect to a server that did not accept at once": 1} == injection.workers[0].unobserved


ANSWER = bytes(range(250)) * 400


@pytest.fixture(name="contexts", scope="module")
def _contexts(tmp_path_factory):
    """A server's and a client's, with a certificate of this run."""
    from cryptography import x509  # moto needs it.
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "here")])
    now = dt.datetime.now(dt.timezone.utc)
    day = dt.timedelta(days=1)
    built = x509.CertificateBuilder(name, name, key.public_key(), 1, now - day, now + day)
    signed = built.sign(key, hashes.SHA256())
    path = tmp_path_factory.mktemp("tls") / "both.pem"
    plain = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    pem = serialization.Encoding.PEM
    path.write_bytes(key.private_bytes(pem, *plain) + signed.public_bytes(pem))
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(path)
    return server, str(path)


def _asked(source):
    """What the server sends, to its end."""
    address, path = source
    context = ssl.create_default_context(cafile=path)
    context.check_hostname = False
    with (
        socket.create_connection(address, timeout=20) as plain,
        context.wrap_socket(plain, suppress_ragged_eofs=False) as connection,
    ):
        connection.sendall(b"?")
        return read_all(connection)


@pytest.mark.parametrize(
    ("fault", "told"),
    [
        (SlowRead("tcp://*", seconds=0.01), None),
        (ConnectionReset("tcp://*"), "ConnectionResetError"),
        # Within a record, OpenSSL calls both an end that is against the protocol.
        (ConnectionReset("tcp://*", after=50_000), "EOF occurred in violation of protocol"),
        (ConnectionClosed("tcp://*", after=50_000), "EOF occurred in violation of protocol"),
    ],
    ids=str,
)
def test_tls_meets_the_fault(contexts, fault, told):
    """In its handshake or its content; a late answer is right."""
    server, path = contexts

    def answer(connection):
        with server.wrap_socket(connection, server_side=True) as secured:
            secured.recv(1)
            secured.sendall(ANSWER)
            secured.unwrap()

    with tcp_server(answer) as address:
        (gave,), injection = attempt([(address, path)], _asked, fault)
    assert injection.fired
    assert gave == ANSWER if told is None else told in str(gave)


LIMIT = 256
MANY = 400


def _echo_in_pieces(connection):
    while data := connection.recv(9):
        connection.sendall(data)


def _under_a_limit(way, fault):
    """What is wrong where *way* runs in a worker, and each process may have few descriptors."""
    with tcp_server(_echo_in_pieces) as address:

        def body():
            resource.setrlimit(resource.RLIMIT_NOFILE, (LIMIT, LIMIT))
            with inject(fault, require_fired=False):
                (result,) = epoch(alone(Tries([address], way))).batches
            assert result.gave is True, result.gave

        return in_a_process(body)


def _one_after_the_other(address):
    for _ in range(MANY):
        with socket.create_connection(address) as connection:
            connection.sendall(b"x")
            assert connection.recv(1) == b"x"
    return True


def _cut_off(address):
    for _ in range(MANY):
        with socket.create_connection(address) as connection:
            connection.sendall(b"x")
            try:
                connection.recv(1)
            except ConnectionResetError:
                continue
            return False
    return True


def test_connections_that_have_ended_take_none():
    """More connections than descriptors, one after the other."""
    assert not _under_a_limit(_one_after_the_other, SlowRead("tcp://*", nth=NEVER))


def test_connections_that_were_cut_off_take_none():
    """Nor do those whose answer was cut off."""
    assert not _under_a_limit(_cut_off, ConnectionReset())


def _at_a_time(address):
    open_ones = [socket.create_connection(address) for _ in range(150)]
    return bool(open_ones)


def test_more_at_a_time_than_it_can_have_is_an_error_of_the_run():
    """It says whose descriptors are short. The worker's own connections are made all the same."""
    told = _under_a_limit(_at_a_time, SlowRead("tcp://*", nth=NEVER))
    assert "InjectionError" in told
    assert "has no descriptor left [EMFILE, its limit of 256]" in told
