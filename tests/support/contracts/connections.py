"""Faults of connections: at the byte that they say, and as the kernel reports them."""

import errno
import socket
from collections.abc import Callable
from functools import partial
from typing import Any

from pytest_dataloader_faults.faults import (
    ConnectError,
    ConnectionClosed,
    ConnectionReset,
    HungRead,
)
from support.contracts.row import Row

SIZE = 100_000
ANSWER = bytes(range(250)) * (SIZE // 250)


def answer_requests(connection: socket.socket) -> None:
    while connection.recv(1):
        connection.sendall(ANSWER)


def request(address: Any, times: int = 1, limit: float = 20.0) -> tuple[Any, ...]:
    """How many bytes of each answer came, and how the connection ended."""
    sizes: list[int] = []
    with socket.socket() as connection:
        connection.settimeout(limit)
        try:
            connection.connect(address)
            for _ in range(times):
                connection.sendall(b"?")
                sizes.append(0)
                while sizes[-1] < SIZE:
                    data = connection.recv(1 << 12)
                    assert ANSWER[sizes[-1] :].startswith(data)
                    if not data:
                        return (*sizes, "end")
                    sizes[-1] += len(data)
        except OSError as error:
            return (*sizes, errno.errorcode.get(error.errno, type(error).__name__))
    return tuple(sizes)


def _row(fault: Any, times: int, *effect: Any, **options: Any) -> Row:
    return Row(fault, partial(request, times=times, **options), effect)


def _in(kind: Callable[..., Any], after: int, nth: int) -> Callable[..., Any]:
    """A fault of the answer number *nth*, which a later turn replaces."""
    return lambda path, **triggers: kind(path, after=after, **{"nth": nth, **triggers})


def _hung(path: str, **triggers: Any) -> HungRead:
    return HungRead(path, **{"nth": 2, **triggers})


CONNECTIONS = {
    "refused": _row(ConnectError, 1, "ECONNREFUSED"),
    "unreachable": _row(partial(ConnectError, errno=errno.ENETUNREACH), 1, "ENETUNREACH"),
    "reset": _row(ConnectionReset, 1, 0, "ECONNRESET"),
    "reset within": _row(partial(ConnectionReset, after=70_001), 1, 70_001, "ECONNRESET"),
    "reset in the second": _row(_in(ConnectionReset, 9, 2), 3, SIZE, 9, "ECONNRESET"),
    "closed": _row(ConnectionClosed, 1, 0, "end"),
    "closed within": _row(partial(ConnectionClosed, after=1), 1, 1, "end"),
    "closed in the third": _row(_in(ConnectionClosed, SIZE - 1, 3), 3, SIZE, SIZE, SIZE - 1, "end"),
    "hung in the second": _row(_hung, 2, SIZE, 0, "TimeoutError", limit=0.5),
}
