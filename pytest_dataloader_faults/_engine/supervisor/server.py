"""The supervisor: a separate process that answers the workers' calls [runs in that process]."""

from __future__ import annotations

import contextlib
import errno
import math
import os
import resource
import select
import sys
import time
import traceback
from collections.abc import Iterable
from functools import partial

from pytest_dataloader_faults import wire
from pytest_dataloader_faults._engine import protocol
from pytest_dataloader_faults._engine.kernel.caller import BadSyscallError, Syscall
from pytest_dataloader_faults._engine.kernel.linux import file_clock
from pytest_dataloader_faults._engine.kernel.syscalls import FakePathListener, Listener
from pytest_dataloader_faults._engine.plan import FaultPlan, sum_facts
from pytest_dataloader_faults._engine.protocol import Channel, Hello, ToLoader
from pytest_dataloader_faults._engine.supervisor.answers import answer
from pytest_dataloader_faults._engine.supervisor.answers.files import is_plain_read
from pytest_dataloader_faults._engine.supervisor.answers.workers import (
    FetchStart,
    SupervisorServices,
    give_orders,
)
from pytest_dataloader_faults._engine.supervisor.events import Events
from pytest_dataloader_faults._engine.supervisor.races import shared_files
from pytest_dataloader_faults._engine.supervisor.refusals import Refusals, SharedFiles
from pytest_dataloader_faults._engine.supervisor.worker_state import WorkerState
from pytest_dataloader_faults._engine.system.proc import nearest
from pytest_dataloader_faults._engine.system.processes import kill_with_children
from pytest_dataloader_faults._engine.system.temporary import SharedCount
from pytest_dataloader_faults.outcomes.stages import FileHistory

# Some facts about where it can live. A thread in the filtered process would deadlock: it would have
# to answer its own calls. A thread in the main process would wait for the GIL at each call. So it
# is a process, outside every filter. When it dies the kernel answers the workers' calls with
# ENOSYS, which looks like a strange dataset: the main process therefore requests its report, and a
# missing report is a failure of the harness.
#
# It ends when its scope is closed, or the process that drives the loader is dead, and no filtered
# process is left; that of a trial when its warden ends it, or is dead.


_SHORTAGES = (errno.EMFILE, errno.ENFILE)
_NO_DESCRIPTOR = (
    "the supervisor (pid {pid}) has no file descriptor left [{name}, its limit of {limit}], so some"
    " faults may not have fired. Raise the hard limit (ulimit -Hn, LimitNOFILE=), or use fewer"
    " workers"
)


class Supervisor:
    """Serves one scope. When it is ended, it writes its report to *report_fd*."""

    def __init__(
        self,
        control: Channel,
        door: Channel,
        plan: FaultPlan,
        driver: int,
        report_fd: int | None = None,
        files: SharedFiles | None = None,
    ) -> None:
        self.control: Channel | None = control
        self._door = door
        self.plan = plan
        self.workers: list[WorkerState] = []
        self.armed = True
        self._over = self._has_reported = False
        self._report_fd = report_fd
        self._errors: list[str] = []
        self._events = Events()
        self.services = SupervisorServices(self._events, self._on_error, plan)
        self._callers: dict[int, WorkerState] = {}
        """Of threads and processes under the filter of the main process: whose they are."""
        self._listeners: set[int] = set()
        """The descriptors of filters that a process still has."""
        self._unanswered: protocol.WaitUntilIdle | None = None
        files = files or SharedFiles(SharedCount(), FileHistory([(file_clock(), math.inf)]))
        watched = (self.workers, self.services.timers, self._write, driver)
        self._refusals = Refusals(plan, files, *watched)
        self._events.last = control.fileno()
        self._events.watch(control.fileno(), self._on_control)
        self._events.watch(door.fileno(), self._on_hello)
        self._driver_fd = os.pidfd_open(driver)
        self._events.watch(self._driver_fd, self._on_orphaned)

    def run(self) -> None:
        """Serve the scope and its workers. The supervisor of a trial is ended by its warden."""
        is_of_trial = self._report_fd is not None
        while is_of_trial or self.control is not None or any(each.alive for each in self.workers):
            self._handle_events()

    def run_for_others(self) -> None:
        """Let the calls continue of what outlives the workers that started it.

        The processes of torch that keep the names of shared memory do, and what a user starts.
        """
        while self._listeners:
            self._handle_events()

    def _handle_events(self) -> None:
        with self._events.lock:  # Another thread may add a timer meanwhile.
            timeout = self.services.timers.timeout()
        for action, events in self._events.wait(timeout):
            action(events)
        with self._events.lock:
            self.services.timers.expire()
            self._answer_if_idle()

    def _note_error(self, where: str, error: BaseException) -> None:
        """Note as an error of the run what could not be injected, and why."""
        text = f"{where}: {''.join(traceback.format_exception(error, limit=-3))}"
        if isinstance(error, OSError) and error.errno in _SHORTAGES:
            _, limit = resource.getrlimit(resource.RLIMIT_NOFILE)
            name = errno.errorcode[error.errno]
            text = _NO_DESCRIPTOR.format(pid=os.getpid(), name=name, limit=limit)
        if text not in self._errors:
            self._errors.append(text)

    def _on_orphaned(self, _events: int) -> None:
        """The main process is dead. A worker that hangs would never notice."""
        self._kill_workers()
        self._events.unwatch(self._driver_fd)
        if self._report_fd is not None:
            self.report()
        elif self.control is not None:  # A process that was forked may still have the other end.
            self._hang_up()

    def _kill_workers(self) -> None:
        for worker in self.workers:
            if worker.alive:
                kill_with_children(worker.pid)

    def report(self) -> None:
        """Write the final report once, which a hung or dead trial cannot request."""
        if not self._has_reported:
            self._has_reported = True
            self._write(self._report())

    def end(self) -> None:
        """Exit. Processes whose calls are answered are killed before."""
        self._kill_workers()
        self._refusals.end(of_trial=self._report_fd is not None)
        self._remove_leftover_shm()
        sys.exit(0)

    def _write(self, event: protocol.ToJournal) -> None:
        """Write *event* to the journal of the trial, if there is one."""
        if self._report_fd is not None:
            os.write(self._report_fd, wire.encode(event))

    def _on_control(self, _events: int) -> None:
        assert self.control is not None
        try:
            message, _ = self.control.receive()
        except (EOFError, ConnectionError):
            self._hang_up()
            return
        deaths = self.services.deaths
        match message:
            case protocol.AwaitingBatch():
                position = (message.epoch, message.nth)
                deaths.set_awaited(message.loader, message.worker, position)
            case protocol.ReleaseLoader():
                self._release(message.loader)
            case protocol.WaitUntilIdle():
                deaths.release_deaths(message.loader)
                self._unanswered = message
            case protocol.EndFaults():
                self._end_faults()
            case protocol.DatasetMade():
                for worker in self.workers:
                    worker.makes_dataset = False
                self._reply(protocol.Done())
            case protocol.GetReport():
                if message.finish:
                    self._disarm()
                self._reply(self._report())

    def _end_faults(self) -> None:
        self._over = True
        for worker in self.workers:
            worker.over = True
        self._reply(protocol.Done())

    def _release(self, loader: int) -> None:
        """*loader* ends its workers: from now on, faults do not fire there or keep them waiting."""
        for worker in (each for each in self.workers if each.loader == loader):
            worker.disarm()
        self.services.deaths.release(loader)

    def _reply(self, answer: ToLoader) -> None:
        assert self.control is not None
        # A loader that has exited does not need an answer; its closed socket is the next event.
        with contextlib.suppress(ConnectionError):
            self.control.send(answer)

    def _report(self) -> protocol.WorkerReports:
        followed = (each for each in self.workers if not each.is_bystander)
        workers = sorted(followed, key=lambda each: (-1 if each.id is None else each.id, each.pid))
        faults = [
            sum_facts(fault, [each.counters[index] for each in workers])
            for index, fault in enumerate(self.plan.faults)
        ]
        shared, lengthened = shared_files(workers), self.services.copies.lengthened_files()
        processes = [each.facts(shared[each.pid], lengthened) for each in workers]
        refused = [why for worker in self.workers for why in worker.refused]
        kept = self._refusals.noted
        return protocol.WorkerReports(faults, processes, self._errors, refused, kept)

    def _disarm(self) -> None:
        self.armed = False
        for worker in self.workers:
            worker.disarm()
        self.services.deaths.release_all()
        self.services.timers.expire(everything=True)
        self._remove_leftover_shm()

    def _remove_leftover_shm(self) -> None:
        """Remove what torch leaves behind of shared memory that it did not get."""
        for path in (each for worker in self.workers for each in worker.leftover_shm):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)

    def _hang_up(self) -> None:
        assert self.control is not None
        self._disarm()
        self._events.unwatch(self.control.fileno())
        self.control.close()
        self.control = None
        if self._report_fd is None:  # Otherwise another process of the trial may follow.
            self._close_door()

    def _close_door(self) -> None:
        self._events.unwatch(self._door.fileno())
        self._door.close()

    def _answer_if_idle(self) -> None:
        """Answer the main process when workers have done what they were sent, or hang."""
        request = self._unanswered
        if request is None or self.control is None:
            return
        if (idle := _all_idle(self.workers, request)) is not None:
            self._unanswered = None
            self._reply(idle)
        elif request.patience is not None and _may_wait_for_hung(self.workers, request):
            self._unanswered = request._replace(patience=None)
            stop = partial(self._stop_waiting, self._unanswered)
            self.services.timers.after(request.patience, stop)

    def _stop_waiting(self, request: protocol.WaitUntilIdle) -> None:
        """Stop waiting for workers if *request* is not answered yet."""
        if self._unanswered is request:
            self._unanswered = request._replace(sent=())

    def _on_hello(self, _events: int) -> None:
        """A process has armed itself, and is a worker or the main process."""
        try:
            hello, descriptors = self._door.receive()
        except EOFError:  # Nobody has the other end any longer.
            self._close_door()
        except OSError as error:
            self._note_error("a worker that starts", error)
        else:
            self._register_worker(hello, descriptors)

    def _register_worker(self, hello: Hello, descriptors: list[int]) -> None:
        listener_fd = None if hello.joins else descriptors.pop(0)
        channel = Channel.of(descriptors.pop(0))
        worker = self._make_worker(hello, listener_fd, channel)
        worker.over |= self._over
        worker.on_fired = self._refusals.start
        worker.originals = self.services.copies.originals
        self.workers.append(worker)
        self._callers.clear()
        if not worker.is_bystander:
            self._write(protocol.WorkerArmed(worker.pid, time.monotonic()))
        self._events.watch(channel.fileno(), lambda _events: self._on_messages(worker))
        if not self.armed:
            worker.disarm()
        with contextlib.suppress(ConnectionError):  # It has died since.
            if listener_fd is not None:
                self._listeners.add(listener_fd)
                self._events.watch_calls(listener_fd, lambda events: self._on_call(worker, events))
            try:
                if worker.armed:
                    give_orders(worker, hello, descriptors, self.services.copies)
            except Exception as error:  # noqa: BLE001  # whatever it is, it must be reported
                self._on_error(worker, None, error)
            channel.send(worker.proceed())

    def _make_worker(self, hello: Hello, listener_fd: int | None, channel: Channel) -> WorkerState:
        if listener_fd is None:
            # Nothing joins a filter before there is one.
            parent = next(each for each in reversed(self.workers) if each.id is None)
            return WorkerState(hello, channel, parent.listener, self.plan, parent)
        tree = hello.tree
        listener = FakePathListener(listener_fd, tree) if tree else Listener(listener_fd)
        return WorkerState(hello, channel, listener, self.plan)

    def _calling_worker(self, owner: WorkerState, call: Syscall) -> WorkerState:
        """Whose *call* is, of *owner* and the workers that are under its filter."""
        if owner.id is not None:
            return owner
        if call.pid not in self._callers:
            joined = {each.pid: each for each in self.workers if each.joins and each.alive}
            pid = nearest(call.pid, joined) if joined else None
            self._callers[call.pid] = owner if pid is None else joined[pid]
        return self._callers[call.pid]

    def _on_messages(self, worker: WorkerState) -> None:
        try:
            for message in worker.channel.arrived():  # The next one may be about a call.
                self._handle_worker(worker, message)
        except (EOFError, ConnectionError):
            self._on_disconnect(worker)

    def _handle_worker(self, worker: WorkerState, message: object) -> None:
        match message:
            case protocol.SampleStarted():
                worker.start_sample(message)
                if message.sample is not None:
                    self._start(worker, message.sample)
            case protocol.FetchStarted():
                worker.start_fetch(message)
                if self.services.races:
                    self.services.races.note_start(worker)
                self._start(worker, None)
            case protocol.FetchFinished():
                worker.finish_fetch(message)
            case protocol.WorkerIdle():
                worker.hung = True
            case protocol.TakesFreeMemory():
                worker.memory_taker = message.thread

    def _start(self, worker: WorkerState, sample: int | None) -> None:
        if not self.plan.needs.fetches:  # It does not wait for ``Proceed``.
            return
        start = FetchStart(worker, sample, self.services.deaths)
        try:
            start.process()
        except Exception as error:  # noqa: BLE001  # whatever it is, it must be reported
            self._on_error(worker, None, error)
            start.proceed()

    def _on_disconnect(self, worker: WorkerState) -> None:
        worker.alive = False
        self._callers.clear()
        if worker.joins:  # The listener is not its own, and will not show it.
            worker.end()
        self._events.unwatch(worker.channel.fileno())
        worker.channel.close()

    def _on_call(self, worker: WorkerState, events: int) -> None:
        if not events & select.POLLIN:  # The last process under this filter has ended.
            self._listeners.remove(worker.listener.fd)
            self._events.unwatch(worker.listener.fd)
            os.close(worker.listener.fd)
            worker.end()
            return
        call = worker.listener.receive()
        if call is None:
            return
        worker = self._calling_worker(worker, call)
        try:
            if is_plain_read(worker, call):
                worker.listener.continue_syscall(call)
            elif not self._refusals.refuse(worker, call):
                if worker.armed:
                    answer(worker, call, self.services)
                else:
                    worker.listener.continue_syscall(call)
        except Exception as error:  # noqa: BLE001  # whatever it is, it must be reported
            self._on_error(worker, call, error)

    def _on_error(self, worker: WorkerState, call: Syscall | None, error: Exception) -> None:
        """Report an injection that failed as an error of the run, and let the caller continue."""
        if worker.has_exited(call, error):
            return
        if not isinstance(error, BadSyscallError):
            self._note_error(f"worker {worker.id}, {call.name if call else 'fetch'}", error)
        if call is not None:
            with contextlib.suppress(OSError):  # It was answered before the error was raised.
                worker.listener.continue_syscall(call)


def _all_idle(
    workers: Iterable[WorkerState], request: protocol.WaitUntilIdle
) -> protocol.Idle | None:
    """The answer to *request*, once each of *workers* has made the batches that it was sent."""
    of_loader = [each for each in workers if each.loader == request.loader]
    latest = {each.id: each for each in of_loader}
    for worker, count in request.sent:
        if worker not in latest or not latest[worker].has_done(request.epoch, count):
            return None
    dead = [each for each in of_loader if not each.alive]
    ended = [(each.id, each.ended) for each in dead if each.id is not None]
    early, in_time = ([id_ for id_, is_end in ended if is_end is end] for end in (False, True))
    return protocol.Idle(early, in_time)


def _may_wait_for_hung(workers: Iterable[WorkerState], request: protocol.WaitUntilIdle) -> bool:
    """Whether one of *workers* hangs, and each of the others has started a batch."""
    latest = {each.id: each for each in workers if each.loader == request.loader}
    awaited_workers = [latest.get(worker) for worker, count in request.sent if count]
    have_begun = all(
        each and (each.hung or each.position[0] == request.epoch) for each in awaited_workers
    )
    return have_begun and any(each.alive and each.hung for each in latest.values())
