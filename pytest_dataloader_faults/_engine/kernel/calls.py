"""What each system call that the engine knows does, and the filter that hands calls over. Pure.

The filter, the answers and ``policy.py`` use the table. The numbers of the calls, which differ by
machine, are in ``kernel/linux.py``. Arguments are numbered from 0.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum, auto
from typing import NamedTuple

from pytest_dataloader_faults._engine.kernel import linux
from pytest_dataloader_faults._engine.system.libc import Prctl
from pytest_dataloader_faults.faults.base import Place


class Role(Enum):
    """Why the engine handles a call."""

    OPENS = auto()
    """It opens a file by its path."""
    TRANSFERS = auto()
    """It reads, maps or writes a file by its descriptor, or makes what was written last."""
    DUPLICATES = auto()
    """It makes another descriptor of the one that is its first argument."""
    LOCKS = auto()
    """It locks the open file description of the descriptor that is its first argument.

    fcntl(2) locks as well, but duplicates descriptors by other commands.
    """
    UNOBSERVABLE = auto()
    """It starts something that the filter cannot see.

    recvmsg(2) would also be one if another process attaches a descriptor (SCM_RIGHTS). But its
    arguments do not show that, and torch itself calls it for each tensor of a batch.
    """
    CONNECTS = auto()
    """It connects the socket that is its first argument."""
    CHANGES_IDENTITY = auto()
    """It changes which file a path means to a process, and whether it may open it."""
    STARTS = auto()
    """It starts a thread or a process, as its flags say, perhaps with other files."""
    ALLOCATES = auto()
    """It makes a descriptor of something else than a file with a path."""
    EXAMINES = auto()
    """It examines a file by its path, or reads or changes its attributes: mode, owner, times..."""
    LISTS = auto()
    """It lists the folder of the descriptor that is its first argument."""
    GROWS = auto()
    """It gets memory that no file backs, or makes reserved memory usable."""
    RESERVES = auto()
    """It reserves space for a file; torch reserves shared memory with it."""
    CHANGES = auto()
    """It changes which names a folder has, or takes bytes from a file."""


class Call(NamedTuple):
    """One system call.

    *reads_fd*, *writes_fd*: the descriptor of the file that it reads from, or writes to.
    *buffers*: how its second and third argument name its memory, by an address and a length, or by
    the address of an array of struct iovec and its length; "" if neither length nor data is known.
    *offset_at*: where in the file, if it does not use the offset of the descriptor.
    *has_data*: it moves data; otherwise it reserves space, or makes earlier writes durable.
    *path_at*: the path; an argument before it is the folder that it is relative to.
    *flags_at*: O_*, AT_*, RWF_* or RENAME_* flags; of openat2(2), the struct that has them.
    *new_path_at*: a second path, which it makes or replaces.
    *result_at*: the struct to fill in. *number_at*: the number that a new descriptor should get.
    """

    role: Role
    reads_fd: int | None = None
    writes_fd: int | None = None
    buffers: str = ""
    offset_at: int | None = None
    has_data: bool = True
    path_at: int | None = None
    flags_at: int | None = None
    new_path_at: int | None = None
    result_at: int | None = None
    number_at: int | None = None

    @property
    def reads_into_buffers(self) -> bool:
        """Whether it is a read that can be short: its offset and its length are known."""
        return self.reads_fd is not None and self.buffers != ""

    @property
    def writes_buffers(self) -> bool:
        """Whether it is a write that can be short: its length is known."""
        return self.writes_fd is not None and self.buffers != ""

    @property
    def shares_offset(self) -> bool:
        """Whether it is a read that is always at the offset of the descriptor."""
        return self.reads_into_buffers and self.offset_at is None


_ONE, SEVERAL = "one", "several"
_IDENTITY = (
    *("chroot", "pivot_root", "unshare", "setns", "capset", "prctl"),
    *("setuid", "setgid", "setreuid", "setregid", "setresuid", "setresgid", "setfsuid"),
    *("setfsgid", "setgroups"),
)

_ATTRIBUTES = (
    *("readlink", "chmod", "chown", "lchown"),
    *("listxattr", "llistxattr", "getxattr", "lgetxattr"),
    *("setxattr", "lsetxattr", "removexattr", "lremovexattr"),
)

CHANGING_ATTRIBUTES = (
    *("chmod", "fchmodat", "chown", "lchown", "fchownat", "utimensat"),
    *("setxattr", "lsetxattr", "removexattr", "lremovexattr"),
)
"""The calls that change attributes of a file, instead of reading them."""

CALLS = {
    "open": Call(Role.OPENS, path_at=0, flags_at=1),
    "creat": Call(Role.OPENS, path_at=0),
    "openat": Call(Role.OPENS, path_at=1, flags_at=2),
    "openat2": Call(Role.OPENS, path_at=1, flags_at=2),
    "read": Call(Role.TRANSFERS, reads_fd=0, buffers=_ONE),
    "pread64": Call(Role.TRANSFERS, reads_fd=0, buffers=_ONE, offset_at=3),
    "readv": Call(Role.TRANSFERS, reads_fd=0, buffers=SEVERAL),
    "preadv": Call(Role.TRANSFERS, reads_fd=0, buffers=SEVERAL, offset_at=3),
    "preadv2": Call(Role.TRANSFERS, reads_fd=0, buffers=SEVERAL, offset_at=3, flags_at=5),
    "mmap": Call(Role.TRANSFERS, reads_fd=4, writes_fd=4),
    "sendfile": Call(Role.TRANSFERS, reads_fd=1, writes_fd=0),
    "copy_file_range": Call(Role.TRANSFERS, reads_fd=0, writes_fd=2),
    "splice": Call(Role.TRANSFERS, reads_fd=0, writes_fd=2),
    "write": Call(Role.TRANSFERS, writes_fd=0, buffers=_ONE),
    "pwrite64": Call(Role.TRANSFERS, writes_fd=0, buffers=_ONE, offset_at=3),
    "writev": Call(Role.TRANSFERS, writes_fd=0, buffers=SEVERAL),
    "pwritev": Call(Role.TRANSFERS, writes_fd=0, buffers=SEVERAL, offset_at=3),
    "pwritev2": Call(Role.TRANSFERS, writes_fd=0, buffers=SEVERAL, offset_at=3, flags_at=5),
    "fallocate": Call(Role.RESERVES, writes_fd=0, has_data=False),
    "fsync": Call(Role.TRANSFERS, writes_fd=0, has_data=False),
    "fdatasync": Call(Role.TRANSFERS, writes_fd=0, has_data=False),
    "dup": Call(Role.DUPLICATES),
    "dup2": Call(Role.DUPLICATES, number_at=1),
    "dup3": Call(Role.DUPLICATES, number_at=1),
    "fcntl": Call(Role.DUPLICATES),
    "flock": Call(Role.LOCKS),
    "brk": Call(Role.GROWS),
    "mremap": Call(Role.GROWS),
    "mprotect": Call(Role.GROWS),
    "io_uring_setup": Call(Role.UNOBSERVABLE),
    "io_setup": Call(Role.UNOBSERVABLE),
    "open_by_handle_at": Call(Role.UNOBSERVABLE),
    "connect": Call(Role.CONNECTS),
    **dict.fromkeys(_IDENTITY, Call(Role.CHANGES_IDENTITY)),
    **dict.fromkeys(("clone", "clone3", "fork", "vfork"), Call(Role.STARTS)),
    **dict.fromkeys(("socket", "socketpair", "pipe2", "memfd_create"), Call(Role.ALLOCATES)),
    "stat": Call(Role.EXAMINES, path_at=0, result_at=1),
    "lstat": Call(Role.EXAMINES, path_at=0, result_at=1),
    "newfstatat": Call(Role.EXAMINES, path_at=1, flags_at=3, result_at=2),
    "statx": Call(Role.EXAMINES, path_at=1, flags_at=2, result_at=4),
    "getdents64": Call(Role.LISTS),
    "access": Call(Role.EXAMINES, path_at=0),
    "faccessat": Call(Role.EXAMINES, path_at=1),
    "faccessat2": Call(Role.EXAMINES, path_at=1, flags_at=3),
    **dict.fromkeys(_ATTRIBUTES, Call(Role.EXAMINES, path_at=0)),
    **dict.fromkeys(("readlinkat", "fchmodat"), Call(Role.EXAMINES, path_at=1)),
    "fchownat": Call(Role.EXAMINES, path_at=1, flags_at=4),
    "utimensat": Call(Role.EXAMINES, path_at=1, flags_at=3),
    "unlink": Call(Role.CHANGES, path_at=0),
    "unlinkat": Call(Role.CHANGES, path_at=1, flags_at=2),
    "rmdir": Call(Role.CHANGES, path_at=0),
    "rename": Call(Role.CHANGES, path_at=0, new_path_at=1),
    "renameat": Call(Role.CHANGES, path_at=1, new_path_at=3),
    "renameat2": Call(Role.CHANGES, path_at=1, new_path_at=3, flags_at=4),
    "link": Call(Role.CHANGES, path_at=0, new_path_at=1),
    "linkat": Call(Role.CHANGES, path_at=1, new_path_at=3, flags_at=4),
    "symlink": Call(Role.CHANGES, new_path_at=1),
    "symlinkat": Call(Role.CHANGES, new_path_at=2),
    **dict.fromkeys(("mkdir", "mknod"), Call(Role.CHANGES, new_path_at=0)),
    **dict.fromkeys(("mkdirat", "mknodat"), Call(Role.CHANGES, new_path_at=1)),
    "truncate": Call(Role.CHANGES, path_at=0),
    "ftruncate": Call(Role.CHANGES),
    "ioctl": Call(Role.CHANGES),
}


def calls_with_role(*roles: Role) -> list[str]:
    """The names of the calls that have one of *roles*, role by role."""
    return [name for role in roles for name, call in CALLS.items() if call.role is role]


READING = [name for name, call in CALLS.items() if call.reads_fd is not None]
WRITING = [name for name, call in CALLS.items() if call.writes_fd is not None]
"""The names of the calls that read, or change, a file by its descriptor."""
_NEEDED_FOR = {
    Role.ALLOCATES: Place.ALLOCATION,
    Role.DUPLICATES: Place.ALLOCATION | Place.LOCK,
    Role.LOCKS: Place.LOCK | Place.READ,
    Role.EXAMINES: Place.STAT,
    Role.RESERVES: Place.RESERVATION,
    Role.LISTS: Place.LISTING,
    Role.GROWS: Place.MEMORY,
    Role.CHANGES: Place.CHANGE,
}
"""Calls that matter only if a fault can happen in these places, or if what they do is counted.

fcntl(2) locks as well as it duplicates. A lock may belong to the description of a file of which the
supervisor has a duplicate, to see who else reads through it.
"""
OF_WRITES = Place.WRITE | Place.LOCK
"""If locks fail, it matters what is written without one."""
_OF_CHANGES = OF_WRITES | Place.CHANGE


def calls_for(places: Place) -> list[str]:
    """The names of the calls that matter for *places*, the frequent ones first."""
    always = [role for role in Role if role not in {*_NEEDED_FOR, Role.TRANSFERS}]
    needed = [role for role, place in _NEEDED_FOR.items() if place & places]
    names = calls_with_role(Role.OPENS)
    names += READING if Place.READ in places else []
    names += WRITING if places & _OF_CHANGES else []
    names += ["mmap"] if Place.MEMORY in places else []
    return list(dict.fromkeys([*names, *calls_with_role(*always, *needed)]))


# Some facts about classic BPF in seccomp: a program sees the call's number, architecture and six
# arguments, never what they point to; jumps go forward only, by at most 255; arguments are 64 bits
# wide and loaded in halves. A descriptor is a C int, so comparing its low half is enough.
#
# Which file a descriptor is, the program cannot know. So reads of all descriptors are handed over,
# or none, if no fault and no count is about reads.


_NOWHERE = Place(0)


@dataclass(frozen=True)
class FilterRequirements:
    """What a plan needs from the filter and from the worker. Picklable, for the worker."""

    places: Place = _NOWHERE
    """Where a call must be seen: where a fault can happen, and what is counted."""
    memory: int = 0
    """Calls that get this many bytes of memory or more; 0: none of them."""
    samples: bool = False
    """The worker reports each sample that it starts."""
    fetches: bool = False
    """A fault may affect a worker when a fetch or a sample starts: it waits there for orders."""

    def with_places(self, places: Place) -> FilterRequirements:
        """The same, and calls in these *places* are seen as well."""
        return replace(self, places=self.places | places)


_INSTRUCTION = struct.Struct("=HBBI")
_JUMP, _LOAD, _JEQ, _JGE, _JSET, _RETURN = 0x05, 0x20, 0x15, 0x35, 0x45, 0x06
_NUMBER, _ARCHITECTURE, _ARGUMENTS = 0, 4, 16

_NEW_NAMESPACES = linux.CLONE_NEWNS | linux.CLONE_NEWUSER
_CHANGE_CONTENT = (
    *(linux.FICLONE, linux.FICLONERANGE, linux.FS_IOC_RESVSP, linux.FS_IOC_RESVSP64),
    *(linux.FS_IOC_UNRESVSP, linux.FS_IOC_UNRESVSP64, linux.FS_IOC_ZERO_RANGE),
)
_REQUESTS = {
    "prctl": (0, (Prctl.CAPBSET_DROP, Prctl.SET_SECUREBITS, Prctl.SET_DUMPABLE)),
    "ioctl": (1, _CHANGE_CONTENT),
}
"""Which argument names the use, and the uses that matter: other rights, other bytes in a file."""
_NO_REQUIREMENTS = FilterRequirements()
_WORD = 1 << 32
_PLACED = linux.MAP_STACK | linux.MAP_FIXED
"""Flags of the stack of a thread, and of the zeros of a shared library."""
_ALLOCATE = ("mmap", *calls_with_role(Role.GROWS))


def _instruction(code: int, value: int, yes: int = 0, no: int = 0) -> bytes:
    return _INSTRUCTION.pack(code, yes, no, value)


_NOTIFY = _instruction(_RETURN, linux.Return.USER_NOTIF)
_ALLOW = _instruction(_RETURN, linux.Return.ALLOW)


def _argument(index: int) -> bytes:
    return _instruction(_LOAD, _ARGUMENTS + 8 * index)


def _on_descriptor(index: int) -> bytes:
    """Notify if argument *index* can be a descriptor: if it is not negative."""
    return _argument(index) + _instruction(_JGE, 0x80000000, 1, 0) + _NOTIFY


def _allow_flag(index: int | None, flag: int) -> bytes:
    """Allow at once if argument *index* has *flag*."""
    if index is None:
        return b""
    return _argument(index) + _instruction(_JSET, flag, 0, 1) + _ALLOW


def _on_request(name: str) -> bytes:
    """Notify, but of calls with many uses only if the argument that names the use matters."""
    if name not in _REQUESTS:
        return _NOTIFY
    index, requests = _REQUESTS[name]
    checks = (_instruction(_JEQ, request, 0, 1) + _NOTIFY for request in requests)
    return _argument(index) + b"".join(checks) + _ALLOW


def _on_start(name: str, needs: FilterRequirements) -> bytes:
    """Notify if *name* may make namespaces or, if *needs* say so, of each thread and process."""
    if name == "clone3" or Place.START in needs.places:
        return _NOTIFY  # Of clone3(2), the flags are in memory.
    on_namespaces = _argument(0) + _instruction(_JSET, _NEW_NAMESPACES, 1, 0) + _ALLOW + _NOTIFY
    return on_namespaces if name == "clone" else _ALLOW


def _on_change(name: str, number: int) -> bytes:
    """Notify if *name* may change the file of argument *number*, or maps it to be changed."""
    if name == "mmap":
        shared = _argument(3) + _instruction(_JSET, linux.MAP_SHARED, 0, 1) + _NOTIFY
        over = len(shared) // _INSTRUCTION.size
        return _argument(2) + _instruction(_JSET, linux.PROT_WRITE, 0, over) + shared
    return _on_descriptor(number)


def _notify_from(index: int, size: int) -> bytes:
    """Notify if argument *index* is *size* or more, else allow; on every path."""
    high, low = divmod(size, _WORD)
    return (
        _instruction(_LOAD, _ARGUMENTS + 8 * index + 4)
        + _instruction(_JGE, high + 1, 4, 0)
        + _instruction(_JEQ, high, 0, 2)
        + _argument(index)
        + _instruction(_JGE, low, 1, 0)
        + _ALLOW
        + _NOTIFY
    )


def _on_allocation(name: str, size: int) -> bytes:
    """Notify if *name* gets *size* bytes of memory or more, or may do so instead of another call.

    Of mmap(2), what maps a file is left to the rest of the program.
    """
    if name == "brk":
        return _NOTIFY
    if name == "mprotect":
        return _argument(2) + _instruction(_JSET, linux.PROT_WRITE, 1, 0) + _ALLOW + _NOTIFY
    if name == "mremap":
        return _notify_from(2, size)
    anonymous = _instruction(_JSET, _PLACED, 0, 1) + _ALLOW + _notify_from(1, size)
    over = len(anonymous) // _INSTRUCTION.size
    return _argument(3) + _instruction(_JSET, linux.MAP_ANONYMOUS, 0, over) + anonymous


def _body(name: str, needs: FilterRequirements) -> bytes:
    """What to do when the call is *name*; ends in a return on every path."""
    call = CALLS[name]
    if call.role in (Role.CHANGES_IDENTITY, Role.CHANGES):
        return _on_request(name)
    if call.role is Role.STARTS:
        return _on_start(name, needs)
    if call.role is Role.EXAMINES:
        return _allow_flag(call.flags_at, linux.AT_EMPTY_PATH) + _NOTIFY
    if call.role is Role.DUPLICATES:
        uses = Place.ALLOCATION | Place.LOCK if name == "fcntl" else Place.ALLOCATION
        return _NOTIFY if needs.places & uses else _ALLOW
    body = _allow_flag(3, linux.MAP_ANONYMOUS) if name == "mmap" else b""
    if call.writes_fd is not None and needs.places & _OF_CHANGES:
        body += _on_change(name, call.writes_fd)
    elif call.role is not Role.TRANSFERS:
        return _NOTIFY
    if call.reads_fd is not None and Place.READ in needs.places:
        body += _on_descriptor(call.reads_fd)
    return body + _ALLOW


def program(
    syscalls: Mapping[str, int], architecture: int, needs: FilterRequirements = _NO_REQUIREMENTS
) -> bytes:
    """The filter, as an array of struct sock_filter.

    *syscalls* maps names to numbers; names this machine does not have are left out.
    """
    code = _instruction(_LOAD, _ARCHITECTURE) + _instruction(_JEQ, architecture, 1, 0) + _ALLOW
    code += _instruction(_LOAD, _NUMBER)
    for name in calls_for(needs.places):
        if name in syscalls:
            is_allocation = needs.memory and name in _ALLOCATE
            body = _on_allocation(name, needs.memory) if is_allocation else b""
            if CALLS[name].role is not Role.GROWS:
                body += _body(name, needs)
            # A plain jump over *body*, since the 8 bits of a conditional one may not reach.
            over = _instruction(_JUMP, len(body) // _INSTRUCTION.size)
            code += _instruction(_JEQ, syscalls[name], 1, 0) + over + body
    return code + _ALLOW
