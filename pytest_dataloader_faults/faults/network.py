"""Faults of TCP connections.

``Fault`` documents the attributes of each kind.
"""

from __future__ import annotations

import errno as _errno
from dataclasses import dataclass
from typing import ClassVar

from pytest_dataloader_faults import _arguments as allow
from pytest_dataloader_faults.faults.addresses import CONNECTION_FAILED, is_address
from pytest_dataloader_faults.faults.base import (
    TIMES,
    Effect,
    Fault,
    Globs,
    Place,
    Triggered,
    errno_numbers,
    kind,
)

# What connect(2) and tcp(7) document.
CONNECT_ERRNOS = errno_numbers(
    "EACCES EADDRINUSE EADDRNOTAVAIL ECONNABORTED ECONNREFUSED ECONNRESET EHOSTDOWN EHOSTUNREACH"
    " EINTR ENETDOWN ENETUNREACH ENOBUFS EPERM ETIMEDOUT"
)
UNLIMITED_WAITS = "unlimited_waits"
"""How tallies name waits of a main thread for a response that hangs, without a timeout."""


@dataclass(frozen=True, repr=False)
class NetworkFault(Fault):
    """A connection fault: its *path* matches TCP connections, such as ``"tcp://192.0.2.1:443"``."""

    __slots__ = ()
    needs_worker: ClassVar = True
    operation: ClassVar = "connections"
    path: Globs = "tcp://*"

    def message_patterns(self, call: str) -> tuple[str, ...]:
        """What clients say of a connection that failed."""
        return Fault.message_patterns(self, call) or (CONNECTION_FAILED,)

    def true_classes(self, call: str) -> tuple[type[OSError], ...]:  # noqa: ARG002
        """Any of a connection that failed."""
        return (ConnectionError, TimeoutError)

    def _check_together(self) -> None:
        allowed = "a glob of connections, such as 'tcp://*' or 'tcp://192.0.2.1:443'"
        self._require("path", all(map(is_address, self.globs)), allowed)


@kind
@dataclass(frozen=True, slots=True, repr=False)
class ConnectError(Triggered, NetworkFault):
    """Connecting to a matching address fails with ``errno``, by default ECONNREFUSED."""

    happens_in: ClassVar = Place.CONNECT
    effects: ClassVar = Effect.ERROR
    errnos: ClassVar = CONNECT_ERRNOS
    drawn: ClassVar = {
        "errno": (_errno.ECONNREFUSED, _errno.ETIMEDOUT, _errno.EHOSTUNREACH),
        "times": TIMES,
    }
    is_survivable: ClassVar = True
    is_swept: ClassVar = True
    errno: int = _errno.ECONNREFUSED
    nth: int = 1
    times: int | None = None


@dataclass(frozen=True, repr=False)
class _TruncatedResponse(Triggered, NetworkFault):
    """The response ends after *after* bytes of it. Shorter ones do not count."""

    __slots__ = ()
    happens_in: ClassVar = Place.ANSWER
    effects: ClassVar = Effect.BAD_DATA
    drawn: ClassVar = {"after": (0, 256, 1024), "times": TIMES}
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

    effects: ClassVar = Effect.BAD_DATA | Effect.ERROR
    is_survivable: ClassVar = True
    is_swept: ClassVar = True
    errno = _errno.ECONNRESET


@kind
@dataclass(frozen=True, slots=True, repr=False)
class ConnectionClosed(_TruncatedResponse):
    """The server closes the connection after ``after`` bytes of a response, as if it were complete.

    A client without a content length treats the truncated response as complete. See
    ``ConnectionReset`` for what a response is.
    """

    # Only a reader that knows the length of a response can detect it, so it is not survivable.
    in_words: ClassVar = "the connection to {} was closed early"
