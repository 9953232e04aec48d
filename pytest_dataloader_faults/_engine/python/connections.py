"""TCP connections that fail as they are made [runs in the worker].

What a peer sends is read by functions of many kinds, and awaited by more: so only the making of
a connection can fail here. A socket that C code has made is not seen.
"""

from __future__ import annotations

import os
import socket
from typing import Any

from pytest_dataloader_faults._engine.policy import Fail, FaultPolicy, Operation
from pytest_dataloader_faults._engine.policy.network import CONNECT, connect_actions
from pytest_dataloader_faults.faults.addresses import connection_path

_INTERNET = (socket.AF_INET, socket.AF_INET6)
_NOT_CONNECTED = 7
"""The state in TCP_INFO; any other one belongs to a connection that has been made."""


def replace_functions(policy: FaultPolicy) -> None:
    """Ask *policy* about each TCP connection of this process, permanently."""
    plain, plain_ex = socket.socket.connect, socket.socket.connect_ex

    def connect(self: socket.socket, address: Any) -> None:
        if number := _connect_errno(policy, self, address):
            raise OSError(number, os.strerror(number))
        plain(self, address)

    def connect_ex(self: socket.socket, address: Any) -> int:
        return _connect_errno(policy, self, address) or plain_ex(self, address)

    kind: Any = socket.socket
    kind.connect, kind.connect_ex = connect, connect_ex


def _connect_errno(policy: FaultPolicy, connection: socket.socket, address: Any) -> int:
    """The errno with which this connect() should fail; 0 if it should not."""
    path = _path(connection, address)
    actions = connect_actions(policy, Operation(CONNECT, path)) if path else ()
    return next((each.errno for each in actions if isinstance(each, Fail)), 0)


def _path(connection: socket.socket, address: Any) -> str | None:
    """The path of a TCP connection that is about to be made to *address*; None if it is none."""
    if connection.family not in _INTERNET or connection.type != socket.SOCK_STREAM:
        return None
    state = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0]
    if state != _NOT_CONNECTED or not isinstance(address, tuple):
        return None
    try:
        addresses = socket.getaddrinfo(address[0], address[1], connection.family, connection.type)
    except OSError:  # connect() also raises it.
        return None
    numeric = socket.NI_NUMERICHOST | socket.NI_NUMERICSERV
    return connection_path(*socket.getnameinfo(addresses[0][4], numeric))
