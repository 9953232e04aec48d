"""TLS goes through the supervisor unread, and notices what is cut off."""

from __future__ import annotations

import datetime as dt
import socket
import ssl

import pytest

from pytest_dataloader_faults.faults import ConnectionClosed, ConnectionReset, SlowRead
from support.attempts import attempt
from support.servers import read_all, tcp_server

ANSWER = bytes(range(250)) * 400


@pytest.fixture(name="contexts", scope="module")
def _contexts(tmp_path_factory):
    """A server's and a client's, with a certificate of this run."""
    from cryptography import x509  # moto needs it.
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "here")])
    now = dt.datetime.now(dt.timezone.utc)
    day = dt.timedelta(days=1)
    built = x509.CertificateBuilder(name, name, key.public_key(), 1, now - day, now + day)
    signed = built.sign(key, hashes.SHA256())
    path = tmp_path_factory.mktemp("tls") / "both.pem"
    plain = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    pem = serialization.Encoding.PEM
    path.write_bytes(key.private_bytes(pem, *plain) + signed.public_bytes(pem))
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(path)
    return server, str(path)


def _asked(source):
    """What the server sends, to its end."""
    address, path = source
    context = ssl.create_default_context(cafile=path)
    context.check_hostname = False
    with (
        socket.create_connection(address, timeout=20) as plain,
        context.wrap_socket(plain, suppress_ragged_eofs=False) as connection,
    ):
        connection.sendall(b"?")
        return read_all(connection)


@pytest.mark.parametrize(
    ("fault", "told"),
    [
        (SlowRead("tcp://*", seconds=0.01), None),
        (ConnectionReset("tcp://*"), "ConnectionResetError"),
        # Within a record, OpenSSL calls both an end that is against the protocol.
        (ConnectionReset("tcp://*", after=50_000), "EOF occurred in violation of protocol"),
        (ConnectionClosed("tcp://*", after=50_000), "EOF occurred in violation of protocol"),
    ],
    ids=str,
)
def test_tls_meets_the_fault(contexts, fault, told):
    """In its handshake or its content; a late answer is right."""
    server, path = contexts

    def answer(connection):
        with server.wrap_socket(connection, server_side=True) as secured:
            secured.recv(1)
            secured.sendall(ANSWER)
            secured.unwrap()

    with tcp_server(answer) as address:
        (gave,), injection = attempt([(address, path)], _asked, fault)
    assert injection.fired
    assert gave == ANSWER if told is None else told in str(gave)
