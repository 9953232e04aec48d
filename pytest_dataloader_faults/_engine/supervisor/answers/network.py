"""Connections of workers: which ones fail, and those that go through the supervisor [runs in it].

Some facts about faults of a connection. A client waits in poll(2) or epoll_wait(2), mostly with its
own timeout, and not in recv(2). So a recv(2) that is answered late, or with an errno, does not
occur on a network: if a peer stalls, each of these calls sees that there is no data. So the
supervisor makes the connection to the peer itself, and the worker's socket is connected to a socket
of the supervisor, on the loopback address. The results of the worker's calls are the kernel's own.

connect(2) is answered once the peer has accepted, even if the socket must not block: a socket that
is not connected cannot be made to look like one that is about to be. The worker's own limit does
not hold meanwhile. So if the peer is slow, the worker makes the connection itself, and no fault
happens on it. getpeername(2) shows the loopback address.
"""

from __future__ import annotations

import contextlib
import errno
import select
import socket
import struct
from typing import Protocol

from pytest_dataloader_faults._engine.calls import Role
from pytest_dataloader_faults._engine.kernel import sockets
from pytest_dataloader_faults._engine.kernel.caller import Syscall
from pytest_dataloader_faults._engine.kernel.identity import INVISIBLE
from pytest_dataloader_faults._engine.policy import Delay, Fail, Hang, Operation
from pytest_dataloader_faults._engine.policy.network import (
    CONNECT,
    CutOff,
    answer_actions,
    answer_cut_off,
    connect_actions,
)
from pytest_dataloader_faults._engine.supervisor.answers.http import Answer, HttpRequests
from pytest_dataloader_faults._engine.supervisor.answers.services import (
    CallAnswer,
    SupervisorServices,
)
from pytest_dataloader_faults._engine.supervisor.events import DeathScheduler, EventHandler, Timers
from pytest_dataloader_faults._engine.supervisor.worker_state import WorkerState
from pytest_dataloader_faults.faults.base import ANSWER, Place
from pytest_dataloader_faults.faults.connections import UNLIMITED_WAITS

_AT_ONCE = 4
"""The number of sockets that are served before the calls of workers are checked again."""
_PATIENCE = 5.0
_ACCEPTED_WITHIN = 0.1
"""Seconds. A server that is there accepts at once, by its kernel, and limits are longer."""
_LATE = "connect to a server that did not accept at once"


class Relay:
    """The connections of all workers. ``on_error`` gets what kept one from being made."""

    def __init__(self, services: SupervisorServices) -> None:
        self.timers = services.timers
        self.deaths = services.deaths
        self._events = services.events
        self._on_error = services.on_error
        self._ready: select.epoll | None = None
        self._handlers: dict[int, tuple[WorkerState, EventHandler]] = {}

    def connect(self, worker: WorkerState, call: Syscall, peer: sockets.Peer) -> None:
        """Connect the worker's socket to *peer* by way of this process, and answer *call*."""
        connection = sockets.duplicate_socket(call)
        far = socket.socket(peer.family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)

        def connected(_events: int) -> None:
            self.timers.cancel(limit)
            self.watch(worker, far, 0, connected)
            try:
                self._join(worker, call, peer, connection, far)
            except Exception as error:  # noqa: BLE001  # whatever it is, it must be reported
                far.close()
                self._on_error(worker, call, error)
            finally:
                connection.close()

        def give_up_waiting() -> None:
            if HttpRequests.of(worker.policy, Operation(ANSWER, peer.path)):
                connected(0)  # The server is not needed for an answer, and may still accept.
            elif not _can_be_written(far):  # Or it is connected, but not handled yet.
                self.watch(worker, far, 0, connected)
                worker.policy.unobserved[_LATE] += 1
                worker.listener.continue_syscall(call)
                connection.close()
                far.close()

        number = far.connect_ex(peer.address)
        if number in (0, errno.EINPROGRESS):
            self.watch(worker, far, select.EPOLLOUT, connected)
            limit = self.timers.after(_ACCEPTED_WITHIN, give_up_waiting)
        else:
            worker.listener.fail(call, number)
            connection.close()
            far.close()

    def watch(
        self, worker: WorkerState, connection: socket.socket, events: int, handler: EventHandler
    ) -> None:
        """From now on, call *handler* at these *events* alone; 0: at none."""
        fd = connection.fileno()
        is_known = self._handlers.pop(fd, None) is not None
        if self._ready is None:
            self._ready = select.epoll()
            self._events.watch(self._ready.fileno(), self._on_ready)
        if events:
            self._handlers[fd] = worker, handler
            (self._ready.modify if is_known else self._ready.register)(fd, events)
        elif is_known:
            self._ready.unregister(fd)

    def _on_ready(self, _events: int) -> None:
        assert self._ready is not None
        for fd, events in self._ready.poll(0, _AT_ONCE):
            if fd not in self._handlers:  # It has been removed by an earlier event.
                continue
            worker, handler = self._handlers[fd]
            try:
                handler(events)
            except Exception as error:  # noqa: BLE001  # whatever it is, it must be reported
                self._on_error(worker, None, error)
                if self._handlers.pop(fd, None):  # Or it would be reported again and again.
                    self._ready.unregister(fd)

    def _join(
        self,
        worker: WorkerState,
        call: Syscall,
        peer: sockets.Peer,
        connection: socket.socket,
        far: socket.socket,
    ) -> None:
        """The peer has answered. Connect the worker's side, if it still waits for that."""
        number = far.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if not worker.listener.is_waiting(call):
            far.close()
        elif number:
            far.close()
            worker.listener.fail(call, number)
        else:
            number, near = _connect_here(connection, peer)
            Relayed(self, worker, peer.path, near, far).wait_for_more()
            if number:  # EINPROGRESS, of a socket that is not to block.
                worker.listener.fail(call, number)
            else:
                worker.listener.return_value(call, 0)


def _can_be_written(connection: socket.socket) -> bool:
    poll = select.poll()
    poll.register(connection, select.POLLOUT)
    return bool(poll.poll(0))


def _connect_here(connection: socket.socket, peer: sockets.Peer) -> tuple[int, socket.socket]:
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
            near.close()  # Somebody else found the port.


# Some facts about the end of a connection. close(2) with SO_LINGER 0 resets it, and drops what is
# not sent yet; with TCP_NOTSENT_LOWAT 1 a socket is writable once all is sent. close(2) of a socket
# that has unread bytes also resets it: an orderly end needs shutdown(2), and reading until the
# other side ends. Both are passed on as received: the end of one direction, and a reset.


_CHUNK = 1 << 18
_NO_LINGER = struct.pack("=ii", 1, 0)
_TCP_NOTSENT_LOWAT = 25


class _Watcher(Protocol):
    """Who waits for what happens to sockets."""

    timers: Timers
    deaths: DeathScheduler

    def watch(
        self, worker: WorkerState, connection: socket.socket, events: int, handler: EventHandler
    ) -> None:
        """From now on, call *handler* at these *events* alone; 0: at none."""


class _Flow:
    """One direction of a connection: the data from *source* for *sink*."""

    def __init__(self, source: socket.socket, sink: socket.socket) -> None:
        self._source = source
        self._sink = sink
        self.data = memoryview(b"")
        self.has_ended = False
        """Whether *source* sends nothing more."""
        self.is_over = False
        """Whether *sink* gets nothing more."""

    @property
    def takes(self) -> bool:
        """Whether the buffer can hold more."""
        return not self.data and not self.has_ended

    def receive(self) -> memoryview:
        """What has arrived, which may be nothing yet."""
        try:
            data = self._source.recv(_CHUNK)
        except BlockingIOError:
            return memoryview(b"")
        self.has_ended = not data
        return memoryview(data)

    def send(self) -> None:
        """Hand on what there is, and after that the end."""
        try:
            if self.data:
                self.data = self.data[self._sink.send(self.data) :]
            if self.has_ended and not self.data and not self.is_over:
                self.is_over = True
                self._sink.shutdown(socket.SHUT_WR)
        except BlockingIOError:
            pass
        except OSError:  # Nobody is there any more, which the other direction shows.
            self.data, self.has_ended, self.is_over = memoryview(b""), True, True


class Relayed:
    """A connection of *worker*: *near* is our end of its socket, *far* that of its peer's."""

    def __init__(
        self,
        watcher: _Watcher,
        worker: WorkerState,
        path: str,
        near: socket.socket,
        far: socket.socket,
    ) -> None:
        self._watcher = watcher
        self._worker = worker
        self._operation = Operation(ANSWER, path)
        self._http = HttpRequests.of(worker.policy, self._operation)
        self._near, self._far = near, far
        self._requests, self._answers = _Flow(near, far), _Flow(far, near)
        self._is_asked = True
        self._answered_bytes = 0
        """How many bytes of this answer."""
        self._is_held = False
        self._cut: CutOff | None = None
        for connection in (near, far):
            connection.setblocking(False)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def wait_for_more(self) -> None:
        """Wait for what may happen next, or close what is over."""
        is_half_over = self._requests.has_ended if self._cut else self._requests.is_over
        if self._answers.is_over and is_half_over:
            self.close()
            return
        self._watcher.watch(self._worker, self._near, self._awaited_near(), self._on_near)
        if not self._cut:
            readable = select.EPOLLIN if self._answers.takes and not self._is_held else 0
            writable = select.EPOLLOUT if self._requests.data else 0
            self._watcher.watch(self._worker, self._far, readable | writable, self._on_far)

    def _awaited_near(self) -> int:
        if self._cut and self._cut.is_reset:
            return 0 if self._is_held else select.EPOLLOUT
        readable = select.EPOLLIN if self._requests.takes else 0
        return readable | (select.EPOLLOUT if self._answers.data and not self._is_held else 0)

    def _on_near(self, events: int) -> None:
        if self._cut and self._cut.is_reset and not self._answers.data:
            self.close(reset=True)
            return
        if events & ~select.EPOLLOUT and self._requests.takes:
            try:
                data = self._requests.receive()
            except OSError:  # The worker has reset the connection.
                self.close(reset=True)
                return
            if not self._cut:
                self._pass_requests(data)
        self._flush()

    def _pass_requests(self, data: memoryview) -> None:
        """Pass on what the worker has sent, except for requests that are answered here."""
        if self._http is None:
            self._is_asked |= bool(data)
            self._requests.data = data
            return
        passed = b""
        parts = self._http.split(bytes(data), self._may_answer) if data else [self._http.rest()]
        for part in parts:
            if isinstance(part, Answer):
                self._answer(part)
            else:
                self._is_asked |= bool(part)
                passed += part
        if not self._cut:
            self._requests.data = memoryview(passed)

    def _may_answer(self) -> bool:
        """Whether the worker would take an answer for that of its latest request."""
        awaits_another = self._is_asked and self._http is not None and self._http.has_passed
        return not (awaits_another or self._answers.has_ended or self._cut)

    def _answer(self, answer: Answer) -> None:
        """Answer a request in the place of the peer."""
        self._is_asked = True
        data = self._apply_faults(memoryview(answer.data))
        self._answers.data = memoryview(bytes(self._answers.data) + bytes(data))
        if answer.closes and not self._cut:
            self._cut_off(CutOff(len(answer.data), is_reset=False))

    def _on_far(self, events: int) -> None:
        if events & ~select.EPOLLOUT and self._answers.takes and not self._is_held:
            try:
                data = self._answers.receive()
            except OSError:  # The peer has reset it.
                self._cut_off(CutOff(0, is_reset=True))
            else:
                if data and self._http:
                    self._http.expect_others()
                self._answers.data = self._apply_faults(data)
        self._flush()

    def _flush(self) -> None:
        if not self._is_held:
            self._answers.send()
        if not self._cut:
            self._requests.send()
        self.wait_for_more()

    def _apply_faults(self, data: memoryview) -> memoryview:
        """The part of *data*, which the peer has sent, that should be passed on."""
        policy = self._worker.policy
        if data and self._is_asked:
            self._is_asked, self._answered_bytes = False, 0
            for action in answer_actions(policy, self._operation):
                self._hold(action)
        begin = self._answered_bytes
        self._answered_bytes += len(data)
        cut = answer_cut_off(policy, self._operation, begin, self._answered_bytes)
        if cut is None:
            return data
        self._cut_off(cut)
        return data[: cut.offset - begin]

    def _hold(self, action: object) -> None:
        """Let the answer wait."""
        self._is_held = True
        if isinstance(action, Hang):
            self._worker.hung = True
            self._watcher.deaths.add_hung(self._worker.loader, self._end_of_hang)
        elif isinstance(action, Delay):
            self._watcher.timers.after(action.seconds, self._release)

    def _end_of_hang(self) -> None:
        """The loader has given up, or the scope ends."""
        is_open = self._near.fileno() >= 0
        if is_open and sockets.waits_for(self._worker.pid, self._near.getsockname()):
            self._worker.policy.tallies[UNLIMITED_WAITS][self._operation.path] += 1
        self._release()

    def _release(self) -> None:
        self._is_held = False
        if self._near.fileno() >= 0:
            self._flush()

    def _cut_off(self, cut: CutOff) -> None:
        """The peer has closed; the worker gets what was sent before, and then the end."""
        self._watcher.watch(self._worker, self._far, 0, self._on_far)
        self._far.close()
        self._cut = cut
        self._requests.data = memoryview(b"")
        if cut.is_reset:
            self._near.setsockopt(socket.IPPROTO_TCP, _TCP_NOTSENT_LOWAT, 1)
        else:
            self._answers.has_ended = True

    def close(self, *, reset: bool = False) -> None:
        """Close both ends."""
        for connection, handler in ((self._near, self._on_near), (self._far, self._on_far)):
            if connection.fileno() >= 0:
                self._watcher.watch(self._worker, connection, 0, handler)
                if reset:
                    with contextlib.suppress(OSError):
                        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NO_LINGER)
                connection.close()


def on_connect(worker: WorkerState, call: Syscall, services: SupervisorServices) -> bool:
    """Answer a connect(2), or have a ``Relay`` do it; False if the kernel should execute it."""
    try:
        peer = sockets.peer_of(call)
    except PermissionError:
        worker.policy.unobserved[f"connect {INVISIBLE}"] += 1
        return False
    if peer is None or sockets.is_connecting(call):
        return False
    for action in connect_actions(worker.policy, Operation(CONNECT, peer.path, call.pid)):
        if isinstance(action, Fail):
            worker.listener.fail(call, action.errno)
            return True
    if not worker.faults.has_fault_in(peer.path, Place.ANSWER):
        return False
    if not sockets.shares_network_namespace(call.pid):
        worker.policy.unobserved["connect in another network namespace"] += 1
        return False
    services.get(Relay).connect(worker, call, peer)
    return True


ANSWERS: dict[Role, CallAnswer] = {Role.CONNECTS: on_connect}
