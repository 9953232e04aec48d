"""Connections that go through the supervisor, which can hold and cut what a peer sends [in it].

Some facts about faults of a connection. A client waits in poll(2) or epoll_wait(2), mostly under a
time limit of its own, and not in recv(2). So a recv(2) that is answered late, or with an errno, is
nothing that a network does: an answer that stalls is no data, for each of these calls alike. So the
supervisor makes the connection to the peer itself, and the worker's socket is connected to a socket
of the supervisor, on the loopback address. What the worker's calls give is the kernel's own.

connect(2) is answered once the peer has accepted, also where the socket is not to block: a socket
that is not connected cannot be made to look like one that is about to be. The worker's own limit
does not hold meanwhile. So where the peer takes its time, the worker makes the connection itself,
and no fault happens on it. getpeername(2) shows the loopback address.
"""

from __future__ import annotations

import errno
import select
import socket
from collections.abc import Callable

from pytest_dataloader_faults._engine.kernel.connections import Peer, duplicate_of
from pytest_dataloader_faults._engine.kernel.remote_process import Syscall
from pytest_dataloader_faults._engine.supervisor.answers.relayed import Relayed
from pytest_dataloader_faults._engine.supervisor.events import (
    DeathScheduler,
    EventHandler,
    Events,
    Timers,
)
from pytest_dataloader_faults._engine.supervisor.worker_state import WorkerState

_AT_ONCE = 4
"""So many sockets are served before the calls of workers are looked at again."""
_PATIENCE = 5.0
_ACCEPTED_WITHIN = 0.1
"""Seconds. A server that is there accepts at once, by its kernel, and limits are longer."""
_LATE = "connect to a server that did not accept at once"
ErrorHandler = Callable[[WorkerState, "Syscall | None", Exception], None]


class Relay:
    """The connections of all workers. *on_error* gets what kept one from being made."""

    def __init__(
        self, events: Events, timers: Timers, deaths: DeathScheduler, on_error: ErrorHandler
    ) -> None:
        self.timers = timers
        self.deaths = deaths
        self._events = events
        self._on_error = on_error
        self._ready: select.epoll | None = None
        self._handlers: dict[int, tuple[WorkerState, EventHandler]] = {}

    def connect(self, worker: WorkerState, call: Syscall, peer: Peer) -> None:
        """Connect the worker's socket to *peer* by way of this process, and answer *call*."""
        connection = duplicate_of(call)
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

        def let_go() -> None:
            if not _can_be_written(far):  # Or it is connected, and that has not been handled yet.
                self.watch(worker, far, 0, connected)
                worker.policy.unobserved[_LATE] += 1
                worker.listener.continue_syscall(call)
                connection.close()
                far.close()

        number = far.connect_ex(peer.address)
        if number in (0, errno.EINPROGRESS):
            self.watch(worker, far, select.EPOLLOUT, connected)
            limit = self.timers.after(_ACCEPTED_WITHIN, let_go)
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
                if self._handlers.pop(fd, None):  # Or it would come again and again.
                    self._ready.unregister(fd)

    def _join(
        self,
        worker: WorkerState,
        call: Syscall,
        peer: Peer,
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
            Relayed(self, worker, peer.path, near, far).go_on()
            if number:  # EINPROGRESS, of a socket that is not to block.
                worker.listener.fail(call, number)
            else:
                worker.listener.return_value(call, 0)


def _can_be_written(connection: socket.socket) -> bool:
    poll = select.poll()
    poll.register(connection, select.POLLOUT)
    return bool(poll.poll(0))


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
            near.close()  # Somebody else found the port.
