"""Facts of /proc about processes, this one and others: see proc(5). All of it is read here.

Unless a function says otherwise, it raises the OSError of a process that has ended, or that this
one may not inspect.
"""

from __future__ import annotations

import contextlib
import glob
import os
import re
import signal
import stat
from array import array
from collections.abc import Callable, Collection, Iterator
from typing import NamedTuple, TypeAlias

# Some facts about inspecting a process. One that is stopped has the state T in /proc/PID/stat (t
# under a debugger): its sockets stay open and accept messages, but it does not answer. The second
# number in /proc/PID/task/TID/schedstat is the time in nanoseconds that a thread waited in a run
# queue. Until the dead are waited for, their folders are root's.


Pid: TypeAlias = "int | str"
"""A process id, or ``"self"``."""


def _read(path: str) -> str:
    with open(path, encoding="utf-8", errors="replace") as file:
        return file.read()


def _fields(path: str) -> dict[str, str]:
    """A file of lines such as ``Name:  value``."""
    lines = (line.partition(":") for line in _read(path).splitlines())
    return {name: value.strip() for name, colon, value in lines if colon}


_STALE = (
    "/proc belongs to another PID namespace, so its numbers mean other processes: mount the /proc"
    " of this namespace, for example with unshare --mount-proc"
)
_CLOSED = (
    "/proc hides this process from other processes of the same user: either the user can run the"
    " interpreter but not read it (chmod a+r), or the process changed its user and has not called"
    " execve(2) since"
)


def explain_unusable_procfs() -> str | None:
    """Why nothing can be learnt here of the processes that this one starts; None if it can."""
    try:
        pid = os.readlink("/proc/self")
    except OSError:
        return "/proc is not mounted: mount -t proc proc /proc"
    if pid != str(os.getpid()):
        return _STALE
    # What a process that may not be traced has in /proc is root's.
    return None if os.access("/proc/self/environ", os.R_OK) else _CLOSED


class Status(NamedTuple):
    """The contents of /proc/PID/status. Identities are numbers as text, and those for files.

    Attributes:
        process: The process that the thread is of.
        caught: The signals that have a handler: a bit for each, from signal 1 on.
        user: The user's id.
        group: The group's id.
        groups: The ids of the other groups.
        capabilities: The effective ones: a bit for each.
    """

    process: int
    caught: int
    user: str
    group: str
    groups: frozenset[str]
    capabilities: int


def status(pid: Pid) -> Status:
    """Read /proc/PID/status."""
    fields = _fields(f"/proc/{pid}/status")
    user, group = (fields[name].split()[3] for name in ("Uid", "Gid"))
    caught, capabilities = (int(fields[name], 16) for name in ("SigCgt", "CapEff"))
    groups = frozenset(fields["Groups"].split())
    return Status(int(fields["Tgid"]), caught, user, group, groups, capabilities)


def link(pid: Pid, name: str) -> str:
    """What the link *name* in /proc/PID leads to, such as ``"ns/mnt"``."""
    return os.readlink(f"/proc/{pid}/{name}")


def set_own_name(name: str) -> None:
    """Have ps(1) show *name* for this process, as far as it may be traced."""
    with contextlib.suppress(OSError), open("/proc/self/comm", "w", encoding="utf-8") as file:
        file.write(name)


# How it is.


def state_of(pid: int) -> str | None:
    """The letter of its state; None if it has ended."""
    return _state_and_parent(pid)[0]


def _state_and_parent(pid: int) -> tuple[str | None, int]:
    try:
        state, parent = _read(f"/proc/{pid}/stat").rpartition(")")[2].split()[:2]
    except (OSError, ValueError):
        return None, 0
    return state, int(parent)


def nearest(pid: int, among: Collection[int]) -> int | None:
    """The process of *among* that *pid*, which may be a thread's, is or descends from most closely.

    None if it descends from none of them, or has ended.
    """
    if pid not in among:
        with contextlib.suppress(OSError):
            pid = status(pid).process
    while pid and pid not in among:
        pid = _state_and_parent(pid)[1]
    return pid or None


def is_dead(pid: int) -> bool:
    """Whether it has ended, even if its parent has not waited for it yet."""
    return state_of(pid) in (None, "Z", "X")


def signal_that_ended(pid: int) -> int:
    """The signal that ended a process which is not waited for yet; 0 if none did.

    SIGKILL is the one for a process that has ended, whose parent cannot have waited for it.
    """
    try:
        fields = _read(f"/proc/{pid}/stat").split()
    except OSError:
        return signal.SIGKILL
    return os.WTERMSIG(int(fields[-1]))  # Its wait status is the last field.


def is_stopped(pid: int) -> bool:
    """Whether it is stopped until it gets SIGCONT."""
    return state_of(pid) in ("T", "t")


def threads(pid: int) -> list[str]:
    """The ids of its threads."""
    return os.listdir(f"/proc/{pid}/task")


def threads_that_block(pid: int, number: int) -> set[str]:
    """Those of its threads that block the signal *number* now; none if it has ended."""
    blocking = set()
    with contextlib.suppress(OSError):
        for thread in threads(pid):
            blocked = int(_fields(f"/proc/{pid}/task/{thread}/status")["SigBlk"], 16)
            if blocked >> (number - 1) & 1:
                blocking.add(thread)
    return blocking


def has_signal_to_handle(thread: int) -> bool:
    """Whether a signal is pending for *thread* that a handler waits for; false if it has ended."""
    try:
        fields = _fields(f"/proc/{thread}/status")
    except OSError:
        return False
    own, shared, blocked, caught = (
        int(fields[name], 16) for name in ("SigPnd", "ShdPnd", "SigBlk", "SigCgt")
    )
    return bool((own | shared) & ~blocked & caught)


def family(pid: int) -> Iterator[int]:
    """*pid* and its descendants, as far as they are still its own; *pid* alone if it has ended."""
    yield pid
    try:
        ids = threads(pid)
    except (FileNotFoundError, ProcessLookupError):
        return
    for thread in ids:
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            children = _read(f"/proc/{pid}/task/{thread}/children").split()
            for child in map(int, children):
                yield from family(child)


# What it does.


def seconds_without_cpu(pid: int) -> float:
    """The longest time for which a thread of *pid* was ready to run, but waited for a processor.

    A kernel without CONFIG_SCHED_INFO does not show it, and neither does a process that has ended.
    """
    seconds = 0.0
    for path in glob.iglob(f"/proc/{pid}/task/*/schedstat"):
        with contextlib.suppress(OSError):
            seconds = max(seconds, int(_read(path).split()[1]) / 1e9)
    return seconds


def seconds_used(pid: int) -> float:
    """How long its main thread had a processor; 0 if that is unknown."""
    with contextlib.suppress(OSError):
        return int(_read(f"/proc/{pid}/schedstat").split()[0]) / 1e9
    return 0.0


def bytes_read(pid: int) -> int:
    """How many bytes read(2) and similar calls have given it; 0 if that is unknown."""
    with contextlib.suppress(OSError):
        return int(_fields(f"/proc/{pid}/io")["rchar"])
    return 0


def bytes_written(pid: int) -> int:
    """How many bytes it has passed to write(2) and similar calls; 0 if that is unknown."""
    with contextlib.suppress(OSError):
        return int(_fields(f"/proc/{pid}/io")["wchar"])
    return 0


class RunningCall(NamedTuple):
    """The system call that a thread is in."""

    number: int
    arguments: tuple[int, ...]


def running_call(pid: int) -> RunningCall | None:
    """The system call of its main thread; None if that is in none."""
    return parse_call(_read(f"/proc/{pid}/task/{pid}/syscall"))


def parse_call(text: str) -> RunningCall | None:
    """The same, from the contents of /proc/PID/syscall."""
    words = text.split()
    if not words or not words[0].isdecimal():
        return None
    return RunningCall(int(words[0]), tuple(int(word, 16) for word in words[1:7]))


def waits_in(pid: int) -> str:
    """The kernel's function that its main thread waits in; "" if in none, or if that is unknown."""
    with contextlib.suppress(OSError):
        return _read(f"/proc/{pid}/task/{pid}/wchan").strip("0\n")
    return ""


# What it has open.


def descriptors(pid: Pid) -> set[int]:
    """The descriptor numbers in use; none if the process has ended."""
    try:
        return {int(name) for name in os.listdir(f"/proc/{pid}/fd")}
    except (FileNotFoundError, ProcessLookupError):
        return set()
    except PermissionError:
        if pid == "self" or not is_dead(int(pid)):
            raise
        return set()


def limit_for_headroom(numbers: set[int], headroom: int) -> int:
    """The RLIMIT_NOFILE that leaves *headroom* free numbers, given those in *numbers*."""
    limit = headroom
    for number in sorted(numbers):
        limit += number <= limit
    return limit


def link_of(pid: Pid, fd: int | str) -> str:
    """What descriptor *fd* is: a path, or a kind of kernel object with its number."""
    return link(pid, f"fd/{fd}")


def holds_file_lock() -> bool:
    """Whether this process holds a lock of a file, and does not only wait (``->``) for it."""
    with contextlib.suppress(OSError):
        return bool(re.search(rf": \w.* {os.getpid()} ", _read("/proc/locks")))
    return False


def descriptor_links(pid: Pid = "self") -> dict[str, str]:
    """The same of all its descriptors, by their numbers."""
    links = {}
    for name in os.listdir(f"/proc/{pid}/fd"):
        # One was closed since, or is the one that listed the folder.
        with contextlib.suppress(FileNotFoundError):
            links[name] = link_of(pid, name)
    return links


def mount_points() -> set[str]:
    """Where something is mounted, as this process sees it; empty if /proc does not show it."""
    try:
        lines = _read("/proc/self/mountinfo").splitlines()
    except OSError:
        return set()
    escaped = (line.split(" ")[4] for line in lines)
    return {re.sub(r"\\([0-7]{3})", lambda code: chr(int(code[1], 8)), each) for each in escaped}


def file_of(file: int | str) -> tuple[int, int]:
    """The device and the inode of a descriptor, or of a path."""
    status = os.stat(file)
    return status.st_dev, status.st_ino


class DescriptorInfo(NamedTuple):
    """The contents of /proc/PID/fdinfo/FD: O_* flags, and the offset in bytes."""

    flags: int
    offset: int


def fd_info(fd: int, pid: Pid = "self") -> DescriptorInfo:
    """Read /proc/PID/fdinfo/FD, of which these are the first two lines."""
    file = os.open(f"/proc/{pid}/fdinfo/{fd}", os.O_RDONLY | os.O_CLOEXEC)
    try:  # By system calls, as the supervisor needs it at reads.
        _, offset, _, flags, *_ = os.read(file, 64).split()
    finally:
        os.close(file)
    return DescriptorInfo(int(flags, 8), int(offset))


def has_lock(fd: int, pid: Pid, path: str) -> bool:
    """Whether *fd* of *pid* is the file *path*, and is locked by it."""
    try:
        return link_of(pid, fd) == path and "lock" in _fields(f"/proc/{pid}/fdinfo/{fd}")
    except OSError:  # It is closed, or the process is dead.
        return False


def is_write_only(fd: int, pid: Pid = "self") -> bool:
    """Whether nothing can be read from *fd*, as from a log, or from where pytest's output goes."""
    return fd_info(fd, pid).flags & os.O_ACCMODE == os.O_WRONLY


def inherited_fds(matches: Callable[[str], bool]) -> Iterator[tuple[int, str]]:
    """Descriptors of matching files that are open already in this process."""
    for fd, path in sorted((int(name), path) for name, path in descriptor_links().items()):
        if fd in (0, 1, 2):
            continue  # The file with a test's output does not belong to a dataset.
        if _is_there(path) and matches(path) and stat.S_ISREG(os.fstat(fd).st_mode):
            yield fd, path


def _is_there(path: str) -> bool:
    """Whether *path*, as /proc shows it, is that of a file that still has its name."""
    return path.startswith("/") and not path.endswith(" (deleted)")


_OWN = r"/proc/(?:self|thread-self|(\d+))"
_FOLDER_LINK = re.compile(rf"(?:{_OWN}(?:/task/\d+)?|/dev)/(cwd|root|fd/\d+)/+(.*)", re.DOTALL)
_DESCRIPTOR = re.compile(rf"(?:{_OWN}|/dev)/fd/(\d+)")


def resolve_folder_link(path: str, pid: int) -> str:
    """*path* as process *pid* uses it, not by way of a link such as /proc/self/cwd.

    That link is followed where it comes first. Symbolic links that lead to one are not.
    """
    while match := _FOLDER_LINK.fullmatch(path):
        path = os.path.join(link(match[1] or pid, match[2]), match[3])
    return path


def parse_descriptor_path(path: str, pid: int) -> tuple[Pid, int] | None:
    """The process and the descriptor of *path*, as *pid* uses it; None for other paths."""
    match = _DESCRIPTOR.fullmatch(path)
    return (match[1] or pid, int(match[2])) if match else None


# What it has in memory.


class MemoryMapping(NamedTuple):
    """One line of /proc/self/maps that is a file's."""

    start: int
    length: int
    protection: int
    offset: int
    path: str


_MAPPING = re.compile(rb"^(\w+)-(\w+) (\S+) (\w+) \S+ \d+ +(/.*)$", re.MULTILINE)
_FILE_NAME = re.compile(rb"/.*")  # Only \n ends a line; \r may be in a name.
_PROTECTION = {b"r": 1, b"w": 2, b"x": 4}


def inherited_mappings(matches: Callable[[str], bool]) -> Iterator[MemoryMapping]:
    """Each stretch of memory that is a matching file's, where the file has its name still.

    A process with torch has 400 of them. So names are checked first, each of them once.
    """
    with open("/proc/self/maps", "rb") as file:
        text = file.read()
    paths = {name: _mapped_path(name) for name in {*_FILE_NAME.findall(text)}}
    matching = {name: path for name, path in paths.items() if _is_there(path) and matches(path)}
    for *numbers, rights, offset, name in _MAPPING.findall(text) if matching else ():
        if name in matching:
            start, end = (int(number, 16) for number in numbers)
            protection = sum(bit for letter, bit in _PROTECTION.items() if letter in rights)
            yield MemoryMapping(start, end - start, protection, int(offset, 16), matching[name])


def _mapped_path(name: bytes) -> str:
    r"""The file behind *name*. The kernel writes \012 for a newline, but a backslash as it is."""
    path = os.fsdecode(name)
    if r"\012" in path and not os.path.lexists(path):
        return path.replace(r"\012", "\n")
    return path


def end_of_heap(pid: Pid) -> int:
    """The address up to which brk(2) has extended the memory of *pid*; 0 if it has no heap."""
    end = 0
    with open(f"/proc/{pid}/maps", "rb", buffering=1024) as lines:  # What follows is not read.
        for line in lines:
            if line.endswith(b" [heap]\n"):
                end = int(line.split(b" ")[0].partition(b"-")[2], 16)
            elif end:  # The kernel may list it in several parts.
                break
    return end


class PrivateMemory(NamedTuple):
    """A stretch of anonymous memory; *resident*: how many bytes of it are in RAM."""

    start: int
    end: int
    resident: int


_PRIVATE = re.compile(
    r"^([0-9a-f]+)-([0-9a-f]+) rw-p \S+ \S+ 0 +(?:\[heap\])?\n"
    r"(?:[A-Z]\w+: .*\n)*?Anonymous: +(\d+) kB",
    re.MULTILINE,
)


def private_memory(pid: Pid = "self") -> Iterator[PrivateMemory]:
    """That of a process which it may write, but its stacks."""
    return parse_private_memory(_read(f"/proc/{pid}/smaps"))


def parse_private_memory(text: str) -> Iterator[PrivateMemory]:
    """The same, from the contents of /proc/PID/smaps."""
    for start, end, resident in _PRIVATE.findall(text):
        yield PrivateMemory(int(start, 16), int(end, 16), int(resident) << 10)


PAGE = os.sysconf("SC_PAGE_SIZE")
"""Bytes of a page of memory."""
_UNSHARED, _OF_FILE, _PRESENT = 1 << 56, 1 << 61, 1 << 63
_SPARSE = 64
"""A stretch with so many times as much address space as memory is only reserved."""


def unshared_pages(pid: Pid) -> set[int]:
    """The pages of private memory that no other process has, by the number of their address."""
    pages: set[int] = set()
    with open(f"/proc/{pid}/pagemap", "rb", buffering=0) as file:
        for start, end, resident in private_memory(pid):
            if end - start > _SPARSE * resident:
                continue
            first, count = start // PAGE, (end - start) // PAGE
            entries = array("Q", os.pread(file.fileno(), 8 * count, 8 * first))
            pages.update(page for page, entry in enumerate(entries, first) if _is_unshared(entry))
    return pages


def _is_unshared(entry: int) -> bool:
    return entry & (_UNSHARED | _OF_FILE | _PRESENT) == _UNSHARED | _PRESENT


def memory_of(pid: Pid, parts: Collection[str]) -> int:
    """Bytes: the sum of those *parts* of its memory which /proc/PID/smaps_rollup has."""
    memory = _fields(f"/proc/{pid}/smaps_rollup")
    return sum(int(memory[part].split()[0]) << 10 for part in parts if part in memory)


def memory_left() -> int | None:
    """Bytes of memory that this machine has left; None if unknown."""
    value = _fields("/proc/meminfo").get("MemAvailable")
    return None if value is None else int(value.split()[0]) << 10
