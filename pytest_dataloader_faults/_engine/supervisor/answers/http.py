"""HTTP/1.x requests of workers, and the answers to those that fail [runs in the supervisor].

Some facts about HTTP/1.x (RFC 9112). A client sends the next request on a connection once it has
the whole response, unless it pipelines requests, which hardly any client does. So a request may be
answered here, in the place of the server, if no other one awaits its response. A server never sends
first. After ``CONNECT`` and ``Upgrade``, a connection carries another protocol.
"""

from __future__ import annotations

import html
import re
import sys
import zlib
from collections.abc import Callable, Iterator
from typing import NamedTuple

from pytest_dataloader_faults._engine.policy import FaultPolicy, Operation
from pytest_dataloader_faults.faults.connections import TLS_CONNECTION, HttpError

_METHODS = tuple(
    f"{name} ".encode()
    for name in "GET HEAD POST PUT DELETE CONNECT OPTIONS TRACE PATCH PROPFIND".split()
)
_REQUEST_LINE = re.compile(rb"(\w+) (\S+) HTTP/1\.([01])")
_EMPTY_LINES = re.compile(rb"[\r\n]*")
_END_OF_HEAD = re.compile(rb"\r?\n\r?\n")
_HEXADECIMAL = re.compile(rb"[0-9A-Fa-f]{1,15}")
_LONGEST_HEAD = 1 << 16
_TLS_HANDSHAKE = b"\x16"
_OTHER_PROTOCOL = "connection that does not carry HTTP/1.x"
_PIPELINED = "pipelined HTTP request"
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


class HttpRequests:
    """What a worker sends to a server: the requests that pass, and the answers to the others."""

    def __init__(self, policy: FaultPolicy, operation: Operation) -> None:
        self.has_passed = False
        """Whether the server has received anything."""
        self._policy = policy
        self._operation = operation
        self._held = b""
        """The beginning of a request, which is not passed before its head is complete."""
        self._body: _Body | None = None
        self._answer: Answer | None = None
        """For the request whose body is being received."""
        self._is_over = False
        """Whether the connection carries something else by now."""

    @classmethod
    def of(cls, policy: FaultPolicy, operation: Operation) -> HttpRequests | None:
        """Those of one connection; None if no fault is about them."""
        counters = policy.faults.counters_for_path(HttpError, operation.path)
        return cls(policy, operation) if any(True for _ in counters) else None

    def expect_others(self) -> None:
        """The server has sent something before any request."""
        if not (self.has_passed or self._is_over):
            self._stop_parsing(_OTHER_PROTOCOL)

    def rest(self) -> bytes:
        """What is held at the end of the connection."""
        held, self._held = self._held, b""
        return held

    def split(self, data: bytes, may_answer: Callable[[], bool]) -> Iterator[bytes | Answer]:
        """The parts of *data* that the server should receive, and answers, in order.

        *may_answer*: whether the client would take an answer for that of its latest request.
        """
        data = self.rest() + data
        while data and not self._is_over:
            if self._body is None:
                end = self._find_end_of_head(data)
                if end is None:
                    self._held, data = (b"", data) if self._is_over else (data, b"")
                    continue
                self._begin(data[:end], may_answer)
                passed = end
            else:
                passed = self._body.take(data)
            if self._answer is None:
                self.has_passed = True
                yield data[:passed]
            data = data[passed:]
            if self._body is not None and self._body.is_over:
                yield from self._end()
        if data:
            self.has_passed = True
            yield data

    def _find_end_of_head(self, data: bytes) -> int | None:
        """Where the head of a request ends; None if it is incomplete, or if it is none."""
        empty_lines = _EMPTY_LINES.match(data)
        assert empty_lines is not None
        text = data[empty_lines.end() :]
        if not any(text.startswith(each[: len(text)]) for each in _METHODS):
            is_tls = text.startswith(_TLS_HANDSHAKE)
            self._stop_parsing(TLS_CONNECTION if is_tls else _OTHER_PROTOCOL)
            return None
        line, newline, _ = text.partition(b"\n")
        end = _END_OF_HEAD.search(text)
        is_request = _REQUEST_LINE.fullmatch(line.rstrip(b"\r")) if newline else True
        if not is_request or (end is None and len(text) > _LONGEST_HEAD):
            self._stop_parsing(_OTHER_PROTOCOL)
            return None
        return empty_lines.end() + end.end() if end else None

    def _begin(self, head: bytes, may_answer: Callable[[], bool]) -> None:
        request = _Request.parse(head)
        self._body = _Body(request)
        if not may_answer():
            self._policy.unobserved[_PIPELINED] += self._is_concerned()
        elif error := self._fire():
            self._answer = _make_answer(request, *error)
            if request.fields.get("expect"):  # The client waits before it sends the body.
                self._body.is_over = True
                return
        if self._answer is None and request.changes_protocol:
            self._is_over = True

    def _end(self) -> Iterator[Answer]:
        answer, self._answer, self._body = self._answer, None, None
        if answer is not None:
            yield answer

    def _is_concerned(self) -> bool:
        counters = self._policy.faults.counters_for_path(HttpError, self._operation.path)
        return self._policy.armed and any(True for _ in counters)

    def _fire(self) -> tuple[HttpError, int] | None:
        """The fault that is due for a request, and the number of the request."""
        policy = self._policy
        if not policy.armed:
            return None
        for counter in policy.faults.counters_for_path(HttpError, self._operation.path):
            if counter.reach():
                policy.fire(counter, *self._operation)
                return counter.fault, counter.matched
        return None

    def _stop_parsing(self, why: str) -> None:
        self._is_over = True
        self._policy.unobserved[why] += self._is_concerned()


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
    def is_chunked(self) -> bool:
        """Whether its body is a row of chunks."""
        return "chunked" in self.fields.get("transfer-encoding", "").lower()

    @property
    def length(self) -> int:
        """The number of bytes of a body that is not chunked."""
        text = self.fields.get("content-length", "")
        return int(text) if text.isdecimal() else 0

    @property
    def changes_protocol(self) -> bool:
        """Whether the connection may carry something else afterwards."""
        return self.method == "CONNECT" or "upgrade" in self.fields

    @property
    def ends_connection(self) -> bool:
        """Whether the client wants no further response on this connection."""
        options = self.fields.get("connection", "").lower()
        is_kept = "keep-alive" in options if self.is_http_1_0 else "close" not in options
        return not is_kept or "expect" in self.fields


class _Body:
    """Finds the end of the body of *request*."""

    def __init__(self, request: _Request) -> None:
        self._is_chunked = request.is_chunked
        self._remaining = 0 if self._is_chunked else request.length
        self._line = b""
        self._is_after_chunks = False
        self.is_over = not (self._is_chunked or self._remaining)

    def take(self, data: bytes) -> int:
        """How many bytes of *data* belong to it."""
        taken = 0
        while taken < len(data) and not self.is_over:
            if self._remaining:
                count = min(self._remaining, len(data) - taken)
                self._remaining -= count
                taken += count
                self.is_over = not (self._is_chunked or self._remaining)
            else:
                newline = data.find(b"\n", taken)
                end = newline + 1 or len(data)
                self._line += data[taken:end]
                taken = end
                if newline >= 0:
                    self._end_line(self._line.strip())
                    self._line = b""
        return taken

    def _end_line(self, line: bytes) -> None:
        """A line between chunks: the size of the next one, or empty after one, or a trailer."""
        if self._is_after_chunks:
            self.is_over = not line
        elif line:
            self._remaining = _parse_size(line.partition(b";")[0].strip())
            self._is_after_chunks = not self._remaining


def _parse_size(text: bytes) -> int:
    """The size of a chunk. After an invalid one, where the request ends is unknown."""
    return int(text, 16) if _HEXADECIMAL.fullmatch(text) else sys.maxsize


def _make_page(error: HttpError, request: str, number: int) -> str:
    """The body of the answer to the *request* with this *number*.

    Pages for different requests differ from their first bytes on, so that no part of them can be
    mistaken for a placeholder.
    """
    if error.body is not None:
        return error.body
    digest = zlib.crc32(f"{request} {number}".encode())
    page = _PAGE.format(error.reason, html.escape(request), number, digest)
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
