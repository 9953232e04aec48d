"""Faults of TCP connections, and of HTTP servers. ``Fault`` documents the attributes.

The number and the phrase of an HTTP status are those of RFC 9110.
"""

from __future__ import annotations

import errno as _errno
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, ClassVar

from pytest_dataloader_faults import _arguments as allow
from pytest_dataloader_faults.faults.base import Effect, Fault, Globs, Place, Triggered, kind
from pytest_dataloader_faults.faults.globs import is_address

UNLIMITED_WAITS = "unlimited_waits"
"""How tallies name waits of a main thread for a response that hangs, without a timeout."""
TLS_CONNECTION = "TLS connection"
"""How ``Outcome.unobserved`` names a connection whose requests are encrypted."""
PHRASES = {int(status): status.phrase for status in HTTPStatus}


@dataclass(frozen=True, repr=False)
class NetworkFault(Fault):
    """A connection fault: its *path* matches TCP connections, such as ``"tcp://192.0.2.1:443"``."""

    __slots__ = ()
    needs_worker: ClassVar = False
    operation: ClassVar = "connections"
    path: Globs = "tcp://*"

    def _check_together(self) -> None:
        allowed = "a glob of connections, such as 'tcp://*' or 'tcp://192.0.2.1:443'"
        self._require("path", all(map(is_address, self.globs)), allowed)


@kind
@dataclass(frozen=True, slots=True, repr=False)
class ConnectError(Triggered, NetworkFault):
    """Connecting to a matching address fails with ``errno``, by default ECONNREFUSED."""

    happens_in: ClassVar = Place.CONNECT
    errno: int = _errno.ECONNREFUSED
    nth: int = 1
    times: int | None = None


@dataclass(frozen=True, repr=False)
class _TruncatedResponse(Triggered, NetworkFault):
    """The response ends after *after* bytes of it. Shorter ones do not count."""

    __slots__ = ()
    happens_in: ClassVar = Place.ANSWER
    effects: ClassVar = Effect.BAD_DATA
    _rules: ClassVar = {
        **NetworkFault._rules,
        "after": allow.ints(0, allowed="an int, 0 or more bytes of the response"),
    }
    after: int = 0
    nth: int = 1
    times: int | None = None


@kind
@dataclass(frozen=True, slots=True, repr=False)
class ConnectionReset(_TruncatedResponse):
    """The server resets the connection after sending ``after`` bytes of a response (ECONNRESET).

    A response is what the server sends first, or after the worker has sent something. So a
    keep-alive connection has several. Responses of *after* bytes or fewer do not count.
    """

    errno = _errno.ECONNRESET


@kind
@dataclass(frozen=True, slots=True, repr=False)
class ConnectionClosed(_TruncatedResponse):
    """The server closes the connection after ``after`` bytes of a response, as if it were complete.

    A client without a content length treats the truncated response as complete. See
    ``ConnectionReset`` for what a response is.
    """


def _is_status(value: Any) -> bool:
    is_success = value in (HTTPStatus.OK, HTTPStatus.PARTIAL_CONTENT)
    return allow.is_int(value, 200, 599) and (is_success or value >= HTTPStatus.BAD_REQUEST)


@kind
@dataclass(frozen=True, slots=True, repr=False)
class HttpError(Triggered, NetworkFault):
    """A server answers HTTP requests with ``status`` and a page of text instead of the data.

    The server does not receive the request. Each worker counts its own requests: *nth* is the
    first that fails.

    *status* is a number from 400 to 599, or 200: some servers send the page of a login or of an
    exceeded quota as if it were the data. With 206, only requests of a part match, and the server
    receives them without their Range header: it sends the whole file, with status 200.

    *body* is the page; with None, a short one that names the status and the request. *retry_after*
    is the number of seconds in the Retry-After header; with None, the response has no such header.
    Only plain HTTP/1.0 and HTTP/1.1 are affected: requests in TLS (``https://``) are encrypted, so
    they pass, and ``Outcome.unobserved`` counts the connections.
    """

    happens_in: ClassVar = Place.ANSWER
    _rules: ClassVar = {
        **NetworkFault._rules,
        "status": allow.ArgumentRule(_is_status, "200, 206, or an HTTP status from 400 to 599"),
        "body": allow.optional(
            lambda value: isinstance(value, str), "a str, or None for a page with the status"
        ),
        "retry_after": allow.optional(allow.at_least(0), "an int, 0 or more seconds, or None"),
    }
    status: int = 503
    nth: int = 1
    times: int | None = None
    body: str | None = field(default=None, kw_only=True)
    retry_after: int | None = field(default=None, kw_only=True)

    @property
    def reason(self) -> str:
        """The status and its phrase, such as ``503 Service Unavailable``."""
        return f"{self.status} {PHRASES.get(self.status, 'Error')}"

    @property
    def claims_success(self) -> bool:
        """Whether only the content itself shows that it is not the data."""
        return self.status < HTTPStatus.BAD_REQUEST

    @property
    def ignores_range(self) -> bool:
        """Whether the server sends a whole file in place of a part."""
        return self.status == HTTPStatus.PARTIAL_CONTENT
