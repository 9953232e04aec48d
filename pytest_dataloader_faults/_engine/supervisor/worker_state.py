"""What the supervisor knows of one worker process [runs in the supervisor]."""

from __future__ import annotations

import contextlib
import os
import resource
import tempfile
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from types import MappingProxyType
from typing import Any, NamedTuple

from pytest_dataloader_faults._engine import protocol
from pytest_dataloader_faults._engine.kernel.caller import Identities, PathRequest, Syscall, name_in
from pytest_dataloader_faults._engine.kernel.syscalls import Entry, Listener
from pytest_dataloader_faults._engine.plan import FaultPlan, WorkerFaults
from pytest_dataloader_faults._engine.protocol import Channel
from pytest_dataloader_faults._engine.supervisor.events import Action
from pytest_dataloader_faults._engine.system.proc import file_of, has_lock, link, link_of
from pytest_dataloader_faults.faults.workers import WRITE_LOCKS
from pytest_dataloader_faults.wire import WorkerFacts


class WriteLocks:
    """Which locks one worker, and each process that it started, holds as it writes to a file.

    close(2) is not seen, and it releases a lock. So whether a lock is held is looked up in /proc.
    A request that does not wait fails while another worker holds the lock. A worker that fails to
    get the lock and writes anyway shows just as well which file the lock protects.
    """

    def __init__(self) -> None:
        self._locks: dict[int, str] = {}
        """The files that may be locked, by descriptor number."""
        self._unlocked: set[int] = set()
        self._held: dict[str, frozenset[str]] = {}

    def note_lock(self, number: int, path: str) -> None:
        """The kernel is about to lock *path* by the descriptor *number*."""
        self._locks[number] = path
        self._unlocked.discard(number)

    def note_unlock(self, number: int) -> None:
        """The kernel is about to unlock the file of the descriptor *number*, or a part of it."""
        self._unlocked.add(number)

    def note_write(self, pid: int, path: str) -> None:
        """The process *pid* is about to write to *path*."""
        locks = self._locks.items()
        held = frozenset(lock for number, lock in locks if has_lock(number, pid, lock))
        if any(lock == path and self._is_requested(number, pid) for number, lock in locks):
            held |= {path}
        self._held[path] = held & self._held.get(path, held)

    def _is_requested(self, number: int, pid: int) -> bool:
        try:
            return number not in self._unlocked and link_of(pid, number) == self._locks[number]
        except OSError:  # It is closed, or the process is dead.
            return False

    def notes(self) -> dict[str, dict[str, tuple[str, ...]]]:
        """For each written file, the locks that were held during every write, or its own."""
        by_file = {path: (*sorted(held),) for path, held in self._held.items()}
        return {WRITE_LOCKS: by_file} if by_file else {}


class RefusedAllocation(NamedTuple):
    """An allocation of *size* bytes that failed: how often it was started, and its last *step*."""

    size: int
    starts: int
    step: str


class InheritedFile(NamedTuple):
    """A file that a worker had open when it was armed; *duplicate*: ours, if it has sent one."""

    path: str
    duplicate: int | None = None


class WorkerState(WorkerFaults):
    """One worker process: its connection, its faults, its files, and how far it is."""

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
    originals: Mapping[tuple[int, int], str] = MappingProxyType({})
    """What anonymous copies are copies of, by device and inode."""

    def __init__(
        self,
        hello: protocol.Hello,
        channel: Channel,
        listener: Listener,
        plan: FaultPlan,
        parent: WorkerState | None = None,
    ) -> None:
        """*parent*: the process whose filter it is under, if that is not its own."""
        super().__init__(plan, hello.worker, hello.pid, bystander=hello.bystander)
        self.makes_dataset = hello.worker is None
        """Whether it is the loader's own process, which has not made the dataset yet."""
        self.loader = hello.loader
        self.has_peers = hello.workers > 1
        self.channel = channel
        self.listener = listener
        """What answers its system calls."""
        self._tree = hello.tree
        self.joins = parent is not None
        self._take_files(parent)
        self.identities = Identities()
        self._start_notes()

    def _start_notes(self) -> None:
        self.write_locks = WriteLocks()
        self.memory_taker = 0
        """The thread that gets no memory, because it takes what is free; 0 if there is none."""
        self.refused_allocations: dict[int, RefusedAllocation] = {}
        """By thread, the allocation that failed in its last call that gets memory."""
        self.listings: dict[tuple[int, int], list[Entry]] = {}
        """The entries of folders that are being listed, by process and descriptor."""
        self.shared_folders: dict[tuple[int, int], int] = {}
        """Our own descriptors of such folders, where the worker has a duplicate."""
        self.folder_links: defaultdict[str, set[str]] = defaultdict(set)  # By real paths.
        self._made: set[str] = set()
        """Temporary files that the worker, and each process that it started, has made."""
        self.read_paths: set[str] = set()
        """What it has opened to read."""
        self._lock_files: set[str] = set()
        """The files that it opened with O_EXCL."""
        self.notes: defaultdict[str, set[str]] = defaultdict(set)
        """What else it did, by the field of ``WorkerFacts``."""
        self.leftover_shm: list[str] = []
        """Files of shared memory that no process removes once their making has failed."""

    def _take_files(self, parent: WorkerState | None) -> None:
        self.read_at_offset: dict[str, int] = {}
        """The latest inherited descriptor through whose own offset a file was read."""
        self.has_own_files = parent is None or parent.is_bystander or not self.counters
        """Whether it has other files open than the process whose filter it is under."""
        shared = None if self.has_own_files else parent
        self.inherited: dict[int, InheritedFile] = shared.inherited if shared else {}
        """What it had open when it was armed, by number."""
        self._names: dict[str, str] = shared._names if shared else {}
        """By which link a file was opened, by its path in /proc; "" if it was to be filled."""

    def start_fetch(self, fetch: protocol.FetchStarted) -> None:
        """The *fetch* starts."""
        self.memory_taker = 0
        if fetch.epoch != self.position[0]:
            self.finished, self.ended = 0, False
        self.position = (fetch.epoch, fetch.nth)
        self.makes_batch, self.queue_threads = True, fetch.queue_threads
        self.sample = None
        self.samples = frozenset()
        self.fetch += 1

    def start_sample(self, start: protocol.SampleStarted) -> None:
        """A sample starts, *alone* or as one of several."""
        self.sample = start.sample if start.alone else None
        started: AbstractSet[int] = {start.sample} if start.sample is not None else frozenset()
        self.samples = started if start.alone else self.samples | started
        self.refused_allocations.clear()

    def note_use(self, request: PathRequest, *, is_there: bool, is_lock: bool) -> None:
        """Note what the worker is about to open: a folder, to read, or to create a file."""
        path = request.path
        if not request.flags & os.O_DIRECTORY:
            self.note_reading(request)
        elif (real := os.path.realpath(path)) != path:
            self.folder_links[real].add(path)
        if not request.flags & os.O_CREAT:
            return
        if is_lock and len(self._lock_files) < _MOST:
            self._lock_files.add(path)  # Whether it is there may change before the kernel looks.
        folders = (os.path.join(tempfile.gettempdir(), ""), "/dev/shm/")
        if not is_there and path.startswith(folders) and len(self._made) < _MOST:
            self._made.add(path)

    def note_reading(self, request: PathRequest) -> None:
        """Note that it reads the file of *request*: after a fault it may also log errors there."""
        is_certain = request.flags & os.O_ACCMODE == os.O_RDONLY or not self.fired
        if request.reads and is_certain and len(self.read_paths) < _MOST:
            self.read_paths.add(request.path)

    def note_name(self, request: PathRequest, real: str, *, is_there: bool) -> None:
        """Note that *real* is about to be opened by *request*: globs match a link by its own path.

        What is read back through the descriptor by which a file is filled is none of the dataset's
        input, so it has no path for them.
        """
        is_file = is_there or request.flags & os.O_CREAT
        if request.flags & (os.O_PATH | os.O_DIRECTORY) or not is_file:
            return
        real = name_in(self._tree, real)
        self._names.pop(real, None)
        name = request.path if request.reads and is_there else ""
        if name != real and request.flags & os.O_ACCMODE != os.O_WRONLY:
            self._names[real] = name
            if len(self._names) > _MOST_NAMES:
                del self._names[next(iter(self._names))]

    def path_at(self, pid: int, number: int) -> str:
        """Which file descriptor *number* of *pid* is now, by the path that globs match; or ""."""
        path = self.link_at(pid, number)
        if not path.startswith("/"):  # A pipe, for example.
            return ""
        if path.endswith(UNLINKED) and not os.path.lexists(path):
            original = self.originals.get(file_of(f"/proc/{pid}/fd/{number}"))
            if original is None and os.path.basename(path).startswith("#"):  # Of O_TMPFILE.
                return ""
            path = original or path.removesuffix(UNLINKED)
        return self._names.get(path, path)

    def link_at(self, pid: int, number: int) -> str:
        """What /proc says that descriptor *number* of *pid* is; of a fake file, its fake path."""
        return name_in(self._tree, link_of(pid, number))

    def has_inherited(self, number: int, path: str) -> bool:
        """Whether descriptor *number*, of the file *path*, was open when it was armed."""
        file = self.inherited.get(number)
        return file is not None and path in (file.path, self._names.get(file.path))

    def close_inherited(self, number: int) -> None:
        """Have no part any longer in the lock and the offset of what it inherited as *number*."""
        file = self.inherited.get(number)
        if file is not None and file.duplicate is not None:
            os.close(file.duplicate)
            self.inherited[number] = file._replace(duplicate=None)

    def end(self) -> None:
        """No process of it is left. The report lists who has shared an offset with it."""
        if self.has_own_files:
            for number in self.inherited.keys() - set(self.read_at_offset.values()):
                self.close_inherited(number)

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
        return protocol.Proceed(self.armed, self.over)

    def disarm(self) -> None:
        """Let no fault happen there from now on."""
        self.armed = False
        if self.earlier_limits is not None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                resource.prlimit(self.pid, resource.RLIMIT_NOFILE, self.earlier_limits)

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
        return WorkerFacts(
            self.id,
            self.pid,
            self.fetch,
            dict(self.files),
            dict(+self.unobserved),
            {name: dict(counts) for name, counts in self.tallies.items()},
            notes=self.write_locks.notes(),
            shared_offset_files=(*sorted(shared),),
            lengthened_files=(*sorted(lengthened & self.files.keys()),),
            leftover_files=(*sorted(filter(os.path.lexists, self._made)),),
            remaining_locks=(*sorted(filter(os.path.lexists, self._lock_files)),),
            **{name: (*sorted(each),) for name, each in self.notes.items()},
        )


# Some facts about whose a temporary file is. Others on the machine make and remove theirs at the
# same time, so a listing of the folder before and after proves nothing, and a name such as
# /tmp/tmpk2x9w does not contain the owner's pid. But each is made by an open(2) with O_CREAT of a
# path that is not there, and that is seen. What was renamed or removed since is not left.


_MOST = 1000
_MOST_NAMES = 100_000
UNLINKED = " (deleted)"
"""How /proc marks the path of a file that has lost this name, or never had one."""
