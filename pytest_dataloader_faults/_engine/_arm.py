"""Put this process under a supervisor's filter, for good [runs in the DataLoader worker].

Some facts about the moment between the filter and the supervisor. From the instruction that
installs the filter, an open(2) of any thread here waits until the supervisor has the listener. So
everything that the handover needs is imported and looked up before, and the handover itself opens
nothing. Descriptors and mappings made earlier are listed first: their low numbers go into the
program.

Some facts about the end of a spawned worker. It finalizes its interpreter, which a forked one does
not. torch leaves the thread that feeds its queue running (``cancel_join_thread`` in
torch/utils/data/_utils/worker.py), and a thread that wants the interpreter lock back once
finalization has begun is unwound. Where that happens in torch's C++, as while a tensor is shared,
the process aborts ("terminate called without an active exception") and the loader reports a death
that no dataset caused: once in 200 epochs that end early, nearly always with many tensors.
"""

from __future__ import annotations

import atexit
import os
import resource
import socket
import stat
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from pytest_dataloader_faults._engine import _bpf
from pytest_dataloader_faults._engine._announce import announce_fetches
from pytest_dataloader_faults._engine._channel import Channel
from pytest_dataloader_faults._engine._linux import (
    ARCHITECTURES,
    MACHINE,
    SYSCALLS,
    filter_this_process,
    map_over,
    wait_holding_the_lock,
)
from pytest_dataloader_faults._engine._paths import Matcher
from pytest_dataloader_faults._engine._plan import Needs

_STANDARD_STREAMS = (0, 1, 2)
_MAX_LISTED = 60
_MAX_SPAN = 8192
_FEEDER_SECONDS = 1.0
"""Past this it waits for the loader to read, which is no C++ of torch's, so it may be unwound."""


@dataclass(frozen=True)
class Posting:
    """What a worker has to know to arm itself. Picklable, for spawn and forkserver."""

    address: str
    supervisor: int
    globs: tuple[str, ...]
    needs: Needs
    stacks: str | None = None

    def connect(self) -> Channel:
        """A connection to the supervisor."""
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        connection.connect(f"\0{self.address}")
        return Channel(connection)


@dataclass(frozen=True)
class Mapping:
    """One line of /proc/self/maps that is a file's."""

    start: int
    length: int
    protection: int
    offset: int
    path: str


class Armed:
    """This process, under its filter."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._epoch = self._begun = 0

    def restart(self) -> None:
        """Count the fetches of an epoch from 1."""
        self._epoch += 1
        self._begun = 0

    def begin(self) -> None:
        """Tell that a fetch begins, and wait for leave to go on."""
        self._begun += 1
        self._ask({"begin": self._begun, "epoch": self._epoch})

    def begin_sample(self, sample: int) -> None:
        """Tell that a sample begins, and wait for leave to go on."""
        self._ask({"sample": sample})

    def _ask(self, question: dict[str, Any]) -> None:
        self._channel.send(question)
        while "close" not in (answer := self._channel.receive())[0]:
            _suffer(answer[0], self._channel.fileno())
        _obey(*answer, mapped=[])

    def end(self, *, ended: bool) -> None:
        """Tell that the fetch is over; *ended*: there are no more."""
        self._channel.send({"done": self._begun, "ended": ended})


def arm(posting: Posting, worker: int, loader: int) -> Armed:
    """Filter this process. What it already holds is dealt with as the supervisor orders."""
    matches = Matcher(posting.globs) if posting.globs else lambda _path: False
    held = list(_held_files(matches))
    mapped = [each for each in _mapped_files() if matches(each.path)]
    base, limit = _high_numbers()
    hello = {
        "worker": worker,
        "loader": loader,
        "pid": os.getpid(),
        "held": held,
        "mapped": [each.path for each in mapped],
        "base": base,
        "limit": limit,
    }
    channel = posting.connect()
    _hand_over(channel, posting, hello)
    orders, descriptors = channel.receive()
    _obey(orders, descriptors, mapped)
    return Armed(channel)


def _hand_over(channel: Channel, posting: Posting, hello: dict[str, Any]) -> None:
    listed = [fd for fd, _path in hello["held"]]
    base = hello["base"]
    if posting.needs.low:
        base, listed = 0, []
    elif len(listed) > _MAX_LISTED:  # A program has at most 4096 instructions.
        base, listed = min(listed), []
    program = _bpf.program(
        SYSCALLS[MACHINE],
        ARCHITECTURES[MACHINE],
        base=base,
        held=listed,
        descriptors=posting.needs.descriptors,
        stats=posting.needs.stats,
        room=posting.needs.room,
    )
    listener = filter_this_process(program, posting.supervisor)
    channel.send(hello, [listener, *(fd for fd, _path in hello["held"][:_MAX_LISTED])])
    os.close(listener)


def _high_numbers() -> tuple[int, int]:
    """Where followed descriptors go: above all that the process makes, below its limit."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    base = min(soft // 2, _MAX_SPAN)
    return base, min(soft, base + _MAX_SPAN)


def _held_files(matches: Callable[[str], bool]) -> Iterator[tuple[int, str]]:
    """Descriptors of matching files that are open already."""
    for name in sorted(os.listdir("/proc/self/fd"), key=int):
        try:
            path = os.readlink(f"/proc/self/fd/{name}")
        except FileNotFoundError:  # The one that listed the folder.
            continue
        if int(name) in _STANDARD_STREAMS:
            continue  # Where a test's output goes is no dataset's.
        if _is_there(path) and matches(path) and _is_regular(int(name)):
            yield int(name), path


def _is_there(path: str) -> bool:
    """Whether *path*, as /proc gives it, is that of a file that has its name still."""
    return path.startswith("/") and not path.endswith(" (deleted)")


def _is_regular(fd: int) -> bool:
    return stat.S_ISREG(os.fstat(fd).st_mode)


def _mapped_files() -> Iterator[Mapping]:
    with open("/proc/self/maps", "rb") as lines:  # Only \n ends a line; \r may be in a name.
        for line in map(os.fsdecode, lines):
            span, rights, offset, _device, _inode, *rest = line.rstrip("\n").split(maxsplit=5)
            if rest and _is_there(rest[0]):
                start, end = (int(number, 16) for number in span.split("-"))
                bits = (bit for bit, right in zip((1, 2, 4), rights, strict=False) if right != "-")
                yield Mapping(start, end - start, sum(bits), int(offset, 16), rest[0])


def _obey(orders: dict[str, Any], descriptors: list[int], mapped: list[Mapping]) -> None:
    """Close, exchange and remap what the supervisor says; its descriptors are ours to close."""
    for fd in orders["close"]:
        os.close(fd)
    for fd, place in orders["replace"]:
        _exchange(fd, descriptors[place])
    for index, place in orders["remap"]:
        each = mapped[index]
        map_over(each.start, each.length, each.protection, descriptors[place], each.offset)
    for fd in descriptors:
        os.close(fd)


def _suffer(task: dict[str, Any], channel: int) -> None:
    """Leave, or stand still until the supervisor writes again."""
    if "exit" in task:
        os._exit(task["exit"])
    if task["hold"]:
        wait_holding_the_lock(channel)


def _exchange(fd: int, source: int) -> None:
    """Make *fd* a descriptor of *source*'s file, at the same offset."""
    offset = os.lseek(fd, 0, os.SEEK_CUR)
    fresh = os.open(f"/proc/self/fd/{source}", os.O_RDONLY | os.O_CLOEXEC)
    os.lseek(fresh, offset, os.SEEK_SET)
    os.dup2(fresh, fd, inheritable=os.get_inheritable(fd))
    os.close(fresh)


class ArmWorker:
    """A ``worker_init_fn`` that arms its worker and then runs the user's own."""

    def __init__(self, posting: Posting, loader: int, then: Callable[[int], object] | None) -> None:
        self._posting = posting
        self._loader = loader
        self._then = then

    def __call__(self, worker: int) -> None:
        """Run in the worker, before it makes its first sample."""
        if self._posting.stacks is not None:
            _dump_stacks_on_signal(self._posting.stacks)
        atexit.register(_let_feeders_end)
        armed = arm(self._posting, worker, self._loader)
        announce_fetches(armed, samples=self._posting.needs.samples)
        if self._then is not None:
            self._then(worker)


def _let_feeders_end() -> None:
    """Give the threads that feed queues (multiprocessing/queues.py) the time to end."""
    for thread in threading.enumerate():
        if thread.name == "QueueFeederThread":
            thread.join(_FEEDER_SECONDS)


def _dump_stacks_on_signal(path: str) -> None:
    """Have this process write its stacks to *path* when asked by signal, even if it is stuck."""
    import faulthandler

    from pytest_dataloader_faults._engine import STACKS_SIGNAL

    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
    faulthandler.register(STACKS_SIGNAL, file=descriptor, all_threads=True)
