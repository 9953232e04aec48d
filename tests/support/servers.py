"""Servers in threads of the test's process, and requests of clients without a library."""

from __future__ import annotations

import contextlib
import functools
import http.server
import socket
import socketserver
import threading
from collections.abc import Callable, Iterator
from typing import Any


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        """Print nothing."""


class _KeepAlive(_Quiet):
    protocol_version = "HTTP/1.1"


class _Threads(socketserver.ThreadingMixIn, socketserver.TCPServer):
    daemon_threads = True
    request_queue_size = 128
    allow_reuse_address = True

    def handle_error(self, *_: object) -> None:
        """A client that goes away is not an error here."""


@contextlib.contextmanager
def _served(server: socketserver.TCPServer) -> Iterator[socketserver.TCPServer]:
    # It polls rarely: shutdown() must wait for that, and the socket is closed just as well.
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@contextlib.contextmanager
def http_server(folder: Any, *, keep_alive: bool = False) -> Iterator[str]:
    """Serve the files of *folder*; the URL of that folder."""
    handler = functools.partial(_KeepAlive if keep_alive else _Quiet, directory=str(folder))
    with _served(_Threads(("127.0.0.1", 0), handler)) as server:
        yield f"http://127.0.0.1:{server.server_address[1]}"


@contextlib.contextmanager
def tcp_server(
    answer: Callable[[socket.socket], None], host: str = "127.0.0.1"
) -> Iterator[tuple[str, int]]:
    """Call *answer* with each connection, in its own thread; the address."""

    class Handler(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            answer(self.request)

    class Server(_Threads):
        address_family = socket.AF_INET6 if ":" in host else socket.AF_INET

    with _served(Server((host, 0), Handler)) as server:
        yield server.server_address[0], server.server_address[1]


def read_all(connection: socket.socket, size: int = 1 << 16) -> bytes:
    return b"".join(iter(lambda: connection.recv(size), b""))


def path_of(address: tuple[Any, ...]) -> str:
    """The path that a connection to *address* has for globs."""
    host, port = address[:2]
    return f"tcp://[{host}]:{port}" if ":" in host else f"tcp://{host}:{port}"
