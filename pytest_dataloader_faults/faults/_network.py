"""Faults of TCP connections: one that is refused, is reset, or ends early."""

from __future__ import annotations

import errno as _errno
from dataclasses import dataclass
from typing import ClassVar

from pytest_dataloader_faults.faults._base import Fault, Globs, Triggered, errno_numbers
from pytest_dataloader_faults.globs import is_of_network

# What connect(2) and tcp(7) document.
CONNECT_ERRNOS = errno_numbers(
    "EACCES EADDRINUSE EADDRNOTAVAIL ECONNABORTED ECONNREFUSED ECONNRESET EHOSTDOWN EHOSTUNREACH"
    " EINTR ENETDOWN ENETUNREACH ENOBUFS EPERM ETIMEDOUT"
)


@dataclass(frozen=True, repr=False)
class NetworkFault(Fault):
    """A fault of TCP connections, whose *path* is as ``"tcp://192.0.2.1:443"``."""

    __slots__ = ()
    meets_connections: ClassVar[bool] = True
    path: Globs = "tcp://*"

    def _check_together(self) -> None:
        allowed = "a glob of connections, such as 'tcp://*' or 'tcp://192.0.2.1:443'"
        self._require("path", all(map(is_of_network, self.globs)), allowed)


@dataclass(frozen=True, slots=True, repr=False)
class ConnectError(Triggered, NetworkFault):
    """connect(2) to a matching address fails with *errno*, at once."""

    errnos: ClassVar = CONNECT_ERRNOS
    errno: int = _errno.ECONNREFUSED
    nth: int = 1
    times: int | None = None


@dataclass(frozen=True, repr=False)
class _AnswerCutOff(Triggered, NetworkFault):
    """The answer ends once *after* bytes of it have come. Shorter ones do not count."""

    __slots__ = ()
    content: ClassVar[bool] = True
    after: int = 0
    nth: int = 1
    times: int | None = None


@dataclass(frozen=True, slots=True, repr=False)
class ConnectionReset(_AnswerCutOff):
    """The peer resets the connection once *after* bytes of an answer have come: ECONNRESET.

    An answer is what the peer sends first, or after this side has sent something. So a connection
    that is kept alive has several. Answers of *after* bytes and fewer do not count.
    """

    errno = _errno.ECONNRESET


@dataclass(frozen=True, slots=True, repr=False)
class ConnectionClosed(_AnswerCutOff):
    """The peer closes the connection once *after* bytes of an answer have come, as at its end.

    A client that does not know how long the answer is takes what came for all of it. See
    ``ConnectionReset`` for what an answer is.
    """
