"""What the supervisor knows of one worker process [runs in the supervisor].

Some facts about whose a temporary file is. Others on the machine make and remove theirs at the
same time, so a look into the folder before and after tells nothing; nor is there an owner's pid in
a name such as /tmp/tmpk2x9w. But each is made by an open(2) with O_CREAT of a path that is not
there, and that is seen. What was renamed or removed since is not left.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet
from functools import partial
from typing import Any

from pytest_dataloader_faults._engine import protocol
from pytest_dataloader_faults._engine.kernel.caller import (
    Memory,
    Syscall,
    TrackedFile,
)
from pytest_dataloader_faults._engine.kernel.callers_file import Identities
from pytest_dataloader_faults._engine.kernel.syscalls import Listener
from pytest_dataloader_faults._engine.plan import FileCounter, Plan, WorkerFaults
from pytest_dataloader_faults._engine.policy import FaultPolicy, Moments
from pytest_dataloader_faults._engine.protocol import Channel
from pytest_dataloader_faults._engine.supervisor.events import Action, DeathScheduler, Timers
from pytest_dataloader_faults._engine.system.proc import descriptors, family
from pytest_dataloader_faults.faults import HungRead


class WorkerState:
    """One worker process: its connection, its faults, its files, and how far it is."""

    hang_socket: int | None = None
    """The end of the socket that hanging reads of the python engine wait for."""
    limit: int | None = None
    """Its limit of descriptors, once a fault has lowered that."""
    position = (0, 0)
    """The epoch, and which of its fetches has begun."""
    sample: int | None = None
    """The index that is being made; None if it is unknown, or if there are several."""
    done = 0
    """The latest fetch of the epoch that is over."""
    gone: float | None = None
    """When it ended, by time.monotonic(); None while it lives."""
    ended = False
    """Whether its stream has no more samples in this epoch."""
    hung = False

    def __init__(
        self,
        hello: protocol.Hello,
        channel: Channel,
        listener: Listener | None,
        plan: Plan,
        parent: WorkerState | None = None,
    ) -> None:
        """*parent*: the process whose filter it is under, if that is not its own."""
        self.id = hello.worker
        self.makes_dataset = hello.worker is None
        """Whether it is the loader's own process, which has not made the dataset yet."""
        self.loader = hello.loader
        self.pid = hello.pid
        self.channel = channel
        self._listener = listener
        self.waits = plan.needs.fetches or hello.engine == "python"
        """Whether it waits for ``Proceed`` at each fetch and sample."""
        self.refused: list[str] = []
        """Why faults that were due there could not happen."""
        self.faults = WorkerFaults(plan, self.id)
        self.policy = self._policy()
        self.moments = Moments()
        self.keep_low_fds = plan.needs.keep_low_fds
        self.joins = parent is not None
        # A descriptor that the parent has opened has that number in its child, too.
        self.files: _TrackedFiles
        self.files = parent.files if parent else _TrackedFiles(self.pid, hello.high_fds)
        self.memory = Memory(self.pid)
        self.identities = Identities()
        self.known_paths: dict[bytes, FileCounter] = {}
        """Files that no fault is about, by absolute path: an open of one only counts."""
        self.created = _CreatedFiles()
        self.settings: set[str] = set()
        self.leftover_shm: list[str] = []
        """Files of shared memory that no process removes once their making has failed."""

    def _policy(self) -> FaultPolicy:
        made = FaultPolicy(
            self.faults, self.id, self.pid, timestamp=self.timestamp, fails_mappings=True
        )
        made.refuse, made.on_opened = self.refuse, self.note_open
        return made

    @property
    def listener(self) -> Listener:
        """Where its system calls come from."""
        assert self._listener is not None
        return self._listener

    @property
    def armed(self) -> bool:
        """Whether faults can still happen there."""
        return self.policy.armed

    @property
    def alive(self) -> bool:
        """Whether it has not ended."""
        return self.gone is None

    def start_fetch(self, epoch: int, nth: int, time: float) -> None:
        """The *nth* fetch of *epoch* begins."""
        if epoch != self.position[0]:
            self.done, self.ended = 0, False
        self.position = (epoch, nth)
        self.sample = None
        self.policy.fetch += 1
        self.moments.add(time, "fetch", f"fetch {nth}")

    def note_open(self, path: str) -> None:
        """It opens *path* now."""
        self.moments.add(time.monotonic(), "open", path)

    def finish_fetch(self, fetch: protocol.FetchFinished) -> None:
        """The *fetch* is over, and it may be the last one of the stream."""
        self.done = fetch.nth
        self.ended = self.ended or fetch.ended
        self.settings.update(fetch.settings)

    def has_done(self, epoch: int, count: int) -> bool:
        """Whether nothing more is to come of the first *count* batches asked of it in *epoch*."""
        if not self.alive or self.hung or not count:
            return True
        return self.position[0] == epoch and (self.ended or self.done >= count)

    def timestamp(self) -> dict[str, Any]:
        """The epoch and the sample, for what happens now."""
        epoch: int | None = max(0, self.loader - 1) + max(1, self.position[0])
        if self.id is None and not self.position[0]:
            epoch = 0 if self.makes_dataset else None
        return {"epoch": epoch, "sample": self.sample}

    def proceed(self, *, more: bool = False) -> protocol.Proceed:
        """The message that lets it proceed."""
        return protocol.Proceed(self.armed, self.faults.over, more=more)

    def disarm(self) -> None:
        """Let no fault happen there from now on, and no read hang."""
        self.policy.armed = False
        self.release_hung_reads()

    def release_hung_reads(self) -> None:
        """Let hanging reads of the python engine go on, and no other one hang."""
        if self.hang_socket is not None:
            os.close(self.hang_socket)
            self.hang_socket = None

    def count_known_open(self, path: str) -> None:
        """*path* is opened, a file that no fault is about."""
        if len(self.known_paths) >= _MOST:
            self.known_paths.clear()
        self.known_paths[os.fsencode(path)] = self.policy.count_open(path)

    def apply_counts(self, counts: protocol.Counts) -> None:
        """Take over the counters of the python engine, which decides about files in the worker.

        Deaths, hangs of the worker and descriptors closed at a sample are counted here. Once the
        worker is disarmed, nothing counts.
        """
        if not self.armed:
            return
        for path, numbers in counts.files.items():
            self.policy.files[path] = FileCounter(*numbers)
        self.policy.unobserved = Counter(counts.unobserved)
        self.policy.connections = Counter(counts.connections)
        self.moments.extend(counts.opened, counts.omitted or {})
        for counter, reached in zip(self.faults.all, counts.reached, strict=True):
            counter.reached = reached or counter.reached

    def apply_firing(self, firing: protocol.FaultFired, deaths: DeathScheduler) -> None:
        """Take over what the python engine has let happen in the worker."""
        if not self.armed:
            return
        self.policy.record(firing)
        if isinstance(self.faults.all[firing.fault].fault, HungRead):
            self.hung = True
            deaths.add_hung(self.loader, self.release_hung_reads)

    def refuse(self, reason: str) -> None:
        """Note why a fault that is due there cannot happen."""
        if reason not in self.refused:
            self.refused.append(reason)

    def unless_gone(self, call: Syscall, answer: Action) -> Action:
        """*answer*, for later. By then the caller may be dead, and the listener closed with it."""

        def answer_if_awaited() -> None:
            if self.listener.is_waiting(call):
                with contextlib.suppress(ProcessLookupError):  # It has died since.
                    answer()

        return answer_if_awaited

    def has_exited(self, call: Syscall | None, error: Exception) -> bool:
        """Whether *error* came because the process died while it was looked at."""
        if call is None:
            return isinstance(error, (ProcessLookupError, ConnectionError))
        return not self.listener.is_waiting(call)

    def to_dict(self) -> dict[str, Any]:
        """The facts, as plain data."""
        return {
            "worker": self.id,
            "pid": self.pid,
            "fetches": self.policy.fetch,
            "files": {path: counts.numbers() for path, counts in self.policy.files.items()},
            "unobserved": dict(+self.policy.unobserved),
            "connections": dict(self.policy.connections),
            "unlimited_waits": sorted(self.policy.unlimited_waits),
            "leftover_files": self.created.left(),
            "settings": sorted(self.settings),
            "faults": [each.to_dict() for each in self.faults.all],
        }

    def course(self) -> protocol.Course:
        """What happened when."""
        kept, omitted = self.moments.kept()
        early = self.armed and not self.alive and not self.ended
        unnoted = sum(each.fired - len(each.firings) for each in self.faults.all)
        return protocol.Course(self.id, self.pid, self.gone, early, kept, omitted, unnoted)


class IdleWait:
    """Answers the loader's process when workers have done what they were sent, or hang.

    Attributes:
        asked: What is to be answered; None if it was.
    """

    def __init__(self, timers: Timers) -> None:
        self.asked: protocol.WaitUntilIdle | None = None
        self._timers = timers

    def answer(self, workers: Sequence[WorkerState]) -> protocol.Idle | None:
        """The answer, if it is time for it."""
        asked = self.asked
        if asked is None:
            return None
        idle = _all_idle(workers, asked)
        if idle is not None:
            self.asked = None
        elif asked.patience is not None and _may_wait_for_hung(workers, asked):
            self.asked = asked._replace(patience=None)
            self._timers.after(asked.patience, partial(self._stop, self.asked))
        return idle

    def _stop(self, asked: protocol.WaitUntilIdle) -> None:
        """Wait for no worker any more, if *asked* is not answered yet."""
        if self.asked is asked:
            self.asked = asked._replace(sent=())


def _all_idle(
    workers: Iterable[WorkerState], asked: protocol.WaitUntilIdle
) -> protocol.Idle | None:
    """The answer to *asked*, once each of *workers* has made the batches that it was sent."""
    of_loader = [each for each in workers if each.loader == asked.loader]
    latest = {each.id: each for each in of_loader}
    for worker, count in asked.sent:
        if worker not in latest or not latest[worker].has_done(asked.epoch, count):
            return None
    dead = [each for each in of_loader if not each.alive]
    ended = [(each.id, each.ended) for each in dead if each.id is not None]
    early, in_time = ([id_ for id_, is_end in ended if is_end is end] for end in (False, True))
    return protocol.Idle(early, in_time)


def _may_wait_for_hung(workers: Iterable[WorkerState], asked: protocol.WaitUntilIdle) -> bool:
    """Whether one of *workers* hangs, and each of the others has begun a batch."""
    latest = {each.id: each for each in workers if each.loader == asked.loader}
    known = [latest.get(worker) for worker, count in asked.sent if count]
    have_begun = all(each and (each.hung or each.position[0] == asked.epoch) for each in known)
    return have_begun and any(each.alive and each.hung for each in latest.values())


_MOST = 1000


class _CreatedFiles:
    """What one worker, and each process that it started, has made."""

    def __init__(self) -> None:
        self._folders = (os.path.join(tempfile.gettempdir(), ""), "/dev/shm/")
        self._paths: set[str] = set()

    def add(self, path: str, *, is_there: bool) -> None:
        """*path* is about to be opened with O_CREAT."""
        makes = not is_there and path.startswith(self._folders)
        if makes and len(self._paths) < _MOST:
            self._paths.add(path)

    def left(self) -> list[str]:
        """Those that are still there."""
        return sorted(filter(os.path.lexists, self._paths))


# Some facts about descriptor numbers. close(2) is not handed over, and the kernel gives the lowest
# free number to whatever is opened next, be it a file, a socket or torch's shared memory: low
# numbers soon, high ones once a process has half its limit open. So a number that we gave tells
# nothing by itself. What /proc/PID/fd has under it does: device and inode are those of our own
# duplicate as long as it is that file, under whatever name or none, and as long as we keep the
# duplicate no other file can have them. A process that a worker has forked has numbers of its own.
#
# A number that we choose may be taken by another thread before it is given. One that waits in
# accept4(2), as torch's thread that shares descriptors does, has its number already, which /proc
# does not show: ADDFD then fails with EBUSY. If it is quicker than that, ADDFD puts our file in
# the place of its own, as dup2(2) would. So numbers are given from the highest down, and from
# there again when some were found to be closed: as far from what the kernel gives as can be. Under
# a low limit that is only far enough if each new file has the very highest number that is free.


_COLLECT_ABOVE = 256


class _TrackedFiles:
    """The tracked files of the process *pid* and its children, by descriptor number.

    Numbers within *high_fds* are given to those that are opened.
    """

    def __init__(self, pid: int, high_fds: tuple[int, int]) -> None:
        self._pid = pid
        self._files: dict[int, TrackedFile] = {}
        self.read_at_offset: dict[str, int] = {}
        """The latest inherited descriptor through whose own offset a file was read."""
        self.base = high_fds[0]
        self._numbers: Sequence[int] = range(*high_fds)[::-1]
        self._next = 0
        is_wide = len(self._numbers) >= 2 * _COLLECT_ABOVE
        self._collect_above = _COLLECT_ABOVE if is_wide else 0

    def add(self, number: int, path: str, source: int | None, *, inherited: bool = False) -> None:
        """Track *number*, which is *path*; *source*, our duplicate, is closed with it."""
        self._forget(number)
        self._files[number] = TrackedFile(path, source, inherited)

    def get(self, number: int) -> TrackedFile | None:
        """The file that had *number* when it was last seen."""
        return self._files.get(number)

    def at(self, pid: int, number: int) -> TrackedFile | None:
        """The tracked file that *number* is in process *pid*, if it is one."""
        file = self._files.get(number)
        return file if file is not None and file.is_at(pid, number) else None

    def next_high_fd(self, pid: int, busy: AbstractSet[int] = frozenset()) -> int:
        """A high number that no process of this worker uses, and none of *busy*."""
        if len(self._files) > self._collect_above:
            self.collect(pid)
            self._collect_above = max(self._collect_above, 2 * len(self._files))
        for _ in range(2):
            if (number := self._free_number(pid, busy)) is not None:
                return number
            self.collect(pid)
        raise RuntimeError(
            f"the worker (pid {pid}) has {len(self._files)} faulted files open, no number is left"
        )

    def limit(self, soft: int) -> bool:
        """Give numbers below *soft* only; whether there are any."""
        self._numbers = [number for number in self._numbers if number < soft]
        self._next = 0
        return bool(self._numbers)

    def _free_number(self, pid: int, busy: AbstractSet[int]) -> int | None:
        for _ in self._numbers:
            number = self._numbers[self._next % len(self._numbers)]
            self._next += 1
            is_known = number in self._files or number in busy
            if not is_known and not os.path.lexists(f"/proc/{pid}/fd/{number}"):
                return number
        return None

    def set_stand_in(self, number: int, descriptor: int) -> None:
        """The file of *descriptor* was put under *number*, in place of the tracked one."""
        there = os.fstat(descriptor)
        file = self._files.get(number)
        if file is not None:
            self._files[number] = file._replace(stand_in=(there.st_dev, there.st_ino))

    def stop_sharing(self, pid: int, number: int) -> None:
        """Replace our duplicate of *number* by an opening that shares neither offset nor lock."""
        file = self.at(pid, number)
        if file is not None and file.source is not None and not file.reopened:
            source = os.open(f"/proc/self/fd/{file.source}", os.O_RDONLY | os.O_CLOEXEC)
            os.close(file.source)
            self._files[number] = file._replace(source=source, reopened=True)

    def collect(self, *more: int) -> None:
        """Forget what no process of this worker, and none of *more*, has open any longer.

        What was read at an offset stays, since the report says who else has that offset.
        """
        kept = set(self.read_at_offset.values())
        used = {pid: descriptors(pid) for pid in {*more, *family(self._pid)}}
        for number, file in tuple(self._files.items()):
            holders = (pid for pid, numbers in used.items() if number in numbers)
            if number not in kept and not any(file.is_at(pid, number) for pid in holders):
                self._forget(number)
        self._next = 0

    def forget_all(self) -> None:
        """No process of it is left. What was read at an offset stays, as in ``collect``."""
        for number in self._files.keys() - set(self.read_at_offset.values()):
            self._forget(number)

    def _forget(self, number: int) -> None:
        file = self._files.pop(number, None)
        if file is not None and file.source is not None:
            os.close(file.source)
