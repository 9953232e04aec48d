"""One connection that goes through the supervisor, and the faults of its answers [runs in it].

Some facts about the end of a connection. close(2) with SO_LINGER 0 resets it, and drops what is not
sent yet; with TCP_NOTSENT_LOWAT 1 a socket is writable once all is sent. close(2) of a socket that
has unread bytes resets it, too: an orderly end needs shutdown(2), and reading until the other side
ends. Both are handed on as they come: the end of one direction, and a reset.
"""

from __future__ import annotations

import contextlib
import select
import socket
import struct
from typing import Protocol

from pytest_dataloader_faults._engine.kernel.connections import waits_for
from pytest_dataloader_faults._engine.policy.actions import ANSWER, CutOff, Delay, Hang, Operation
from pytest_dataloader_faults._engine.supervisor.events import DeathScheduler, EventHandler, Timers
from pytest_dataloader_faults._engine.supervisor.worker_state import WorkerState

_CHUNK = 1 << 18
_NO_LINGER = struct.pack("=ii", 1, 0)
_TCP_NOTSENT_LOWAT = 25


class Watcher(Protocol):
    """Who waits for what happens to sockets."""

    timers: Timers
    deaths: DeathScheduler

    def watch(
        self, worker: WorkerState, connection: socket.socket, events: int, handler: EventHandler
    ) -> None:
        """From now on, call *handler* at these *events* alone; 0: at none."""


class _Flow:
    """One direction of a connection: what came from *source* and is to go to *sink*."""

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
        """Whether there is room for more."""
        return not self.data and not self.has_ended

    def receive(self) -> memoryview:
        """What has come, which may be nothing yet."""
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
        watcher: Watcher,
        worker: WorkerState,
        path: str,
        near: socket.socket,
        far: socket.socket,
    ) -> None:
        self._watcher = watcher
        self._worker = worker
        self._operation = Operation(ANSWER, path)
        self._near, self._far = near, far
        self._requests, self._answers = _Flow(near, far), _Flow(far, near)
        self._is_asked = True
        self._came = 0
        """How many bytes of this answer."""
        self._is_held = False
        self._cut: CutOff | None = None
        for each in (near, far):
            each.setblocking(False)
            each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def go_on(self) -> None:
        """Wait for what may happen next, or close what is over."""
        is_half_over = self._requests.has_ended if self._cut else self._requests.is_over
        if self._answers.is_over and is_half_over:
            self.close()
            return
        self._watcher.watch(self._worker, self._near, self._awaited_near(), self._on_near)
        if not self._cut:
            taken = select.EPOLLIN if self._answers.takes and not self._is_held else 0
            given = select.EPOLLOUT if self._requests.data else 0
            self._watcher.watch(self._worker, self._far, taken | given, self._on_far)

    def _awaited_near(self) -> int:
        if self._cut and self._cut.is_reset:
            return 0 if self._is_held else select.EPOLLOUT
        taken = select.EPOLLIN if self._requests.takes else 0
        return taken | (select.EPOLLOUT if self._answers.data and not self._is_held else 0)

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
            if data and not self._cut:
                self._is_asked = True
                self._requests.data = data
        self._hand_on()

    def _on_far(self, events: int) -> None:
        if events & ~select.EPOLLOUT and self._answers.takes and not self._is_held:
            try:
                data = self._answers.receive()
            except OSError:  # The peer has reset it.
                self._cut_off(CutOff(0, is_reset=True))
            else:
                self._answers.data = self._under_faults(data)
        self._hand_on()

    def _hand_on(self) -> None:
        if not self._is_held:
            self._answers.send()
        if not self._cut:
            self._requests.send()
        self.go_on()

    def _under_faults(self, data: memoryview) -> memoryview:
        """What of *data*, which the peer has sent, is to be handed on."""
        policy = self._worker.policy
        if data and self._is_asked:
            self._is_asked, self._came = False, 0
            for action in policy.answered(self._operation):
                self._hold(action)
        begin = self._came
        self._came += len(data)
        cut = policy.cut_off(self._operation, begin, self._came)
        if cut is None:
            return data
        self._cut_off(cut)
        return data[: cut.after - begin]

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
        if self._near.fileno() >= 0 and waits_for(self._worker.pid, self._near.getsockname()):
            self._worker.policy.unlimited_waits.add(self._operation.path)
        self._release()

    def _release(self) -> None:
        self._is_held = False
        if self._near.fileno() >= 0:
            self._hand_on()

    def _cut_off(self, cut: CutOff) -> None:
        """The peer is gone; the worker gets what has come before, and then the end."""
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
        for each, handler in ((self._near, self._on_near), (self._far, self._on_far)):
            if each.fileno() >= 0:
                self._watcher.watch(self._worker, each, 0, handler)
                if reset:
                    with contextlib.suppress(OSError):
                        each.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NO_LINGER)
                each.close()
