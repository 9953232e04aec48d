"""Error responses of an HTTP server: which requests get one, and what passes unchanged."""

import functools
import http.client
import http.server
import socket
import threading
import urllib.error
import urllib.request

import pytest

from pytest_dataloader_faults._engine.supervisor.answers.network import (
    make_answer,
    may_become_request,
    parse_request,
)
from pytest_dataloader_faults.faults import HttpError
from support.attempts import NEVER, attempt
from support.network_datasets import write_samples
from support.rows import rows
from support.servers import http_server, path_of, read_all, tcp_server

GET = b"GET /a HTTP/1.1\r\nHost: h\r\n\r\n"
OLD = b"GET /a HTTP/1.0\r\n\r\n"
POST = b"POST /a HTTP/1.1\r\nContent-Length: 5\r\n\r\n"
BARE = b"\r\nDELETE /a HTTP/1.1\nHost: h\n\n"
TUNNEL = b"CONNECT h:443 HTTP/1.1\r\n\r\n"
RANGE = b"GET /a HTTP/1.1\r\nRANGE: bytes=1-2\r\nHost: h\r\n\r\n"
UPGRADE = b"GET /a HTTP/1.1\r\nHost: h\r\nupgrade: websocket\r\n\r\n"


@rows("request_bytes", [GET, OLD, POST, BARE, TUNNEL, RANGE, UPGRADE])
def test_request_is_known_once_it_is_complete(request_bytes):
    for end in range(1, len(request_bytes)):
        assert may_become_request(request_bytes[:end]), end
        assert parse_request(request_bytes[:end]) is None
    assert not may_become_request(request_bytes)
    request = parse_request(request_bytes + b"body")
    assert request_bytes.strip().startswith(f"{request.method} {request.target} ".encode())
    assert request.changes_protocol == (request_bytes in {TUNNEL, UPGRADE})
    assert request.has_range == (request_bytes == RANGE)


@rows(
    "data",
    [
        b"\x16\x03\x01",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"GET key\r\n",
        b"USER x\r\n",
        b"\0",
        b"GET /" + b"x" * (1 << 17),
    ],
)
def test_what_is_no_request(data):
    assert not may_become_request(data)
    assert parse_request(data + GET) is None


def _answer(request_bytes, fault=None, number=1):
    return make_answer(fault or HttpError(), parse_request(request_bytes), number)


def test_answer_is_a_response_with_a_page():
    head, _, page = _answer(GET).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 503 Service Unavailable\r\nContent-Type: text/html")
    assert f"Content-Length: {len(page)}\r\n".encode() in head
    assert page.startswith(b'<html id="')
    other_page = _answer(GET.replace(b"/a", b"/b")).partition(b"\r\n\r\n")[2]
    assert page[:16] != other_page[:16]
    assert b"GET /a, request 1" in page


def test_answer_has_what_the_fault_says():
    fault = HttpError(status=429, body="é", retry_after=7)
    head, _, page = _answer(GET, fault).partition(b"\r\n\r\n")
    assert (b"HTTP/1.1 429 Too Many Requests", "é") == (head.split(b"\r\n")[0], page.decode())
    assert {b"Content-Length: 2", b"Retry-After: 7"} <= set(head.split(b"\r\n"))


def test_answer_to_head_has_no_body():
    answer = _answer(b"HEAD /a HTTP/1.1\r\n\r\n")
    assert answer.endswith(b"\r\n\r\n")
    assert b"Content-Length: 512\r\n" in answer


class _Counting(http.server.BaseHTTPRequestHandler):
    """Answers any request with its body, and notes it."""

    protocol_version = "HTTP/1.1"
    seen: list[str]

    def log_message(self, *_):
        """Print nothing."""

    def _answer(self):
        data = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.seen.append(f"{self.command} {self.path}")
        self.send_response(200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    do_GET = do_HEAD = do_POST = do_PUT = _answer  # noqa: N815  # as the server looks for it


@pytest.fixture(name="server", scope="module")
def _server():
    """The address of a server that keeps connections, and the requests that it has received."""
    seen = []
    handler = type("Handler", (_Counting,), {"seen": seen})
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        yield server.server_address, seen
        server.shutdown()
        thread.join()


REQUESTS = (("GET", b""), ("POST", b"x" * 300_000), ("HEAD", b""), ("PUT", b"y"), ("GET", b""))


def _request_on_one_connection(address):
    connection = http.client.HTTPConnection(*address, timeout=60)
    results, sockets = [], set()
    for number, (method, body) in enumerate(REQUESTS):
        connection.request(method, f"/{number}", body)
        sockets.add(connection.sock.fileno())
        answer = connection.getresponse()
        results.append((answer.status, len(answer.read())))
    connection.close()
    return results, len(sockets)


def test_second_to_fourth_request_fail(server):
    """Each error ends its connection; http.client then makes another one."""
    address, seen = server
    seen.clear()
    fault = HttpError(path_of(address), 404, nth=2, times=3, body="no")
    (gave,), injection = attempt([address], _request_on_one_connection, fault)
    assert [(200, 0), (404, 2), (404, 0), (404, 2), (200, 0)] == gave[0]
    assert ["GET /0", "GET /4"] == seen
    (facts,) = injection.faults
    assert (5, 3, {}) == (facts.matched, facts.fired, injection.workers[0].unobserved)
    assert {("recv", path_of(address))} == {(each.call, each.path) for each in facts.firings}


def test_requests_pass_unchanged(server):
    address, seen = server
    seen.clear()
    (gave,), _ = attempt(
        [address], _request_on_one_connection, HttpError(nth=NEVER), require_fired=False
    )
    assert ([(200, 0), (200, 300_000), (200, 0), (200, 1), (200, 0)], 1) == gave
    assert 5 == len(seen)


def _status(url):
    try:
        with urllib.request.urlopen(url, timeout=60) as answer:  # noqa: S310  # our own
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()


@pytest.fixture(name="url", scope="module")
def _url(tmp_path_factory):
    with http_server(write_samples(tmp_path_factory.mktemp("served"))) as url:
        yield url


def _talk(words, address):
    with socket.create_connection(address, timeout=60) as connection:
        connection.sendall(words)
        connection.shutdown(socket.SHUT_WR)
        return read_all(connection)


def _echo(connection):
    connection.sendall(read_all(connection))


def test_only_a_request_of_a_part_loses_its_range():
    with tcp_server(_echo) as address:
        fault = HttpError(path_of(address), status=206)
        gave, injection = attempt([GET, RANGE], lambda words: _talk(words, address), fault)
    assert [GET, GET] == gave
    assert (1, 1) == (injection.matched, injection.fired)


def test_other_protocols_pass_and_are_counted():
    def greet(connection):
        connection.sendall(b"220 ready\r\n")
        connection.sendall(read_all(connection))

    sent = [b"\x16\x03\x01hello", b"hello", b"GE"]
    with tcp_server(_echo) as echoing, tcp_server(greet) as greeting:
        calls = [functools.partial(_talk, words, echoing) for words in sent]
        calls.append(functools.partial(_talk_after_greeting, GET, greeting))
        gave, injection = attempt(calls, lambda call: call(), HttpError(), require_fired=False)
    assert [*sent, b"220 ready\r\n" + GET] == gave
    other = "connection that does not carry HTTP/1.x"
    assert {"TLS connection": 1, other: 3} == injection.workers[0].unobserved
    assert 0 == injection.matched


def _talk_after_greeting(words, address):
    with socket.create_connection(address, timeout=60) as connection:
        greeting = connection.recv(11)
        connection.sendall(words)
        connection.shutdown(socket.SHUT_WR)
        return greeting + read_all(connection)


def test_a_server_that_does_not_accept_is_no_obstacle():
    """It is not needed for an answer; otherwise retries would get past the fault."""
    with socket.create_server(("127.0.0.1", 0), backlog=0) as server:
        waiting = [socket.socket() for _ in range(3)]
        for each in waiting:
            each.setblocking(False)
            each.connect_ex(server.getsockname())
        url = f"http://127.0.0.1:{server.getsockname()[1]}"
        ((status, _),), injection = attempt([url], _status, HttpError(status=429))
        for each in waiting:
            each.close()
    assert (429, {}) == (status, injection.workers[0].unobserved)
