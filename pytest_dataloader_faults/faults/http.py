"""Errors of HTTP servers.

The number and the phrase of a status are those of RFC 9110. ``Fault`` documents the attributes.
"""

from __future__ import annotations

import errno as _errno
import html
import re
import zlib
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import ClassVar

from pytest_dataloader_faults import _arguments as allow
from pytest_dataloader_faults.faults.base import TIMES, Effect, Place, Triggered, kind
from pytest_dataloader_faults.faults.network import NetworkFault

TLS_CONNECTION = "TLS connection"
"""How ``Outcome.unobserved`` names a connection whose requests are encrypted."""
_PHRASES = {int(status): status.phrase for status in HTTPStatus}
_TRUE_ERRNOS = {
    401: {_errno.EACCES},
    403: {_errno.EACCES},
    404: {_errno.ENOENT},
    407: {_errno.EACCES},
    408: {_errno.ETIMEDOUT},
    410: {_errno.ENOENT},
    504: {_errno.ETIMEDOUT},
}
"""By status: errnos that mean the same, as clients translate a status into an OSError."""
# Not well-formed XML, as the pages of most servers, so that clients of S3 look at the status.
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


@kind
@dataclass(frozen=True, slots=True, repr=False)
class HttpError(Triggered, NetworkFault):
    """A server answers HTTP requests with ``status`` and a page of text instead of the data.

    The server does not receive the request. Each worker counts its own requests: *nth* is the
    first that fails.

    *status* is a number from 400 to 599. *body* is the page; with None, a short one that names the
    status and the request. *retry_after* is the number of seconds in the Retry-After header; with
    None, the response has no such header. Only plain HTTP/1.0 and HTTP/1.1 are affected: requests
    in TLS (``https://``) are encrypted, so they pass, and ``Outcome.unobserved`` counts the
    connections.
    """

    happens_in: ClassVar = Place.ANSWER
    effects: ClassVar = Effect.ERROR
    drawn: ClassVar = {"status": (503, 404, 429, 403, 500), "times": TIMES}
    is_survivable: ClassVar = True
    _rules: ClassVar = {
        **NetworkFault._rules,
        "status": allow.ints(400, 599, "an HTTP status from 400 to 599"),
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
        return f"{self.status} {_PHRASES.get(self.status, 'Error')}"

    @property
    def in_words(self) -> str:  # type: ignore[override]  # The status is part of it.
        """What the dataset experiences."""
        return f"{{}} answered with HTTP status {self.reason}"

    @property
    def true_errnos(self) -> frozenset[int]:
        """The errnos whose names and words are true of it."""
        return frozenset(_TRUE_ERRNOS.get(self.status, ()))

    def message_patterns(self, _call: str) -> tuple[str, ...]:
        """What a message contains if it names the status."""
        phrase = _PHRASES.get(self.status)
        return (rf"\b{self.status}\b" + (f"|{re.escape(phrase)}" if phrase else ""),)

    def page(self, request: str, number: int) -> str:
        """The body of the answer to the *request* with this *number*.

        Pages for different requests differ from their first bytes on, so that no part of them can
        be mistaken for a placeholder.
        """
        if self.body is not None:
            return self.body
        digest = zlib.crc32(f"{request} {number}".encode())
        page = _PAGE.format(self.reason, html.escape(request), number, digest)
        return page.ljust(_SMALLEST_PAGE)
