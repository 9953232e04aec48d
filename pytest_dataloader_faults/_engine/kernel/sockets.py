"""Sockets of another process: to whom they are connected [runs in the supervisor].

Some facts about sockets of another process. /proc/PID/fd shows only a number for one, but the
extended attribute system.sockprotoname of it is the name of its protocol. pidfd_getfd(2), of
Linux 5.6, returns a duplicate: with that, connect(2) connects the very socket of the other
process, and TCP_INFO shows its state. Docker allows it to containers with CAP_SYS_PTRACE alone.
If it is not allowed, each connect(2) counts as the first one of its socket. getaddrinfo(3)
connects sockets of UDP, to see which address it would have: these are not connections.
"""

from __future__ import annotations

import os
import socket
import struct
import sys
from typing import Any, NamedTuple

from pytest_dataloader_faults._engine.kernel.caller import Syscall, duplicate, to_signed
from pytest_dataloader_faults._engine.kernel.linux import NAMES, read_memory
from pytest_dataloader_faults._engine.system import proc
from pytest_dataloader_faults.faults.globs import connection_path

_ADDRESS = struct.Struct("!2xH4s")
"""struct sockaddr_in, without its family, which is in the machine's order of bytes."""
_ADDRESS_6 = struct.Struct("!2xHI16s")
_SCOPE = struct.Struct("=I")
_LEAST = {socket.AF_INET: 16, socket.AF_INET6: 28}
"""How long an address is, at least."""
_PROTOCOL = "system.sockprotoname"
_TCP = (b"TCP", b"TCPv6", b"MPTCP", b"MPTCPv6")
_FORBIDDEN = (
    "pidfd_getfd(2) is forbidden here (the container's seccomp profile?), but faults that hit the"
    " answers of a server need it. Docker allows it with --cap-add SYS_PTRACE. ConnectError works"
    " without it"
)
_CLOSE = 7
"""The state of a socket that is not connected: the first byte of TCP_INFO."""
_RECEIVES = ("read", "recvfrom", "recvmsg")


class Peer(NamedTuple):
    """The address of the peer of a connection, as Python's sockets take it."""

    family: socket.AddressFamily
    address: tuple[Any, ...]

    @property
    def path(self) -> str:
        """What globs are about, such as ``tcp://192.0.2.1:443``."""
        return connection_path(*self.address[:2])

    @property
    def is_mapped(self) -> bool:
        """Whether it is one of IPv4, which a socket of IPv6 reaches."""
        return str(self.address[0]).startswith("::ffff:")


def peer_of(call: Syscall) -> Peer | None:
    """Where a connect(2) leads, if its socket is of TCP; None also if the kernel refuses it.

    Raises:
        PermissionError: The supervisor may not inspect the caller.
    """
    link = f"/proc/{call.pid}/fd/{to_signed(call.arguments[0])}"
    try:
        data = read_memory(call.pid, call.arguments[1], min(call.arguments[2] & 0xFFFFFFFF, 28))
        is_tcp = os.getxattr(link, _PROTOCOL).rstrip(b"\0") in _TCP
    except PermissionError:
        raise
    except OSError:  # No address, or no socket.
        return None
    return _parse_address(data) if is_tcp else None


def _parse_address(data: bytes) -> Peer | None:
    family = int.from_bytes(data[:2], sys.byteorder)
    if family not in _LEAST or len(data) < _LEAST[socket.AddressFamily(family)]:
        return None
    if family == socket.AF_INET:
        port, host = _ADDRESS.unpack_from(data)
        return Peer(socket.AF_INET, (socket.inet_ntop(socket.AF_INET, host), port))
    port, flow, host = _ADDRESS_6.unpack_from(data)
    (scope,) = _SCOPE.unpack_from(data, _ADDRESS_6.size)
    name = socket.inet_ntop(socket.AF_INET6, host)
    return Peer(socket.AF_INET6, (name, port, flow, scope))


def duplicate_socket(call: Syscall) -> socket.socket:
    """A duplicate of the socket that *call* should connect."""
    try:
        return socket.socket(fileno=duplicate(call.pid, to_signed(call.arguments[0])))
    except PermissionError as error:
        raise PermissionError(error.errno, _FORBIDDEN) from error


def is_connecting(call: Syscall) -> bool:
    """Whether the socket is being connected already, and *call* checks whether that is over."""
    try:
        with duplicate_socket(call) as connection:
            state = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)
    except OSError:  # Forbidden, or the caller is dead.
        return False
    return state[0] != _CLOSE


def waits_for(pid: int, address: tuple[Any, ...]) -> bool:
    """Whether *pid* waits in recv(2), without a timeout, for what *address* sends.

    Only its main thread counts, which fetches: others may wait for data that is never sent. A
    thread in poll(2) or epoll_wait(2) may have any limit, which cannot be seen from outside.
    """
    try:
        call = proc.running_call(pid)
        return call is not None and _is_wait(pid, call, address)
    except OSError:  # The worker is dead, or the supervisor may not inspect it.
        return False


def _is_wait(pid: int, call: proc.RunningCall, address: tuple[Any, ...]) -> bool:
    if NAMES.get(call.number) not in _RECEIVES:
        return False
    with socket.socket(fileno=duplicate(pid, call.arguments[0])) as connection:
        limit = connection.getsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, 16)
        return not any(limit) and connection.getpeername()[1] == address[1]


def shares_network_namespace(pid: int) -> bool:
    """Whether *pid* has the network namespace of this process."""
    return proc.link(pid, "ns/net") == proc.link("self", "ns/net")
