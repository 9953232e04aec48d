"""Error responses of an HTTP server: which requests get one, and what passes unchanged."""

import functools
import http.client
import http.server
import socket
import threading
import urllib.error
import urllib.request

import pytest

from pytest_dataloader_faults._engine.plan import FaultPlan, Operation, WorkerFaults
from pytest_dataloader_faults._engine.supervisor.answers.http import Answer, HttpRequests
from pytest_dataloader_faults.faults import HttpError
from support.attempts import NEVER, attempt
from support.network_datasets import write_samples
from support.rows import rows
from support.servers import http_server, path_of, read_all, tcp_server

PEER = "tcp://192.0.2.1:80"
GET = b"GET /a HTTP/1.1\r\nHost: h\r\n\r\n"
OLD = b"GET /a HTTP/1.0\r\n\r\n"
CLOSING = b"GET /a HTTP/1.1\r\nConnection: Close\r\n\r\n"
KEPT = b"GET /a HTTP/1.0\r\nConnection: keep-alive\r\n\r\n"
POST = b"POST /a HTTP/1.1\r\nContent-Length: 5\r\n\r\n"
CHUNKED = b"PUT /a HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n"
CHUNKS = b"3;x=y\r\nGET\r\n1\r\n \r\n0\r\nTrailer: t\r\n\r\n"
EXPECTING = b"POST /a HTTP/1.1\r\nContent-Length: 5\r\nExpect: 100-continue\r\n\r\n"
TUNNEL = b"CONNECT h:443 HTTP/1.1\r\n\r\n"
UPGRADE = b"GET /a HTTP/1.1\r\nUpgrade: websocket\r\n\r\n"


def _split(pieces, *, nth=1, may_answer=True, faults=None):
    """What the server gets, what the client gets, and what was not observed."""
    plan = FaultPlan(faults or (HttpError(nth=nth, times=1),))
    worker = WorkerFaults(plan, 0, 1)
    requests = HttpRequests.of(worker, Operation("recv", PEER), lambda action: action())
    arriving = iter(pieces)
    parts = list(requests.split(lambda: next(arriving, b""), lambda: may_answer))
    answers = [part for part in parts if isinstance(part, Answer)]
    passed = b"".join(part for part in parts if not isinstance(part, Answer))
    return passed, answers, dict(worker.unobserved)


def _in_bytes(data):
    return [data[place : place + 1] for place in range(len(data))]


@rows("request_bytes", [GET, OLD, CLOSING, KEPT, POST + b"GET /", b"\r\n" + GET])
def test_request_is_answered_once_it_is_complete(request_bytes):
    for pieces in ([request_bytes, OLD], _in_bytes(request_bytes + OLD)):
        passed, (answer,), unobserved = _split(pieces)
        assert (OLD, {}) == (passed, unobserved)
        assert answer.closes == (request_bytes in {OLD, CLOSING})
    passed, answers, unobserved = _split([request_bytes, request_bytes, OLD], nth=2)
    assert (request_bytes + OLD, 1, {}) == (passed, len(answers), unobserved)


def test_answer_is_a_response_with_a_page():
    head, _, page = _split([GET])[1][0].data.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 503 Service Unavailable\r\nContent-Type: text/html")
    assert f"Content-Length: {len(page)}\r\n".encode() in head
    assert page.startswith(b'<html id="')
    other_page = _split([GET.replace(b"/a", b"/b")])[1][0].data.partition(b"\r\n\r\n")[2]
    assert page[:16] != other_page[:16]
    assert b"GET /a, request 1" in page


def test_answer_has_what_the_fault_says():
    fault = HttpError(status=429, body="é", retry_after=7)
    head, _, page = _split([KEPT], faults=(fault,))[1][0].data.partition(b"\r\n\r\n")
    assert (b"HTTP/1.1 429 Too Many Requests", "é") == (head.split(b"\r\n")[0], page.decode())
    assert {b"Content-Length: 2", b"Retry-After: 7"} <= set(head.split(b"\r\n"))


def test_answer_to_head_has_no_body():
    answer = _split([b"HEAD /a HTTP/1.1\r\n\r\n"])[1][0].data
    assert answer.endswith(b"\r\n\r\n")
    assert b"Content-Length: 512\r\n" in answer


@rows("request_bytes", [TUNNEL, UPGRADE])
def test_what_follows_a_change_of_protocol_passes(request_bytes):
    passed, answers, unobserved = _split([request_bytes, b"\x16\x03", GET], nth=2)
    assert (request_bytes + b"\x16\x03" + GET, [], {}) == (passed, answers, unobserved)


OTHER = {"connection that does not carry HTTP/1.x": 1}
UPLOAD = {"HTTP request with a body of unknown length": 1}
PIPELINED = {"pipelined HTTP request": 1}


@rows(
    ("pieces", "expected"),
    [
        ([b"\x16", b"\x03\x01", GET], {"TLS connection": 1}),
        ([b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"], OTHER),
        ([b"GET key\r\n", GET], OTHER),
        ([b"USER x\r\n"], OTHER),
        ([b"\0", GET], OTHER),
        ([b"GET /", b"x" * (1 << 17), GET], OTHER),
        ([CHUNKED + CHUNKS, GET], UPLOAD),
        ([EXPECTING, b"GET /", GET], UPLOAD),
    ],
)
def test_what_is_no_request_passes(pieces, expected):
    assert (b"".join(pieces), [], expected) == _split(pieces)


def test_pipelined_request_passes():
    assert (GET, [], PIPELINED) == _split([GET], may_answer=False)


def test_only_connections_of_the_fault_are_read():
    worker = WorkerFaults(FaultPlan((HttpError("tcp://[:]*"),)), 0, 1)
    assert HttpRequests.of(worker, Operation("recv", PEER), None) is None


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
    """The status and the length of each response, and whether one socket served for all."""
    connection = http.client.HTTPConnection(*address, timeout=60)
    results, sockets = [], set()
    for number, (method, body) in enumerate(REQUESTS):
        connection.request(method, f"/{number}", body)
        sockets.add(connection.sock.fileno())
        answer = connection.getresponse()
        results.append((answer.status, len(answer.read())))
    connection.close()
    return results, len(sockets)


def test_second_to_fourth_request_of_a_connection_fail(server):
    address, seen = server
    seen.clear()
    fault = HttpError(path_of(address), 404, nth=2, times=3, body="no")
    (gave,), injection = attempt([address], _request_on_one_connection, fault)
    assert ([(200, 0), (404, 2), (404, 0), (404, 2), (200, 0)], 1) == gave
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
    """The status and the page, as urllib tells them: each connection is closed."""
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
    (other,) = OTHER
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
