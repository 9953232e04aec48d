"""HTTP/1.x requests of workers, and the answers to those that fail [runs in the supervisor]."""

from __future__ import annotations

import html
import re
import zlib
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple, TypeAlias

from pytest_dataloader_faults._engine.plan import Operation, WorkerFaults
from pytest_dataloader_faults.faults.connections import TLS_CONNECTION, HttpError

# Some facts about HTTP/1.x (RFC 9112). A client sends the next request on a connection once it has
# the whole response, unless it pipelines requests, which hardly any client does. So a request may
# be answered here, in the place of the server, if no other one awaits its response. A server never
# sends first. After ``CONNECT`` and ``Upgrade``, a connection carries another protocol.


_Ask: TypeAlias = Callable[[Callable[[], Any]], Any]
_METHODS = tuple(
    f"{name} ".encode()
    for name in "GET HEAD POST PUT DELETE CONNECT OPTIONS TRACE PATCH PROPFIND".split()
)
_REQUEST_LINE = re.compile(rb"(\w+) (\S+) HTTP/1\.([01])")
_EMPTY_LINES = re.compile(rb"[\r\n]*")
_END_OF_HEAD = re.compile(rb"\r?\n\r?\n")
_RANGE = re.compile(rb"^range:.*\n", re.IGNORECASE | re.MULTILINE)
_LONGEST_HEAD = 1 << 16
_TLS_HANDSHAKE = b"\x16"
_OTHER_PROTOCOL = "connection that does not carry HTTP/1.x"
_PIPELINED = "pipelined HTTP request"
_UPLOAD = "HTTP request with a body of unknown length"
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


class Answer(NamedTuple):
    """What a client receives for a request; *closes*: and then the end of the connection."""

    data: bytes
    closes: bool


class _Source:
    """What *receive* returns, with a look ahead; it returns nothing at the end."""

    def __init__(self, receive: Callable[[], bytes]) -> None:
        self.data = b""
        """What was received, and not taken."""
        self._receive = receive

    def extend(self) -> bool:
        """Receive more; False at the end."""
        more = self._receive()
        self.data += more
        return bool(more)

    def take(self, count: int) -> bytes:
        """Up to *count* bytes of what was received."""
        taken, self.data = self.data[:count], self.data[count:]
        return taken

    def parts(self, count: int) -> Iterator[bytes]:
        """The next *count* bytes, as they arrive."""
        while count and (self.data or self.extend()):
            part = self.take(count)
            count -= len(part)
            yield part


class HttpRequests:
    """What a worker sends to a server: the requests that pass, and the answers to the others."""

    def __init__(self, worker: WorkerFaults, operation: Operation, ask: _Ask) -> None:
        """*ask* returns the result of a function that uses *worker*."""
        self.has_passed = False
        """Whether the server has received anything."""
        self._worker, self._operation, self._ask = worker, operation, ask
        self._is_over = False
        """Whether the connection carries something else by now."""

    @classmethod
    def of(cls, worker: WorkerFaults, operation: Operation, ask: _Ask) -> HttpRequests | None:
        """The requests of one connection; None if no fault is about them."""
        counters = worker.counters_for_path(HttpError, operation.path)
        return cls(worker, operation, ask) if any(True for _ in counters) else None

    def expect_others(self) -> None:
        """The server has sent something. If that is before any request, none follows."""
        if not (self.has_passed or self._is_over):
            self._stop_parsing(_OTHER_PROTOCOL)

    def split(
        self, receive: Callable[[], bytes], may_answer: Callable[[], bool]
    ) -> Iterator[bytes | Answer]:
        """The parts of what *receive* returns that the server should get, and answers, in order.

        *may_answer*: whether the client would read an answer as the response to its latest request.
        """
        source = _Source(receive)
        while head := self._read_head(source):
            request = _Request.parse(head)
            if request.is_upload:
                self._ask(partial(self._stop_parsing, _UPLOAD))
                source.data = head + source.data
                break
            error = self._ask(partial(self._decide, may_answer, request))
            if error is not None and error[0].ignores_range:
                head = _RANGE.sub(b"", head)
            elif error is not None:
                for _ in source.parts(request.length):
                    pass
                yield _make_answer(request, *error)
                continue
            self.has_passed = True
            yield head
            yield from source.parts(request.length)
            if request.changes_protocol:
                break
        else:
            if source.data and not self._is_over:  # The beginning of a request, at most.
                self._ask(partial(self._stop_parsing, _OTHER_PROTOCOL))
        while source.data or source.extend():
            self.has_passed = True
            yield source.take(len(source.data))

    def _read_head(self, source: _Source) -> bytes:
        """The head of the next request; nothing if there is none."""
        end = self._find_end_of_head(source.data)
        while end is None and not self._is_over and source.extend():
            end = self._find_end_of_head(source.data)
        return b"" if end is None else source.take(end)

    def _find_end_of_head(self, data: bytes) -> int | None:
        """The end of the request's head; None if it is incomplete or not HTTP."""
        empty_lines = _EMPTY_LINES.match(data)
        assert empty_lines is not None
        text = data[empty_lines.end() :]
        if self._is_over:
            return None
        if not any(text.startswith(each[: len(text)]) for each in _METHODS):
            is_tls = text.startswith(_TLS_HANDSHAKE)
            self._ask(partial(self._stop_parsing, TLS_CONNECTION if is_tls else _OTHER_PROTOCOL))
            return None
        line, newline, _ = text.partition(b"\n")
        end = _END_OF_HEAD.search(text)
        is_request = _REQUEST_LINE.fullmatch(line.rstrip(b"\r")) if newline else True
        if not is_request or (end is None and len(text) > _LONGEST_HEAD):
            self._ask(partial(self._stop_parsing, _OTHER_PROTOCOL))
            return None
        return empty_lines.end() + end.end() if end else None

    def _decide(
        self, may_answer: Callable[[], bool], request: _Request
    ) -> tuple[HttpError, int] | None:
        """The fault that is due for a request, and the number of the request."""
        counters = [*self._worker.counters_for_path(HttpError, self._operation.path)]
        if not may_answer():
            self._worker.unobserved[_PIPELINED] += bool(counters)
            return None
        for counter in counters:
            if counter.fault.ignores_range and "range" not in request.fields:
                continue
            if counter.reach():
                self._worker.fire(counter, *self._operation)
                return counter.fault, counter.matched
        return None

    def _stop_parsing(self, why: str) -> None:
        self._is_over = True
        counters = self._worker.counters_for_path(HttpError, self._operation.path)
        self._worker.unobserved[why] += any(True for _ in counters)


class _Request(NamedTuple):
    """The head of a request."""

    method: str
    target: str
    is_http_1_0: bool
    fields: dict[str, str]

    @classmethod
    def parse(cls, head: bytes) -> _Request:
        """*head* as text; of header fields with the same name, the last one."""
        first, *lines = head.decode("latin-1").strip("\r\n").split("\n")
        method, target, version = first.split()
        pairs = (line.partition(":") for line in lines)
        fields = {name.strip().lower(): value.strip() for name, _, value in pairs}
        return cls(method, target, version.endswith("1.0"), fields)

    @property
    def length(self) -> int:
        """How many bytes of a body follow."""
        length = self.fields.get("content-length", "")
        return int(length) if length.isdecimal() else 0

    @property
    def is_upload(self) -> bool:
        """Whether it may have a body of unknown length, or only if the server agrees."""
        return "transfer-encoding" in self.fields or "expect" in self.fields

    @property
    def changes_protocol(self) -> bool:
        """Whether the connection may carry something else afterwards."""
        return self.method == "CONNECT" or "upgrade" in self.fields

    @property
    def ends_connection(self) -> bool:
        """Whether the client wants no further response on this connection."""
        options = self.fields.get("connection", "").lower()
        is_kept = "keep-alive" in options if self.is_http_1_0 else "close" not in options
        return not is_kept


def _make_page(error: HttpError, request: str, number: int) -> str:
    """The body of the answer to the *request* with this *number*.

    Pages for different requests differ from their first bytes on, so that no part of them can be
    mistaken for a placeholder.
    """
    if error.body is not None:
        return error.body
    digest = zlib.crc32(f"{request} {number}".encode())
    title = "Quota exceeded" if error.claims_success else error.reason
    page = _PAGE.format(title, html.escape(request), number, digest)
    return page.ljust(_SMALLEST_PAGE)


def _make_answer(request: _Request, error: HttpError, number: int) -> Answer:
    page = _make_page(error, f"{request.method} {request.target}", number).encode()
    lines = [
        f"HTTP/1.1 {error.reason}",
        "Content-Type: text/html; charset=utf-8",
        f"Content-Length: {len(page)}",
        f"Connection: {'close' if request.ends_connection else 'keep-alive'}",
    ]
    if error.retry_after is not None:
        lines.append(f"Retry-After: {error.retry_after}")
    head = "".join(f"{line}\r\n" for line in [*lines, ""]).encode()
    return Answer(head if request.method == "HEAD" else head + page, request.ends_connection)
