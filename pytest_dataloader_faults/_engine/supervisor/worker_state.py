"""What the supervisor knows of one worker process [runs in the supervisor]."""

from __future__ import annotations

import contextlib
import os
import resource
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace
from typing import Any, TypeVar, cast

from pytest_dataloader_faults._engine import protocol
from pytest_dataloader_faults._engine.channel import Channel
from pytest_dataloader_faults._engine.kernel.caller import (
    PathRequest,
    ProcessMemory,
    Syscall,
    TrackedFile,
)
from pytest_dataloader_faults._engine.kernel.callers_file import Identities
from pytest_dataloader_faults._engine.kernel.syscalls import Listener
from pytest_dataloader_faults._engine.plan import FaultPlan, WorkerFaults
from pytest_dataloader_faults._engine.policy import FaultPolicy
from pytest_dataloader_faults._engine.supervisor.events import Action, DeathScheduler
from pytest_dataloader_faults._engine.supervisor.leftovers import Leftovers
from pytest_dataloader_faults._engine.system.proc import descriptors, family, link
from pytest_dataloader_faults.faults import HungRead
from pytest_dataloader_faults.wire import Firing, WorkerFacts


class AnswerHistory:
    """What answers of one kind remember of a worker. Their modules bring subclasses."""

    def start_fetch(self) -> None:
        """A fetch of the worker starts."""

    def start_sample(self) -> None:
        """A sample of the worker starts."""

    def note_write(self, worker: WorkerState, pid: int, path: str) -> None:
        """*pid*, the *worker* or a process that it started, is about to write to *path*."""

    def notes(self) -> dict[str, dict[str, tuple[str, ...]]]:
        """What ``WorkerFacts.notes`` should contain of it."""
        return {}


_History = TypeVar("_History", bound=AnswerHistory)


class WorkerState:
    """One worker process: its connection, its faults, its files, and how far it is."""

    hang_socket: int | None = None
    """The end of the socket that hanging reads of fake files wait for."""
    limit: int | None = None
    """The worker's limit of descriptors, once a fault has lowered that."""
    earlier_limits: tuple[int, int] | None = None
    """Its soft and its hard limit before."""
    position = (0, 0)
    """The epoch, and which of its fetches has started."""
    sample: int | None = None
    """The index that is being made; None if it is unknown, or if there are several."""
    samples: AbstractSet[int] = frozenset()
    """The indices that are being made, or are about to be."""
    finished = 0
    """The latest fetch of the epoch that is over."""
    makes_batch = False
    """Whether a fetch has started that is not over."""
    queue_threads: Sequence[int] = ()
    """The ids of the threads that feed its queues."""
    alive = True
    """Whether it has not ended."""
    ended = False
    """Whether its stream has ended in this epoch."""
    hung = False
    is_bystander = False
    """Whether no fault fires there: it is the main process, and only starts workers."""
    files: _TrackedFiles
    refused: list[str]
    """Why faults that were due there could not happen."""
    leftover_shm: list[str]
    """Files of shared memory that no process removes once their making has failed."""

    def __init__(
        self,
        hello: protocol.Hello,
        channel: Channel,
        listener: Listener | None,
        plan: FaultPlan,
        parent: WorkerState | None = None,
    ) -> None:
        """*parent*: the process whose filter it is under, if that is not its own."""
        self.id = hello.worker
        self.makes_dataset = hello.worker is None
        """Whether it is the loader's own process, which has not made the dataset yet."""
        self.loader, self.pid = hello.loader, hello.pid
        self.has_peers = hello.workers > 1
        self.is_bystander = hello.bystander
        self.channel = channel
        self._listener = listener
        self.waits = plan.needs.fetches or hello.fakes
        """Whether it waits for ``Proceed`` at each fetch and sample."""
        self.refused = []
        self.faults = WorkerFaults(plan, self.id, bystander=hello.bystander)
        self.policy = self._policy()
        self.keep_low_fds, self.joins = plan.needs.keep_low_fds, parent is not None
        self.files = _files_of(hello, parent, shares=bool(plan.faults))
        self.memory = ProcessMemory(self.pid)
        self.identities = Identities()
        self._known_paths: dict[bytes, str] = {}
        """Files that no fault is about, by absolute path: an open of one only counts."""
        self._known_opens: Counter[str] = Counter()
        """Those opens that ``policy.files`` does not count yet: to count them there takes 1 µs."""
        self.histories: Mapping[type[AnswerHistory], AnswerHistory] = {}
        self.folder_links: defaultdict[str, set[str]] = defaultdict(set)  # By real paths.
        self.leftovers = Leftovers()
        self.read_paths: set[str] = set()
        """What it has opened to read."""
        self._lock_files: set[str] = set()
        """The files that it opened with O_EXCL."""
        self.notes: defaultdict[str, set[str]] = defaultdict(set)
        """What else it did, by the field of ``WorkerFacts``."""
        self.leftover_shm = []

    def _policy(self) -> FaultPolicy:
        policy = FaultPolicy(self.faults, self.id, self.pid, describe=self.describe_firing)
        policy.refuse = self.refuse
        return policy

    @property
    def listener(self) -> Listener:
        """The process that makes its system calls."""
        assert self._listener is not None
        return self._listener

    @property
    def has_own_files(self) -> bool:
        """Whether its tracked files are not those of the process that it joins."""
        return self.files.pid == self.pid

    @property
    def armed(self) -> bool:
        """Whether faults can still happen there."""
        return self.policy.armed

    def history(self, kind: type[_History]) -> _History:
        """What answers of this *kind* remember of the worker."""
        return cast("_History", self.histories[kind])

    def start_fetch(self, fetch: protocol.FetchStarted) -> None:
        """The *fetch* starts."""
        for history in self.histories.values():
            history.start_fetch()
        if fetch.epoch != self.position[0]:
            self.finished, self.ended = 0, False
        self.position = (fetch.epoch, fetch.nth)
        self.makes_batch, self.queue_threads = True, fetch.queue_threads
        self.sample = None
        self.samples = frozenset()
        self.policy.fetch += 1

    def start_sample(self, start: protocol.SampleStarted) -> None:
        """A sample starts, *alone* or as one of several."""
        self.sample = start.sample if start.alone else None
        started: AbstractSet[int] = {start.sample} if start.sample is not None else frozenset()
        self.samples = started if start.alone else self.samples | started
        for history in self.histories.values():
            history.start_sample()

    def note_use(self, request: PathRequest, *, is_there: bool, is_lock: bool) -> None:
        """Note what the worker is about to open: a folder, to read, or to create a file."""
        if request.flags & os.O_DIRECTORY:
            self._note_folder(request.path)
        else:
            self.note_reading(request)
        if request.flags & os.O_CREAT:
            self._note_creation(request.path, is_there=is_there, is_lock=is_lock)

    def note_reading(self, request: PathRequest) -> None:
        """Note that it reads the file of *request*: after a fault it may also log errors there."""
        is_certain = request.flags & os.O_ACCMODE == os.O_RDONLY or not self.policy.fired
        if request.reads and is_certain and len(self.read_paths) < _MOST:
            self.read_paths.add(request.path)

    def _note_folder(self, path: str) -> None:
        """Note that the worker opens the folder *path* now, perhaps to list it."""
        real = os.path.realpath(path)
        if real != path:
            self.folder_links[real].add(path)

    def _note_creation(self, path: str, *, is_there: bool, is_lock: bool) -> None:
        """*path* is about to be opened with O_CREAT; *is_lock*: and with O_EXCL."""
        if is_lock and len(self._lock_files) < _MOST:
            self._lock_files.add(path)  # Whether it is there may change before the kernel looks.
        if not is_there:
            self.leftovers.add(path)

    def finish_fetch(self, fetch: protocol.FetchFinished) -> None:
        """The *fetch* is over, and it may be the last one of the stream."""
        self.finished, self.makes_batch = fetch.nth, False
        self.ended = self.ended or fetch.ended
        self.notes["settings"].update(fetch.settings)

    def has_done(self, epoch: int, count: int) -> bool:
        """Whether the first *count* batches that were requested from it in *epoch* are complete."""
        if not self.alive or self.hung or not count:
            return True
        return self.position[0] == epoch and (self.ended or self.finished >= count)

    def describe_firing(self, pid: int) -> dict[str, Any]:
        """The epoch and the sample of what happens now in *pid*, and its program."""
        epoch: int | None = max(0, self.loader - 1) + max(1, self.position[0])
        if self.id is None and not self.position[0]:
            epoch = 0 if self.makes_dataset else None
        return {"epoch": epoch, "sample": self.sample, "program": self._other_program(pid)}

    def _other_program(self, pid: int) -> str:
        """The program that *pid* runs; "" if it is the worker's, or unknown."""
        try:
            own, other = (link(each, "exe") for each in (self.pid, pid))
        except OSError:
            return ""
        return "" if other == own else os.path.basename(other)

    def proceed(self) -> protocol.Proceed:
        """The message that lets it proceed."""
        return protocol.Proceed(self.armed, self.faults.over)

    def disarm(self) -> None:
        """Let no fault happen there from now on, and no read hang."""
        self.policy.armed = False
        self.release_hung_reads()
        if self.earlier_limits is not None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                resource.prlimit(self.pid, resource.RLIMIT_NOFILE, self.earlier_limits)

    def release_hung_reads(self) -> None:
        """Let hanging reads of fake files continue, and later ones not hang."""
        if self.hang_socket is not None:
            os.close(self.hang_socket)
            self.hang_socket = None

    def add_known_path(self, path: str) -> None:
        """*path* is opened, a file that no fault is about."""
        if len(self._known_paths) >= _MOST:
            self._known_paths.clear()
        self._known_paths[os.fsencode(path)] = path
        self.policy.count_open(path)

    def count_known_open(self, name: bytes) -> bool:
        """Count that *name* is opened; False if a fault may be about it."""
        path = self._known_paths.get(name)
        if path is None:
            return False
        self._known_opens[path] += 1
        return True

    def _count_known_opens(self) -> None:
        files = self.policy.files
        for path, opens in self._known_opens.items():
            files[path] = files[path]._replace(opens=files[path].opens + opens)
        self._known_opens.clear()

    def apply_counts(self, counts: protocol.Counts) -> None:
        """Take over the counters of the worker, which decides about fake files itself.

        Deaths, hangs of the worker and descriptors closed at a sample are counted here. Once the
        worker is disarmed, nothing counts.
        """
        if not self.armed:
            return
        self.policy.files.update(counts.files)
        self.policy.unobserved = Counter(counts.unobserved)
        self.policy.tallies.update(
            {name: Counter(each) for name, each in (counts.tallies or {}).items()}
        )
        for counter, matched in zip(self.faults.all, counts.matched, strict=True):
            counter.matched = matched or counter.matched

    def apply_firing(self, firing: Firing, deaths: DeathScheduler) -> None:
        """Take over what the worker has let happen to fake files."""
        if not self.armed:
            return
        counter = self.faults.all[firing.fault]
        counter.fire(replace(firing, **self.describe_firing(firing.pid)))
        if isinstance(counter.fault, HungRead):
            self.hung = True
            deaths.add_hung(self.loader, self.release_hung_reads)

    def refuse(self, reason: str) -> None:
        """Note why a fault that is due there cannot happen."""
        if reason not in self.refused:
            self.refused.append(reason)

    def answer_if_waiting(self, call: Syscall, answer: Action) -> Action:
        """*answer*, but later. By then the caller may be dead, and the listener closed with it."""

        def answer_if_awaited() -> None:
            if self.listener.is_waiting(call):
                with contextlib.suppress(ProcessLookupError):  # It has died since.
                    answer()

        return answer_if_awaited

    def has_exited(self, call: Syscall | None, error: Exception) -> bool:
        """Whether *error* was raised because the process died while it was inspected."""
        if call is None:
            return isinstance(error, (ProcessLookupError, ConnectionError))
        return not self.listener.is_waiting(call)

    def facts(self, shared: Iterable[str], lengthened: AbstractSet[str]) -> WorkerFacts:
        """What it did; *shared*: what it read by a shared offset; *lengthened*: by any worker."""
        self._count_known_opens()
        policy, histories = self.policy, self.histories.values()
        others: dict[str, Any] = {
            **self.leftovers.facts(),
            **{name: (*sorted(each),) for name, each in self.notes.items()},
        }
        return WorkerFacts(
            self.id,
            self.pid,
            policy.fetch,
            dict(policy.files),
            dict(+policy.unobserved),
            {name: dict(counts) for name, counts in policy.tallies.items()},
            notes={name: each for history in histories for name, each in history.notes().items()},
            shared_offset_files=(*sorted(shared),),
            lengthened_files=(*sorted(lengthened & policy.files.keys()),),
            remaining_locks=(*sorted(filter(os.path.lexists, self._lock_files)),),
            **others,
        )


def _files_of(hello: protocol.Hello, parent: WorkerState | None, *, shares: bool) -> _TrackedFiles:
    """The tracked files of a process that says *hello*, below *parent* if it joins its filter.

    *shares*: whether faults may have hit files that the parent has opened.
    """
    if parent is None:
        return _TrackedFiles(hello.pid, hello.high_fds)
    if parent.is_bystander or not shares:  # Its filter shows where followed descriptors start.
        base = parent.files.base
        return _TrackedFiles(hello.pid, (base, max(base, hello.high_fds[1])))
    # A descriptor that the parent has opened has the same number in its child.
    return parent.files


_MOST = 1000


# Some facts about descriptor numbers. The filter does not notify of close(2), and the kernel gives
# the lowest free number to whatever is opened next, be it a file, a socket or torch's shared
# memory: low numbers soon, high ones once a process has half its limit open. So a number that we
# gave proves nothing by itself. The entry in /proc/PID/fd does: device and inode are those of our
# own duplicate as long as it is that file, under whatever name or none, and as long as we keep the
# duplicate no other file can have them. A process that a worker has forked has its own numbers.
#
# A number that we choose may be taken by another thread before it is given. One that waits in
# accept4(2), as torch's thread that shares descriptors does, has its number already, which /proc
# does not show: ADDFD then fails with EBUSY. If it is quicker than that, ADDFD replaces its own
# file with ours, as dup2(2) would. So numbers are given from the highest down, and from there again
# when some were found to be closed: as far from what the kernel gives as can be. Under a low limit
# that is only far enough if each new file has the very highest number that is free.


_COLLECT_ABOVE = 256


class _TrackedFiles:
    """The tracked files of the process *pid* and its children, by descriptor number.

    Numbers within *high_fds* are given to those that are opened.
    """

    def __init__(self, pid: int, high_fds: tuple[int, int]) -> None:
        self.pid = pid
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
        return file if file is not None and file.is_open_at(pid, number) else None

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
        return self.has_numbers

    @property
    def has_numbers(self) -> bool:
        """Whether there are any numbers to give."""
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
        """The file of *descriptor* was put under *number*, and replaces the tracked one."""
        status = os.fstat(descriptor)
        file = self._files.get(number)
        if file is not None:
            self._files[number] = file._replace(stand_in=(status.st_dev, status.st_ino))

    def stop_sharing(self, pid: int, number: int) -> None:
        """Open the file of *number* again, which shares neither offset nor lock."""
        file = self.at(pid, number)
        if file is not None and file.source is not None and not file.reopened:
            source = os.open(f"/proc/self/fd/{file.source}", os.O_RDONLY | os.O_CLOEXEC)
            os.close(file.source)
            self._files[number] = file._replace(source=source, reopened=True)

    def collect(self, *pids: int) -> None:
        """Forget what no process of this worker, and none of *pids*, has open any longer.

        What was read at an offset stays, because the report lists the other workers with that
        offset.
        """
        at_offset = set(self.read_at_offset.values())
        numbers_by_pid = {pid: descriptors(pid) for pid in {*pids, *family(self.pid)}}
        for number, file in tuple(self._files.items()):
            holders = (pid for pid, numbers in numbers_by_pid.items() if number in numbers)
            if number not in at_offset and not any(file.is_open_at(pid, number) for pid in holders):
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
