"""The supervisor: a process of its own that answers the workers' calls [runs in that process].

Some facts about where it can live. A thread in the filtered process would deadlock: its own calls
are handed over to itself. A thread in the loader's process would wait for the interpreter lock at
each call. So it is a process, outside every filter. When it dies the kernel answers the workers'
calls with ENOSYS, which looks like a strange dataset: the loader's process therefore asks it for
its report, and takes no report for a failure of ours.

It ends when its scope is closed and no filtered process is left, or when the process dies that
drives the loader.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import sys
from dataclasses import replace
from typing import Any

from pytest_dataloader_faults._engine.file_copies import FileCopies
from pytest_dataloader_faults._engine.kernel.linux import MACHINE, SYSCALLS
from pytest_dataloader_faults._engine.kernel.listener import Listener
from pytest_dataloader_faults._engine.kernel.remote_process import BadSyscallError, Syscall
from pytest_dataloader_faults._engine.plan import Plan
from pytest_dataloader_faults._engine.protocol import Channel
from pytest_dataloader_faults._engine.supervisor import inherited_files, python_worker
from pytest_dataloader_faults._engine.supervisor.descriptor_budget import (
    DescriptorBudget,
    RunErrors,
)
from pytest_dataloader_faults._engine.supervisor.events import Events
from pytest_dataloader_faults._engine.supervisor.handshake import Handshake, WorkerAcceptor
from pytest_dataloader_faults._engine.supervisor.on_fetch import FetchStart
from pytest_dataloader_faults._engine.supervisor.on_open import answer
from pytest_dataloader_faults._engine.supervisor.on_read import SupervisorServices
from pytest_dataloader_faults._engine.supervisor.shared_offsets import SharedOffsetBarrier, reports
from pytest_dataloader_faults._engine.supervisor.timers import DeathScheduler, Timers
from pytest_dataloader_faults._engine.supervisor.worker_state import WorkerState, have_done

_NAMES = {number: name for name, number in SYSCALLS.get(MACHINE, {}).items()}


class Supervisor:
    """All that one scope knows."""

    def __init__(self, control: Channel, door: socket.socket, plan: Plan, driver: int) -> None:
        self.control: Channel | None = control
        self.plan = plan
        self.workers: list[WorkerState] = []
        self._errors = RunErrors()
        self.armed = True
        self.black_box: int | None = None
        delays = Timers()
        self.means = SupervisorServices(
            FileCopies(), delays, DeathScheduler(), SharedOffsetBarrier(delays), plan.watch
        )
        self._budget = DescriptorBudget(self._collect, self.means.substitutes.shrink)
        self._draining: dict[str, Any] | None = None
        self._parent = os.pidfd_open(driver)
        self._events = Events()
        self._events.last = control.fileno()
        self._events.watch(control.fileno(), self._on_control)
        self._acceptor = WorkerAcceptor(
            door, self._events, self._budget, self._errors, self._register
        )
        self._events.watch(self._parent, self._on_orphaned)

    def run(self) -> None:
        """Answer until nobody is left to be answered."""
        while self.control is not None or any(worker.alive for worker in self.workers):
            for action, events in self._events.wait(self.means.delays.patience()):
                self._ensure_descriptors()
                action(events)
            self.means.delays.expire()
            self._answer_drain()

    def _ensure_descriptors(self) -> None:
        try:
            self._budget.ensure()
        except OSError as error:
            self._errors.add("looking for descriptors", error)

    def _collect(self) -> None:
        for worker in self.workers:
            worker.collect()

    def _on_orphaned(self, _events: int) -> None:
        """Whoever drove the loader is dead. A worker that is stuck would never notice."""
        for worker in self.workers:
            if worker.alive:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(worker.pid, signal.SIGKILL)
        self.last_words()

    def last_words(self) -> None:
        """End. A trial that is stuck or dead cannot ask for the report: leave it in the box."""
        self._clear_away()
        if self.black_box is not None:
            report = json.dumps({"report": self.to_dict()}).encode()
            os.write(self.black_box, b"\n" + report + b"\n")
        sys.exit(0)

    def _on_control(self, _events: int) -> None:
        assert self.control is not None
        try:
            messages = self.control.ready()
        except (EOFError, ConnectionError):
            self._hang_up()
            return
        for message, _ in messages:
            self._obey(message)

    def _obey(self, message: dict[str, Any]) -> None:
        gates = self.means.gates
        if "waiting" in message:
            place = (message["epoch"], message["nth"])
            gates.waiting(message["loader"], message["waiting"], place)
        elif "release" in message:
            self._release(message["release"])
        elif "drain" in message:
            gates.open(message["drain"])
            self._draining = message
        elif "active" in message:
            self._switch(tuple(message["active"]))
        elif "report" in message:
            if message["finish"]:
                self._disarm()
            self._tell(self.to_dict())

    def _switch(self, active: tuple[int, ...]) -> None:
        """From now on the faults in these places of the schedule can happen, and no other."""
        self.plan = replace(self.plan, active=active)
        for worker in self.workers:
            worker.tallies.active = active
        self._tell({"switched": True})

    def _release(self, loader: int) -> None:
        """*loader* ends its workers: from now on nothing befalls them, or holds them up."""
        for worker in (each for each in self.workers if each.loader == loader):
            worker.armed = False
            python_worker.release(worker)
        self.means.gates.release(loader)

    def _tell(self, answer: dict[str, Any]) -> None:
        assert self.control is not None
        self.control.send(answer)

    def to_dict(self) -> dict[str, Any]:
        """The facts, as plain data."""
        refused = [why for worker in self.workers for why in worker.refused]
        return {"workers": reports(self.workers), "errors": self._errors.texts, "refused": refused}

    def _disarm(self) -> None:
        """From now on, let everything pass."""
        self.armed = False
        for worker in self.workers:
            worker.armed = False
            python_worker.release(worker)
        self.means.gates.release_all()
        self.means.delays.expire(everything=True)
        self._clear_away()

    def _clear_away(self) -> None:
        """Remove what torch leaves behind of shared memory that it did not get."""
        for path in (path for worker in self.workers for path in worker.remains):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)

    def _hang_up(self) -> None:
        assert self.control is not None
        self._disarm()
        self._events.unwatch(self.control.fileno())
        self.control.close()
        self.control = None
        self._acceptor.close()

    def _answer_drain(self) -> None:
        """Tell the loader once every worker that is alive has done what it was sent."""
        asked = self._draining
        if self.control and asked and have_done(self.workers, asked):
            self._draining = None
            of_loader = [each for each in self.workers if each.loader == asked["drain"]]
            dead = [each for each in of_loader if not each.alive]
            early, late = (
                [each.id for each in dead if each.ended is late] for late in (False, True)
            )
            self._tell({"drained": early, "ended": late})

    def _register(self, hello: Handshake, channel: Channel) -> None:
        with contextlib.suppress(ConnectionError):  # It has died since.
            if hello.is_python:
                self._register_python(hello, channel)
            else:
                self._register_filtered(hello, channel)

    def _register_python(self, hello: Handshake, channel: Channel) -> None:
        worker = WorkerState(hello.said, channel, None, self.plan)
        worker.brake = hello.first
        self._enter(worker)
        channel.send({"armed": worker.armed, "active": worker.tallies.active})

    def _enter(self, worker: WorkerState) -> None:
        worker.armed = self.armed
        self.workers.append(worker)
        self._events.watch(worker.channel.fileno(), lambda _events: self._on_messages(worker))
        if not worker.armed:
            python_worker.release(worker)

    def _register_filtered(self, hello: Handshake, channel: Channel) -> None:
        worker = WorkerState(hello.said, channel, Listener(hello.first, _NAMES), self.plan)
        self._enter(worker)
        self._events.watch(hello.first, lambda events: self._on_call(worker, events))
        try:
            if worker.armed:
                self._order(channel, worker, hello)
        except Exception as error:  # noqa: BLE001  # whatever it is, it must be told
            self._failed(worker, None, error)
        channel.send({**inherited_files.DescriptorOrders().message, "more": False})

    def _order(self, channel: Channel, worker: WorkerState, hello: Handshake) -> None:
        """What *worker* is to do with what it holds already."""
        for part in inherited_files.orders(worker, hello.said, hello.held, self.means.substitutes):
            channel.send({**part.message, "more": True}, part.descriptors)
            part.sent()
            self._ensure_descriptors()

    def _on_messages(self, worker: WorkerState) -> None:
        try:
            messages = worker.channel.ready()
        except (EOFError, ConnectionError):
            self._lost(worker)
            return
        for message, _ in messages:
            python_worker.note(worker, message, self.means.gates)
            if "sample" in message:
                worker.sample = message["sample"] if message["alone"] else None
                self._begin(worker, message["sample"])
            elif "begin" in message:
                worker.begin(message["epoch"], message["begin"])
                self._begin(worker, None)
            elif "idle" in message:
                worker.stuck = True
            elif "done" in message:
                worker.done = message["done"]
                worker.ended = worker.ended or message["ended"]

    def _begin(self, worker: WorkerState, sample: int | None) -> None:
        onset = FetchStart(worker, sample, self.means.gates)
        if not worker.armed:
            onset.let_go()
            return
        try:
            onset.meet()
        except Exception as error:  # noqa: BLE001  # whatever it is, it must be told
            self._failed(worker, None, error)
            onset.let_go()

    def _lost(self, worker: WorkerState) -> None:
        worker.alive = False
        self._events.unwatch(worker.channel.fileno())
        worker.channel.close()

    def _on_call(self, worker: WorkerState, events: int) -> None:
        if not events & select.EPOLLIN:  # The last process under this filter is gone.
            self._events.unwatch(worker.listener.fd)
            os.close(worker.listener.fd)
            worker.forget_all()
            return
        call = worker.listener.receive()
        if call is None:
            return
        try:
            if worker.armed:
                answer(worker, call, self.means)
            else:
                worker.listener.go_on(call)
        except Exception as error:  # noqa: BLE001  # whatever it is, it must be told
            self._failed(worker, call, error)

    def _failed(self, worker: WorkerState, call: Syscall | None, error: Exception) -> None:
        """An injection that failed is an error of the run; the caller is not left waiting."""
        if worker.is_gone(call, error):
            return
        if not isinstance(error, BadSyscallError):
            self._errors.add(f"worker {worker.id}, {call.name if call else 'fetch'}", error)
        if call is not None:
            with contextlib.suppress(OSError):  # It was answered before the error came.
                worker.listener.go_on(call)
