"""What each system call that the engines know does, and what its arguments mean. Pure.

The filter, the answers and the policy all use this table. The numbers of the calls, which differ by
machine, are in ``kernel/linux.py``. Arguments are numbered from 0.
"""

from __future__ import annotations

from enum import Enum, auto
from typing import NamedTuple

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
    FORKS = auto()
    """It starts a process."""
    ALLOCATES = auto()
    """It makes a descriptor of something else than a file with a path."""
    STATS = auto()
    """It examines a file by its path."""
    LISTS = auto()
    """It lists the folder of the descriptor that is its first argument."""
    CHECKS = auto()
    """It checks by its path whether a file exists and may be used."""
    GROWS = auto()
    """It gets memory that no file backs, or makes reserved memory usable."""
    ATTRIBUTES = auto()
    """It reads or changes attributes of a file by its path: its mode, owner, times and so on."""
    RESERVES = auto()
    """It reserves space for a file; torch reserves shared memory with it."""
    CHANGES = auto()
    """It changes which names a folder has, or takes bytes from a file."""


class Buffers(Enum):
    """How the second and third argument of a call name the memory that it reads or writes."""

    ONE = auto()
    """An address and a length."""
    SEVERAL = auto()
    """The address of an array of struct iovec, and how many they are."""


class Call(NamedTuple):
    """One system call.

    *reads_fd*, *writes_fd*: the descriptor of the file that it reads from, or writes to.
    *buffers*: how it names its memory; None if neither length nor data can be known.
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
    buffers: Buffers | None = None
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
        return self.reads_fd is not None and self.buffers is not None

    @property
    def writes_buffers(self) -> bool:
        """Whether it is a write that can be short: its length is known."""
        return self.writes_fd is not None and self.buffers is not None

    @property
    def shares_offset(self) -> bool:
        """Whether it is a read that is always at the offset of the descriptor."""
        return self.reads_into_buffers and self.offset_at is None


_ONE, _SEVERAL = Buffers.ONE, Buffers.SEVERAL
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
    "readv": Call(Role.TRANSFERS, reads_fd=0, buffers=_SEVERAL),
    "preadv": Call(Role.TRANSFERS, reads_fd=0, buffers=_SEVERAL, offset_at=3),
    "preadv2": Call(Role.TRANSFERS, reads_fd=0, buffers=_SEVERAL, offset_at=3, flags_at=5),
    "mmap": Call(Role.TRANSFERS, reads_fd=4, writes_fd=4),
    "sendfile": Call(Role.TRANSFERS, reads_fd=1, writes_fd=0),
    "copy_file_range": Call(Role.TRANSFERS, reads_fd=0, writes_fd=2),
    "splice": Call(Role.TRANSFERS, reads_fd=0, writes_fd=2),
    "write": Call(Role.TRANSFERS, writes_fd=0, buffers=_ONE),
    "pwrite64": Call(Role.TRANSFERS, writes_fd=0, buffers=_ONE, offset_at=3),
    "writev": Call(Role.TRANSFERS, writes_fd=0, buffers=_SEVERAL),
    "pwritev": Call(Role.TRANSFERS, writes_fd=0, buffers=_SEVERAL, offset_at=3),
    "pwritev2": Call(Role.TRANSFERS, writes_fd=0, buffers=_SEVERAL, offset_at=3, flags_at=5),
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
    **dict.fromkeys(("clone", "clone3"), Call(Role.STARTS)),
    **dict.fromkeys(("fork", "vfork"), Call(Role.FORKS)),
    **dict.fromkeys(("socket", "socketpair", "pipe2", "memfd_create"), Call(Role.ALLOCATES)),
    "stat": Call(Role.STATS, path_at=0, result_at=1),
    "lstat": Call(Role.STATS, path_at=0, result_at=1),
    "newfstatat": Call(Role.STATS, path_at=1, flags_at=3, result_at=2),
    "statx": Call(Role.STATS, path_at=1, flags_at=2, result_at=4),
    "getdents64": Call(Role.LISTS),
    "access": Call(Role.CHECKS, path_at=0),
    "faccessat": Call(Role.CHECKS, path_at=1),
    "faccessat2": Call(Role.CHECKS, path_at=1, flags_at=3),
    **dict.fromkeys(_ATTRIBUTES, Call(Role.ATTRIBUTES, path_at=0)),
    **dict.fromkeys(("readlinkat", "fchmodat"), Call(Role.ATTRIBUTES, path_at=1)),
    "fchownat": Call(Role.ATTRIBUTES, path_at=1, flags_at=4),
    "utimensat": Call(Role.ATTRIBUTES, path_at=1, flags_at=3),
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


def reading_calls() -> list[str]:
    """The names of the calls that read a file by its descriptor."""
    return [name for name, call in CALLS.items() if call.reads_fd is not None]


def writing_calls() -> list[str]:
    """The names of the calls that write to a file by its descriptor, or make a write last."""
    return [name for name, call in CALLS.items() if call.writes_fd is not None]


BY_PATH = (Role.STATS, Role.CHECKS, Role.ATTRIBUTES)
_NEEDED_FOR = {
    Role.ALLOCATES: Place.ALLOCATION,
    Role.DUPLICATES: Place.ALLOCATION | Place.LOCK,
    Role.LOCKS: Place.LOCK | Place.READ,
    **dict.fromkeys(BY_PATH, Place.STAT),
    Role.RESERVES: Place.RESERVATION,
    Role.LISTS: Place.LISTING,
    Role.FORKS: Place.START,
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
    names += reading_calls() if Place.READ in places else []
    names += writing_calls() if places & _OF_CHANGES else []
    names += ["mmap"] if Place.MEMORY in places else []
    return list(dict.fromkeys([*names, *calls_with_role(*always, *needed)]))


def changed_fd(name: str, places: Place) -> int | None:
    """Which argument of *name* is the file that it changes, if that matters for *places*."""
    return CALLS[name].writes_fd if places & _OF_CHANGES else None
