"""A connection that goes through the supervisor takes two of its descriptors, for as long."""

from __future__ import annotations

import resource
import socket

from pytest_dataloader_faults import inject
from pytest_dataloader_faults.faults import ConnectionReset, SlowRead
from support.attempts import NEVER
from support.children import in_a_process
from support.epochs import alone, epoch
from support.servers import tcp_server
from support.tries import Tries

LIMIT = 256
MANY = 400


def _echo(connection):
    while data := connection.recv(9):
        connection.sendall(data)


def _under_a_limit(way, fault):
    """What is wrong where *way* runs in a worker, and each process may have few descriptors."""
    with tcp_server(_echo) as address:

        def body():
            resource.setrlimit(resource.RLIMIT_NOFILE, (LIMIT, LIMIT))
            with inject(fault, require_fired=False):
                (result,) = epoch(alone(Tries([address], way))).batches
            assert result.gave is True, result.gave

        return in_a_process(body)


def _one_after_the_other(address):
    for _ in range(MANY):
        with socket.create_connection(address) as connection:
            connection.sendall(b"x")
            assert connection.recv(1) == b"x"
    return True


def _cut_off(address):
    for _ in range(MANY):
        with socket.create_connection(address) as connection:
            connection.sendall(b"x")
            try:
                connection.recv(1)
            except ConnectionResetError:
                continue
            return False
    return True


def test_connections_that_have_ended_take_none():
    """More connections than descriptors, one after the other."""
    assert not _under_a_limit(_one_after_the_other, SlowRead("tcp://*", nth=NEVER))


def test_connections_that_were_cut_off_take_none():
    """Nor do those whose answer was cut off."""
    assert not _under_a_limit(_cut_off, ConnectionReset())


def _at_a_time(address):
    open_ones = [socket.create_connection(address) for _ in range(150)]
    return bool(open_ones)


def test_more_at_a_time_than_it_can_have_is_an_error_of_the_run():
    """It says whose descriptors are short. The worker's own connections are made all the same."""
    told = _under_a_limit(_at_a_time, SlowRead("tcp://*", nth=NEVER))
    assert "InjectionError" in told
    assert "has no descriptor left [EMFILE, its limit of 256]" in told
