"""The python engine lets connect() of Python's sockets fail, and refuses what it cannot do."""

import asyncio
import socket

import pytest

from pytest_dataloader_faults.faults import (
    ConnectError,
)
from support.attempts import attempt
from support.servers import path_of, tcp_server


@pytest.fixture(name="address", scope="module", params=["127.0.0.1", "::1"])
def _address(request):
    with tcp_server(lambda connection: connection.sendall(b"x"), request.param) as address:
        yield address


def _by_connect(address):
    with socket.create_connection(address) as connection:
        return connection.recv(1)


def _by_connect_ex(address):
    with socket.socket(socket.AF_INET6 if ":" in address[0] else socket.AF_INET) as connection:
        if number := connection.connect_ex(address):
            raise OSError(number, "Connection refused")
        return connection.recv(1)


def _by_asyncio(address):
    async def ask():
        reader, writer = await asyncio.open_connection(*address)
        data = await reader.read()
        writer.close()
        return data

    return asyncio.run(ask())


@pytest.mark.parametrize("way", [_by_connect, _by_connect_ex, _by_asyncio])
def test_second_connection_is_refused(address, way):
    fault = ConnectError(path_of(address), nth=2, times=1)
    results, injection = attempt([address] * 3, way, fault, engine="python")
    assert (b"x", b"x") == (results[0], results[2])
    assert "refused" in results[1]
    assert {path_of(address): 3} == injection.workers[0].counts_of("connections")
    firing = injection.faults[0].firings[0]
    assert ("connect", path_of(address)) == (firing.call, firing.path)


def _datagrams(_address):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as connection:
        connection.connect(("127.0.0.1", 9))
    return b"x"


def test_only_tcp_counts():
    options = {"engine": "python", "require_fired": False}
    results, injection = attempt([0], _datagrams, ConnectError(), **options)
    assert ([b"x"], {}) == (results, injection.workers[0].counts_of("connections"))
