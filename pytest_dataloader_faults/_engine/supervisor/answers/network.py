"""Connections of workers: which fail, and which go through the supervisor [runs in it]."""

from __future__ import annotations

import contextlib
import errno
import html
import re
import select
import socket
import struct
import threading
import zlib
from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple, TypeVar

from pytest_dataloader_faults import faults
from pytest_dataloader_faults._engine.kernel import caller
from pytest_dataloader_faults._engine.kernel.caller import Syscall
from pytest_dataloader_faults._engine.plan import FaultCounter, Operation
from pytest_dataloader_faults._engine.supervisor.answers.workers import SupervisorServices
from pytest_dataloader_faults._engine.supervisor.worker_state import WorkerState
from pytest_dataloader_faults._engine.system import proc
from pytest_dataloader_faults.faults.base import ANSWER, Place
from pytest_dataloader_faults.faults.files import TLS_CONNECTION, UNLIMITED_WAITS

# Some facts about faults of a connection. A client waits in poll(2) or epoll_wait(2), mostly with
# its own timeout, and not in recv(2). So a recv(2) that is answered late, or with an errno, does
# not occur on a network: if a peer stalls, each of these calls sees that there is no data. So the
# supervisor makes the connection to the peer itself, and the worker's socket is connected to a
# socket of the supervisor, on the loopback address. The results of the worker's calls are the
# kernel's own.
#
# connect(2) is answered once the peer has accepted, even if the socket must not block: a socket
# that is not connected cannot be made to look like one that is about to be. The worker's own limit
# does not hold meanwhile. So if the peer is slow, the worker makes the connection itself, and no
# fault happens on it. getpeername(2) shows the loopback address.
#
# Each direction of a connection has a thread, which blocks. Whatever it must know or count, it has
# the supervisor's loop look up or count, which alone uses what is known of a worker.


_PATIENCE = 5.0
_ACCEPTED_WITHIN = 0.1
"""Seconds. A server that is there accepts at once, by its kernel, and limits are longer."""
_LATE = "connect to a server that did not accept at once"
_Result = TypeVar("_Result")


def on_connect(worker: WorkerState, call: Syscall, services: SupervisorServices) -> bool:
    """Answer a connect(2), or have a thread do it; False if the kernel should execute it."""
    try:
        peer = caller.peer_of(call)
    except PermissionError:
        worker.unobserved[f"connect {caller.INVISIBLE}"] += 1
        return False
    if peer is None or caller.is_connecting(call):
        return False
    worker.tallies["connections"][peer.path] += 1
    operation = Operation(call.name, peer.path, call.pid)
    if due := worker.fire_first_due(faults.ConnectError, operation):
        worker.listener.fail(call, due.fault.errno)
        return True
    if not worker.targets(peer.path, Place.ANSWER):
        return False
    if proc.link(call.pid, "ns/net") != proc.link("self", "ns/net"):
        worker.unobserved["connect in another network namespace"] += 1
        return False
    connection = caller.duplicate_socket(call)
    relayed = Relayed(worker, call, peer, connection, services)
    threading.Thread(target=relayed.run, daemon=True).start()
    return True


def _connect_here(connection: socket.socket, peer: caller.Peer) -> tuple[int, socket.socket]:
    """Connect the worker's *connection* to this process: the result, and our end of it."""
    of_4 = peer.family == socket.AF_INET or peer.is_mapped
    family, host = (socket.AF_INET, "127.0.0.1") if of_4 else (socket.AF_INET6, "::1")
    with socket.create_server((host, 0), family=family, backlog=8) as listening:
        target = f"::ffff:{host}" if peer.is_mapped else host
        number = connection.connect_ex((target, listening.getsockname()[1]))
        if number not in (0, errno.EINPROGRESS):
            raise OSError(number, "a worker's socket cannot be connected to the loopback address")
        listening.settimeout(_PATIENCE)
        while True:
            near, address = listening.accept()
            if address[1] == connection.getsockname()[1]:
                return number, near
            near.close()  # Another process connected first.


# Some facts about the end of a connection. close(2) with SO_LINGER 0 resets it, and drops what is
# not sent yet; with TCP_NOTSENT_LOWAT 1 a socket is writable once all is sent. close(2) of a socket
# that has unread bytes also resets it: an orderly end needs shutdown(2), and reading until the
# other side ends. Both are passed on as received: the end of one direction, and a reset. close(2)
# does nothing to a socket in whose recv(2) another thread waits; shutdown(2) wakes that thread.


_CHUNK = 1 << 18
_NO_LINGER = struct.pack("=ii", 1, 0)
_TCP_NOTSENT_LOWAT = 25


class CutOff(NamedTuple):
    """The connection ends at *offset* of an answer: it is reset, or closed as at its end."""

    offset: int
    is_reset: bool


class Relayed:
    """A connection of *worker*: *near* is our end of its socket, *far* that of its peer's."""

    _near: socket.socket

    def __init__(
        self,
        worker: WorkerState,
        call: Syscall,
        peer: caller.Peer,
        connection: socket.socket,
        services: SupervisorServices,
    ) -> None:
        """*connection*: a duplicate of the socket that *call* should connect to *peer*."""
        self._worker, self._call, self._peer = worker, call, peer
        self._connection, self._services = connection, services
        self._operation = Operation(ANSWER, peer.path)
        self._is_http = any(self._http_counters())
        self._far = socket.socket(peer.family, socket.SOCK_STREAM)
        self._is_asked = True
        self._has_sent = False
        """Whether the peer has received anything."""
        self._answered_bytes = 0
        """How many bytes of this answer."""
        self._is_cut = self._is_reset = False

    def _http_counters(self) -> list[FaultCounter[faults.HttpError]]:
        return list(self._worker.counters_for_path(faults.HttpError, self._operation.path))

    def _ask(self, action: Callable[[], _Result]) -> _Result:
        """The result of *action* in the supervisor's loop."""
        return self._services.events.call(action)

    def run(self) -> None:
        """Connect, answer the call, and pass on what both sides send."""
        is_connected = False
        with self._far:
            with self._connection, self._reported(self._call):
                is_connected = self._connect_peer() and self._connect_worker()
            if is_connected:
                with self._near, self._reported():
                    self._pass_on()

    @contextlib.contextmanager
    def _reported(self, call: Syscall | None = None) -> Iterator[None]:
        """Report what keeps the connection from being passed on as an error of the run."""
        try:
            yield
        except Exception as error:  # noqa: BLE001  # whatever it is, it must be reported
            self._ask(partial(self._services.on_error, self._worker, call, error))

    def _connect_peer(self) -> bool:
        """Whether the peer has accepted, or is not needed; otherwise the call is answered."""
        listener, call = self._worker.listener, self._call
        self._far.settimeout(_ACCEPTED_WITHIN)
        try:
            self._far.connect(self._peer.address)
        except TimeoutError:
            if not self._is_http:
                self._ask(self._leave_to_kernel)
                return False
        except OSError as error:
            self._ask(partial(listener.fail, call, error.errno or errno.EIO))
            return False
        self._far.settimeout(None)
        return listener.is_waiting(call)

    def _leave_to_kernel(self) -> None:
        self._worker.unobserved[_LATE] += 1
        self._worker.listener.continue_syscall(self._call)

    def _connect_worker(self) -> bool:
        listener, call = self._worker.listener, self._call
        number, self._near = _connect_here(self._connection, self._peer)
        for each in (self._near, self._far):
            each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if number:  # EINPROGRESS, of a socket that is not to block.
            self._ask(partial(listener.fail, call, number))
        else:
            self._ask(partial(listener.return_value, call, 0))
        return True

    def _pass_on(self) -> None:
        requests = threading.Thread(target=self._pass_requests, daemon=True)
        requests.start()
        self._pass_answers()
        requests.join()
        if self._is_reset:
            for each in (self._near,) if self._is_cut else (self._near, self._far):
                each.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NO_LINGER)

    def _receive_request(self) -> bytes:
        """What the worker has sent; nothing at the end."""
        try:
            return self._near.recv(_CHUNK)
        except OSError:  # The worker has reset the connection.
            self._is_reset = True
            _shut(self._far, socket.SHUT_RD)
            return b""

    def _pass_requests(self) -> None:
        """Pass on what the worker sends, except for a request that is answered here."""
        with self._reported():
            while data := self._receive_request():
                # A client sends its next request once it has the answer to the one before.
                if self._is_http and not (self._is_asked and self._has_sent):
                    data = self._receive_head(data)
                    page, data = self._ask(partial(self._judge_request, data))
                    if page and self._return(page):
                        self._cut_off(is_reset=False)
                self._send(data)
        if not self._is_cut:
            _shut(self._far, socket.SHUT_WR)

    def _receive_head(self, data: bytes) -> bytes:
        """*data*, the beginning of a request, and what follows up to the end of its head."""
        while may_become_request(data) and (received := self._receive_request()):
            data += received
        return data

    def _judge_request(self, data: bytes) -> tuple[bytes, bytes]:
        """The answer to the request *data* if a fault is due for it, and what the server gets."""
        request = parse_request(data)
        if request is None:
            is_tls = data.startswith(_TLS_HANDSHAKE)
            self._note_protocol(TLS_CONNECTION if is_tls else _OTHER_PROTOCOL)
            return b"", data
        self._is_http = not request.changes_protocol
        due = self._worker.fire_first_due(
            faults.HttpError,
            self._operation,
            lambda each: request.has_range or not each.fault.ignores_range,
        )
        if due is None:
            return b"", data
        if due.fault.ignores_range:
            return b"", _RANGE.sub(b"", data, count=1)
        return make_answer(due.fault, request, due.matched), data

    def _send(self, data: bytes) -> None:
        self._is_asked = self._has_sent = True
        with contextlib.suppress(OSError):  # The peer is gone; the other direction reports it.
            if not self._is_cut:
                self._far.sendall(data)

    def _pass_answers(self) -> None:
        with self._reported():
            while data := self._receive_answer():
                if self._is_http and not self._has_sent:  # A server of HTTP never sends first.
                    self._ask(partial(self._note_protocol, _OTHER_PROTOCOL))
                if not self._return(data):
                    return
        if not self._is_cut:
            _shut(self._near, socket.SHUT_WR)

    def _note_protocol(self, name: str) -> None:
        """The connection carries what *name* says, which no fault of HTTP can reach."""
        self._is_http = False
        self._worker.unobserved[name] += bool(self._http_counters())

    def _receive_answer(self) -> bytes:
        try:
            return self._far.recv(_CHUNK)
        except OSError:  # The peer has reset it.
            self._cut_off(is_reset=True)
            return b""

    def _return(self, data: bytes) -> bool:
        """Pass on *data*, which the peer has sent, to the worker; False if no more follows."""
        data, cut, released = self._ask(partial(self._apply_faults, data))
        released.wait()
        with contextlib.suppress(OSError):  # This side is gone; the other direction reports it.
            self._near.sendall(data)
        if cut:
            self._cut_off(is_reset=cut.is_reset)
        return cut is None

    def _apply_faults(self, data: bytes) -> tuple[bytes, CutOff | None, threading.Event]:
        """The part of *data* to pass on, how the connection ends then, and what to wait for."""
        released = threading.Event()
        released.set()
        if self._is_asked:
            self._is_asked, self._answered_bytes = False, 0
            self._hold(released)
        begin = self._answered_bytes
        self._answered_bytes += len(data)
        cut = self._due_cut(begin, self._answered_bytes)
        return data[: cut.offset - begin] if cut else data, cut, released

    def _due_cut(self, begin: int, end: int) -> CutOff | None:
        """Where the answer ends, if that is among its bytes from *begin* to *end*."""
        for kind in (faults.ConnectionReset, faults.ConnectionClosed):
            due = self._worker.fire_first_due(
                kind, self._operation, lambda each: begin <= each.fault.after < end
            )
            if due:
                return CutOff(due.fault.after, kind is faults.ConnectionReset)
        return None

    def _hold(self, released: threading.Event) -> None:
        """Have the answer wait for *released*, if a fault is due that delays it."""
        due = self._worker.delay_due(self._operation)
        if due.hangs:
            released.clear()
            self._worker.hung = True
            end_hang = partial(self._end_hang, released)
            self._services.deaths.add_hung(self._worker.loader, end_hang)
        elif due.seconds:
            released.clear()
            self._services.timers.after(due.seconds, released.set)

    def _end_hang(self, released: threading.Event) -> None:
        """The loader has given up, or the scope ends."""
        is_open = self._near.fileno() >= 0
        if is_open and caller.waits_for(self._worker.pid, self._near.getsockname()):
            self._worker.tallies[UNLIMITED_WAITS][self._operation.path] += 1
        released.set()

    def _cut_off(self, *, is_reset: bool) -> None:
        """The peer has closed; the worker gets what was sent before, and then the end."""
        if self._is_cut:
            return
        self._is_cut = True
        _shut(self._far, socket.SHUT_RDWR)
        if not is_reset:
            _shut(self._near, socket.SHUT_WR)
            return
        self._is_reset = True
        self._near.setsockopt(socket.IPPROTO_TCP, _TCP_NOTSENT_LOWAT, 1)
        sent = select.poll()
        sent.register(self._near, select.POLLOUT)
        sent.poll()
        _shut(self._near, socket.SHUT_RD)  # Ends the wait for requests, and nothing else.


def _shut(connection: socket.socket, how: int) -> None:
    with contextlib.suppress(OSError):  # It is not connected any more.
        connection.shutdown(how)


# Some facts about HTTP/1.x (RFC 9112). A client sends the next request on a connection once it has
# the whole response, unless it pipelines requests, which hardly any client does. So what it sends
# after a response is the beginning of a request. If that is answered here, in the place of the
# server, the connection ends, and what follows of the request is dropped. A server never sends
# first. After ``CONNECT`` and ``Upgrade``, a connection carries another protocol.


_METHODS = tuple(
    f"{name} ".encode()
    for name in "GET HEAD POST PUT DELETE CONNECT OPTIONS TRACE PATCH PROPFIND".split()
)
_HEAD = re.compile(rb"[\r\n]*(\w+) (\S+) HTTP/1\.[01]\r?\n((?:[^\r\n]+\r?\n)*)\r?\n")
_UPGRADE = re.compile(rb"^upgrade:", re.MULTILINE | re.IGNORECASE)
_RANGE = re.compile(rb"^range:.*\n", re.MULTILINE | re.IGNORECASE)
_LINE = re.compile(rb"\w+ \S+ HTTP/1\.[01]\r?\n")
_LONGEST_HEAD = 1 << 16
_TLS_HANDSHAKE = b"\x16"
_OTHER_PROTOCOL = "connection that does not carry HTTP/1.x"
# Not well-formed XML, like the pages of most servers, so that clients of S3 look at the status.
_PAGE = """\
<html id="{3:08x}">
<head><title>{0}</title></head>
<body>
<center><h1>{0}</h1></center>
<hr><center>{1}, request {2}</center>
</body>
</html>
"""
_SMALLEST_PAGE = 512
"""Servers pad short pages to this many bytes, below which some browsers show their own page."""


class _Request(NamedTuple):
    """The head of a request."""

    method: str
    target: str
    changes_protocol: bool
    has_range: bool


def parse_request(data: bytes) -> _Request | None:
    """The request that *data* begins with; None if it is not one, or not complete."""
    match = _HEAD.match(data)
    if match is None or not data.lstrip(b"\r\n").startswith(_METHODS):
        return None
    method, target = (each.decode("latin-1") for each in match.groups()[:2])
    changes_protocol = method == "CONNECT" or bool(_UPGRADE.search(match[3]))
    return _Request(method, target, changes_protocol, bool(_RANGE.search(match[3])))


def may_become_request(data: bytes) -> bool:
    """Whether *data* is the beginning of a request, whose head is not complete."""
    text = data.lstrip(b"\r\n")
    is_beginning = any(text.startswith(each[: len(text)]) for each in _METHODS)
    is_request = b"\n" not in text or _LINE.match(text) is not None
    return is_beginning and is_request and len(text) <= _LONGEST_HEAD and not _HEAD.match(data)


def make_answer(error: faults.HttpError, request: _Request, number: int) -> bytes:
    """The response to *request*, the one with this *number*.

    Pages for different requests differ from their first bytes on, so that no part of them can be
    mistaken for a placeholder.
    """
    text = f"{request.method} {request.target}"
    title = "Quota exceeded" if error.claims_success else error.reason
    digest = zlib.crc32(f"{text} {number}".encode())
    page = _PAGE.format(title, html.escape(text), number, digest).ljust(_SMALLEST_PAGE)
    body = (page if error.body is None else error.body).encode()
    lines = [
        f"HTTP/1.1 {error.reason}",
        "Content-Type: text/html; charset=utf-8",
        f"Content-Length: {len(body)}",
        "Connection: close",
    ]
    if error.retry_after is not None:
        lines.append(f"Retry-After: {error.retry_after}")
    head = "".join(f"{line}\r\n" for line in [*lines, ""]).encode()
    return head if request.method == "HEAD" else head + body
