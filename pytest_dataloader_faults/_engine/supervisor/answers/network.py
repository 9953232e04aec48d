"""Connections of workers: which fail, and which go through the supervisor [runs in it]."""

from __future__ import annotations

import contextlib
import errno
import os
import select
import socket
import struct
import sys
import threading
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple, TypeVar

from pytest_dataloader_faults._engine.kernel.caller import INVISIBLE, Syscall, duplicate, to_signed
from pytest_dataloader_faults._engine.kernel.linux import NAMES, read_memory
from pytest_dataloader_faults._engine.plan import Operation
from pytest_dataloader_faults._engine.supervisor.answers.http import Answer, HttpRequests
from pytest_dataloader_faults._engine.supervisor.answers.services import SupervisorServices
from pytest_dataloader_faults._engine.supervisor.worker_state import WorkerState
from pytest_dataloader_faults._engine.system import proc
from pytest_dataloader_faults.faults import ConnectError, ConnectionClosed, ConnectionReset
from pytest_dataloader_faults.faults.base import ANSWER, Place
from pytest_dataloader_faults.faults.connections import UNLIMITED_WAITS
from pytest_dataloader_faults.faults.globs import connection_path

# Some facts about faults of a connection. A client waits in poll(2) or epoll_wait(2), mostly with
# its own timeout, and not in recv(2). So a recv(2) that is answered late, or with an errno, does
# not occur on a network: if a peer stalls, each of these calls sees that there is no data. So the
# supervisor makes the connection to the peer itself, and the worker's socket is connected to a
# socket of the supervisor, on the loopback address. The results of the worker's calls are the
# kernel's own.
#
# connect(2) is answered once the peer has accepted, even if the socket must not block: a socket
# that is not connected cannot be made to look like one that is about to be. The worker's own limit
# does not hold meanwhile. So if the peer is slow, the worker makes the connection itself, and no
# fault happens on it. getpeername(2) shows the loopback address.
#
# Each direction of a connection has a thread, which blocks. Whatever it must know or count, it has
# the supervisor's loop look up or count, which alone uses what is known of a worker.


_PATIENCE = 5.0
_ACCEPTED_WITHIN = 0.1
"""Seconds. A server that is there accepts at once, by its kernel, and limits are longer."""
_LATE = "connect to a server that did not accept at once"
_Result = TypeVar("_Result")


def on_connect(worker: WorkerState, call: Syscall, services: SupervisorServices) -> bool:
    """Answer a connect(2), or have a thread do it; False if the kernel should execute it."""
    try:
        peer = peer_of(call)
    except PermissionError:
        worker.unobserved[f"connect {INVISIBLE}"] += 1
        return False
    if peer is None or is_connecting(call):
        return False
    worker.tallies["connections"][peer.path] += 1
    operation = Operation(call.name, peer.path, call.pid)
    if fault := worker.fire_first_due(ConnectError, operation):
        worker.listener.fail(call, fault.errno)
        return True
    if not worker.has_fault_in(peer.path, Place.ANSWER):
        return False
    if not shares_network_namespace(call.pid):
        worker.unobserved["connect in another network namespace"] += 1
        return False
    connection = duplicate_socket(call)
    relayed = Relayed(worker, call, peer, connection, services)
    threading.Thread(target=relayed.run, daemon=True).start()
    return True


def _connect_here(connection: socket.socket, peer: Peer) -> tuple[int, socket.socket]:
    """Connect the worker's *connection* to this process: the result, and our end of it."""
    of_4 = peer.family == socket.AF_INET or peer.is_mapped
    family, host = (socket.AF_INET, "127.0.0.1") if of_4 else (socket.AF_INET6, "::1")
    with socket.create_server((host, 0), family=family, backlog=8) as listening:
        target = f"::ffff:{host}" if peer.is_mapped else host
        number = connection.connect_ex((target, listening.getsockname()[1]))
        if number not in (0, errno.EINPROGRESS):
            raise OSError(number, "a worker's socket cannot be connected to the loopback address")
        listening.settimeout(_PATIENCE)
        while True:
            near, address = listening.accept()
            if address[1] == connection.getsockname()[1]:
                return number, near
            near.close()  # Another process connected first.


# Some facts about the end of a connection. close(2) with SO_LINGER 0 resets it, and drops what is
# not sent yet; with TCP_NOTSENT_LOWAT 1 a socket is writable once all is sent. close(2) of a socket
# that has unread bytes also resets it: an orderly end needs shutdown(2), and reading until the
# other side ends. Both are passed on as received: the end of one direction, and a reset. close(2)
# does nothing to a socket in whose recv(2) another thread waits; shutdown(2) wakes that thread.


_CHUNK = 1 << 18
_NO_LINGER = struct.pack("=ii", 1, 0)
_TCP_NOTSENT_LOWAT = 25


class CutOff(NamedTuple):
    """The connection ends at *offset* of an answer: it is reset, or closed as at its end."""

    offset: int
    is_reset: bool


class Relayed:
    """A connection of *worker*: *near* is our end of its socket, *far* that of its peer's."""

    _near: socket.socket

    def __init__(
        self,
        worker: WorkerState,
        call: Syscall,
        peer: Peer,
        connection: socket.socket,
        services: SupervisorServices,
    ) -> None:
        """*connection*: a duplicate of the socket that *call* should connect to *peer*."""
        self._worker, self._call, self._peer = worker, call, peer
        self._connection, self._services = connection, services
        self._operation = Operation(ANSWER, peer.path)
        self._http = HttpRequests.of(worker, self._operation, self._ask)
        self._far = socket.socket(peer.family, socket.SOCK_STREAM)
        self._is_asked = True
        self._answered_bytes = 0
        """How many bytes of this answer."""
        self._has_ended = self._is_cut = self._is_reset = False

    def _ask(self, action: Callable[[], _Result]) -> _Result:
        """The result of *action* in the supervisor's loop."""
        return self._services.events.call(action)

    def run(self) -> None:
        """Connect, answer the call, and pass on what both sides send."""
        is_connected = False
        with self._far:
            with self._connection, self._reported(self._call):
                is_connected = self._connect_peer() and self._connect_worker()
            if is_connected:
                with self._near, self._reported():
                    self._pass_on()

    @contextlib.contextmanager
    def _reported(self, call: Syscall | None = None) -> Iterator[None]:
        """Report what keeps the connection from being passed on as an error of the run."""
        try:
            yield
        except Exception as error:  # noqa: BLE001  # whatever it is, it must be reported
            self._ask(partial(self._services.on_error, self._worker, call, error))

    def _connect_peer(self) -> bool:
        """Whether the peer has accepted, or is not needed; otherwise the call is answered."""
        listener, call = self._worker.listener, self._call
        self._far.settimeout(_ACCEPTED_WITHIN)
        try:
            self._far.connect(self._peer.address)
        except TimeoutError:
            if self._http is None:
                self._ask(self._leave_to_kernel)
                return False
        except OSError as error:
            self._ask(partial(listener.fail, call, error.errno or errno.EIO))
            return False
        self._far.settimeout(None)
        return listener.is_waiting(call)

    def _leave_to_kernel(self) -> None:
        self._worker.unobserved[_LATE] += 1
        self._worker.listener.continue_syscall(self._call)

    def _connect_worker(self) -> bool:
        listener, call = self._worker.listener, self._call
        number, self._near = _connect_here(self._connection, self._peer)
        for each in (self._near, self._far):
            each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if number:  # EINPROGRESS, of a socket that is not to block.
            self._ask(partial(listener.fail, call, number))
        else:
            self._ask(partial(listener.return_value, call, 0))
        return True

    def _pass_on(self) -> None:
        requests = threading.Thread(target=self._pass_requests, daemon=True)
        requests.start()
        self._pass_answers()
        requests.join()
        if self._is_reset:
            for each in (self._near,) if self._is_cut else (self._near, self._far):
                each.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NO_LINGER)

    def _receive_request(self) -> bytes:
        """What the worker has sent; nothing at the end."""
        try:
            return self._near.recv(_CHUNK)
        except OSError:  # The worker has reset the connection.
            self._is_reset = True
            _shut(self._far, socket.SHUT_RD)
            return b""

    def _pass_requests(self) -> None:
        """Pass on what the worker sends, except for requests that are answered here."""
        with self._reported():
            if self._http is not None:
                for part in self._http.split(self._receive_request, self._may_answer):
                    if not (self._answer(part) if isinstance(part, Answer) else self._send(part)):
                        break
            while data := self._receive_request():
                self._send(data)
        if not self._is_cut:
            _shut(self._far, socket.SHUT_WR)

    def _send(self, data: bytes) -> bool:
        """Whether the peer still gets *data*."""
        self._is_asked = True
        with contextlib.suppress(OSError):  # The peer is gone; the other direction reports it.
            if not self._is_cut:
                self._far.sendall(data)
        return not self._is_cut

    def _may_answer(self) -> bool:
        """Whether the worker would read an answer as the response to its latest request."""
        awaits_another = self._is_asked and self._http is not None and self._http.has_passed
        return not (awaits_another or self._has_ended or self._is_cut)

    def _answer(self, answer: Answer) -> bool:
        """Answer a request in place of the peer, and return whether the connection goes on."""
        self._is_asked = True
        is_whole = self._return(answer.data)
        if is_whole and answer.closes:
            self._cut_off(is_reset=False)
        return not self._is_cut

    def _pass_answers(self) -> None:
        with self._reported():
            while data := self._receive_answer():
                if self._http is not None:
                    self._ask(self._http.expect_others)
                if not self._return(data):
                    return
        self._has_ended = True
        if not self._is_cut:
            _shut(self._near, socket.SHUT_WR)

    def _receive_answer(self) -> bytes:
        try:
            return self._far.recv(_CHUNK)
        except OSError:  # The peer has reset it.
            self._cut_off(is_reset=True)
            return b""

    def _return(self, data: bytes) -> bool:
        """Pass on *data*, which the peer has sent, to the worker; False if no more follows."""
        data, cut, released = self._ask(partial(self._apply_faults, data))
        released.wait()
        with contextlib.suppress(OSError):  # This side is gone; the other direction reports it.
            self._near.sendall(data)
        if cut:
            self._cut_off(is_reset=cut.is_reset)
        return cut is None

    def _apply_faults(self, data: bytes) -> tuple[bytes, CutOff | None, threading.Event]:
        """The part of *data* to pass on, how the connection ends then, and what to wait for."""
        released = threading.Event()
        released.set()
        if self._is_asked:
            self._is_asked, self._answered_bytes = False, 0
            self._hold(released)
        begin = self._answered_bytes
        self._answered_bytes += len(data)
        cut = self._due_cut(begin, self._answered_bytes)
        return data[: cut.offset - begin] if cut else data, cut, released

    def _due_cut(self, begin: int, end: int) -> CutOff | None:
        """Where the answer ends, if that is among its bytes from *begin* to *end*."""
        for kind in (ConnectionReset, ConnectionClosed):
            fault = self._worker.fire_first_due(
                kind, self._operation, lambda fault: begin <= fault.after < end
            )
            if fault:
                return CutOff(fault.after, kind is ConnectionReset)
        return None

    def _hold(self, released: threading.Event) -> None:
        """Have the answer wait for *released*, if a fault is due that delays it."""
        due = self._worker.delay_due(self._operation)
        if due.hangs:
            released.clear()
            self._worker.hung = True
            end_hang = partial(self._end_hang, released)
            self._services.deaths.add_hung(self._worker.loader, end_hang)
        elif due.seconds:
            released.clear()
            self._services.timers.after(due.seconds, released.set)

    def _end_hang(self, released: threading.Event) -> None:
        """The loader has given up, or the scope ends."""
        is_open = self._near.fileno() >= 0
        if is_open and waits_for(self._worker.pid, self._near.getsockname()):
            self._worker.tallies[UNLIMITED_WAITS][self._operation.path] += 1
        released.set()

    def _cut_off(self, *, is_reset: bool) -> None:
        """The peer has closed; the worker gets what was sent before, and then the end."""
        if self._is_cut:
            return
        self._is_cut = True
        _shut(self._far, socket.SHUT_RDWR)
        if not is_reset:
            _shut(self._near, socket.SHUT_WR)
            return
        self._is_reset = True
        self._near.setsockopt(socket.IPPROTO_TCP, _TCP_NOTSENT_LOWAT, 1)
        sent = select.poll()
        sent.register(self._near, select.POLLOUT)
        sent.poll()
        _shut(self._near, socket.SHUT_RD)  # Ends the wait for requests, and nothing else.


def _shut(connection: socket.socket, how: int) -> None:
    with contextlib.suppress(OSError):  # It is not connected any more.
        connection.shutdown(how)


# Some facts about sockets of another process. /proc/PID/fd shows only a number for one, but the
# extended attribute system.sockprotoname of it is the name of its protocol. pidfd_getfd(2), of
# Linux 5.6, returns a duplicate: with that, connect(2) connects the very socket of the other
# process, and TCP_INFO shows its state. Docker allows it to containers with CAP_SYS_PTRACE alone.
# If it is not allowed, each connect(2) counts as the first one of its socket. getaddrinfo(3)
# connects sockets of UDP, to see which address it would have: these are not connections.


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
