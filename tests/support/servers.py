"""Servers in threads of the test's process, and requests of clients without a library."""

import contextlib
import datetime as dt
import functools
import http.server
import socket
import socketserver
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        """Print nothing."""


class _KeepAlive(_Quiet):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:  # as the server looks for it
        """Send a part if one is requested, or the whole."""
        first, _, last = self.headers.get("Range", "").removeprefix("bytes=").partition("-")
        if not last:
            super().do_GET()
            return
        part = Path(self.translate_path(self.path)).read_bytes()[int(first) : int(last) + 1]
        self.send_response(http.HTTPStatus.PARTIAL_CONTENT)
        self.send_header("Content-Type", "application/octet-stream")
        self.send_header("Content-Length", str(len(part)))
        self.end_headers()
        self.wfile.write(part)


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


def write_certificate(folder: Path) -> Path:
    """A file with a new key and its certificate, for the server ``here``."""
    from cryptography import x509  # moto needs it.
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "here")])
    now = dt.datetime.now(dt.timezone.utc)
    day = dt.timedelta(days=1)
    built = x509.CertificateBuilder(name, name, key.public_key(), 1, now - day, now + day)
    signed = built.sign(key, hashes.SHA256())
    path = folder / "both.pem"
    plain = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    pem = serialization.Encoding.PEM
    path.write_bytes(key.private_bytes(pem, *plain) + signed.public_bytes(pem))
    return path


def read_all(connection: socket.socket, size: int = 1 << 16) -> bytes:
    return b"".join(iter(lambda: connection.recv(size), b""))


def path_of(address: tuple[Any, ...]) -> str:
    host, port = address[:2]
    return f"tcp://[{host}]:{port}" if ":" in host else f"tcp://{host}:{port}"
