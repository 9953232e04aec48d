"""The kernel's numbers, structs and calls that the engine needs, and nothing else.

Callers never see a bare number. Sources: linux/seccomp.h, linux/audit.h, linux/filter.h,
asm/unistd.h, seccomp(2).
"""

from __future__ import annotations

import array
import ctypes
import errno
import os
import socket
import struct
from collections.abc import Callable, Sequence
from enum import IntEnum, IntFlag
from functools import partial
from operator import methodcaller

from pytest_dataloader_faults._engine.system.libc import Prctl, check, libc, prctl


class FilterFlag(IntFlag):
    """Flags of SECCOMP_SET_MODE_FILTER."""

    TSYNC = 1
    NEW_LISTENER = 8
    TSYNC_ESRCH = 16
    WAIT_KILLABLE_RECV = 32


_FLAGS = FilterFlag.NEW_LISTENER | FilterFlag.TSYNC | FilterFlag.TSYNC_ESRCH


class Return(IntEnum):
    """What a filter program answers."""

    USER_NOTIF = 0x7FC00000
    ALLOW = 0x7FFF0000


class Ioctl(IntEnum):
    """Requests on a listener: _IOWR('!', n, struct)."""

    RECV = 0xC0502100
    SEND = 0xC0182101
    ID_VALID = 0x40082102
    ADDFD = 0x40182103
    SET_FLAGS = 0x40082104


SET_MODE_FILTER = 1
GET_NOTIF_SIZES = 3
SYNC_WAKE_UP = 1
CONTINUE = 1
ADDFD_SETFD = 1
ADDFD_SEND = 2
PROT_NONE = 0
PROT_WRITE = 2
MAP_SHARED = 1
MAP_PRIVATE = 2
MAP_FIXED = 0x10
MAP_ANONYMOUS = 0x20
MAP_STACK = 0x20000
_MAP_FAILED = ctypes.c_void_p(-1).value
AT_FDCWD = -100
AT_EMPTY_PATH = 0x1000
AT_SYMLINK_FOLLOW = 0x400
AT_SYMLINK_NOFOLLOW = 0x100
F_DUPFD = 0
F_SETLK = 6
F_SETLKW = 7
F_OFD_SETLK = 37
F_OFD_SETLKW = 38
F_DUPFD_CLOEXEC = 1030
FICLONE = 0x40049409
FICLONERANGE = 0x4020940D
FS_IOC_RESVSP = 0x40305828
FS_IOC_UNRESVSP = 0x40305829
FS_IOC_RESVSP64 = 0x4030582A
FS_IOC_UNRESVSP64 = 0x4030582B
FS_IOC_ZERO_RANGE = 0x40305839
RENAME_NOREPLACE = 1
RENAME_EXCHANGE = 2
AT_REMOVEDIR = 0x200
CLONE_NEWNS = 0x20000
CLONE_NEWUSER = 0x10000000
CLONE_THREAD = 0x10000
RESOLVE_IN_ROOT = 16

NOTIF = struct.Struct("=QIIiIQ6Q")
"""struct seccomp_notif: id, pid, flags, nr, arch, instruction pointer, six arguments."""
RESPONSE = struct.Struct("=QqiI")
"""struct seccomp_notif_resp: id, value, error, flags."""
ADDFD = struct.Struct("=QIIII")
"""struct seccomp_notif_addfd: id, flags, descriptor here, descriptor there, its O_* flags."""
OPEN_HOW = struct.Struct("=QQQ")
"""struct open_how: flags, mode, RESOLVE_* flags."""

ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_X86_64 = {
    "read": 0, "write": 1, "open": 2, "stat": 4, "lstat": 6, "poll": 7, "mmap": 9, "mprotect": 10,
    "brk": 12, "ioctl": 16, "pread64": 17, "pwrite64": 18, "readv": 19, "writev": 20, "access": 21,
    "select": 23, "mremap": 25, "dup": 32, "dup2": 33, "nanosleep": 35, "sendfile": 40,
    "socket": 41, "connect": 42, "recvfrom": 45, "recvmsg": 47, "socketpair": 53, "clone": 56,
    "fork": 57, "vfork": 58, "fcntl": 72, "flock": 73, "fsync": 74, "fdatasync": 75, "truncate": 76,
    "ftruncate": 77, "rename": 82, "mkdir": 83, "rmdir": 84, "creat": 85, "link": 86, "unlink": 87,
    "symlink": 88, "readlink": 89, "chmod": 90, "chown": 92, "lchown": 94, "setuid": 105,
    "setgid": 106, "setreuid": 113, "setregid": 114, "setgroups": 116, "setresuid": 117,
    "setresgid": 119, "setfsuid": 122, "setfsgid": 123, "capset": 126, "mknod": 133,
    "pivot_root": 155, "prctl": 157, "chroot": 161, "setxattr": 188, "lsetxattr": 189,
    "getxattr": 191, "lgetxattr": 192, "listxattr": 194, "llistxattr": 195, "removexattr": 197,
    "lremovexattr": 198, "futex": 202, "io_setup": 206, "getdents64": 217, "clock_nanosleep": 230,
    "tgkill": 234, "openat": 257, "mkdirat": 258, "mknodat": 259, "fchownat": 260,
    "newfstatat": 262, "unlinkat": 263, "renameat": 264, "linkat": 265, "symlinkat": 266,
    "readlinkat": 267, "fchmodat": 268, "faccessat": 269, "pselect6": 270, "ppoll": 271,
    "unshare": 272, "splice": 275, "utimensat": 280, "fallocate": 285, "dup3": 292, "pipe2": 293,
    "preadv": 295, "pwritev": 296, "open_by_handle_at": 304, "setns": 308, "renameat2": 316,
    "seccomp": 317, "memfd_create": 319, "copy_file_range": 326, "preadv2": 327, "pwritev2": 328,
    "statx": 332, "io_uring_setup": 425, "clone3": 435, "openat2": 437, "pidfd_getfd": 438,
    "faccessat2": 439,
}  # fmt: skip
_AARCH64 = {
    "io_setup": 0, "setxattr": 5, "lsetxattr": 6, "getxattr": 8, "lgetxattr": 9, "listxattr": 11,
    "llistxattr": 12, "removexattr": 14, "lremovexattr": 15, "dup": 23, "dup3": 24, "fcntl": 25,
    "ioctl": 29, "flock": 32, "mknodat": 33, "mkdirat": 34, "unlinkat": 35, "symlinkat": 36,
    "linkat": 37, "renameat": 38, "pivot_root": 41, "truncate": 45, "ftruncate": 46,
    "fallocate": 47, "faccessat": 48, "chroot": 51, "fchmodat": 53, "fchownat": 54, "openat": 56,
    "pipe2": 59, "getdents64": 61, "read": 63, "write": 64, "readv": 65, "writev": 66,
    "pread64": 67, "pwrite64": 68, "preadv": 69, "pwritev": 70, "sendfile": 71, "pselect6": 72,
    "ppoll": 73, "splice": 76, "readlinkat": 78, "newfstatat": 79, "fsync": 82, "fdatasync": 83,
    "utimensat": 88, "capset": 91, "unshare": 97, "futex": 98, "nanosleep": 101,
    "clock_nanosleep": 115, "tgkill": 131, "setregid": 143, "setgid": 144, "setreuid": 145,
    "setuid": 146, "setresuid": 147, "setresgid": 149, "setfsuid": 151, "setfsgid": 152,
    "setgroups": 159, "prctl": 167, "socket": 198, "socketpair": 199, "connect": 203,
    "recvfrom": 207, "recvmsg": 212, "brk": 214, "mremap": 216, "clone": 220, "mmap": 222,
    "mprotect": 226, "open_by_handle_at": 265, "setns": 268, "renameat2": 276, "seccomp": 277,
    "memfd_create": 279, "copy_file_range": 285, "preadv2": 286, "pwritev2": 287, "statx": 291,
    "io_uring_setup": 425, "clone3": 435, "openat2": 437, "pidfd_getfd": 438, "faccessat2": 439,
}  # fmt: skip
SYSCALLS = {"x86_64": _X86_64, "aarch64": _AARCH64}
MACHINE = os.uname().machine
NAMES = {number: name for name, number in SYSCALLS.get(MACHINE, {}).items()}
"""The names of the calls of this machine, by number."""


class _Instructions(ctypes.Structure):
    """struct sock_fprog."""

    _fields_ = (("length", ctypes.c_ushort), ("program", ctypes.c_char_p))


class _IoVec(ctypes.Structure):
    """struct iovec."""

    _fields_ = (("base", ctypes.c_void_p), ("length", ctypes.c_size_t))


libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, *(ctypes.c_int,) * 3, ctypes.c_long)
for _call in (libc.process_vm_readv, libc.process_vm_writev):
    _call.restype = ctypes.c_ssize_t
    _call.argtypes = (ctypes.c_int, *(ctypes.c_void_p, ctypes.c_ulong) * 2, ctypes.c_ulong)

# Made once: a path is read at each open(2) of a worker, by a process that has one thread.
_page = ctypes.create_string_buffer(4096)
_here, _there = _IoVec(ctypes.addressof(_page), 0), _IoVec(0, 0)
_here_pointer, _there_pointer = ctypes.addressof(_here), ctypes.addressof(_there)
_from = _IoVec(0, 0)
_from_pointer = ctypes.addressof(_from)


def install_filter(program: bytes, flags: FilterFlag) -> int:
    """Put *program* on this process, permanently. With NEW_LISTENER, its descriptor is returned."""
    instructions = ctypes.byref(_Instructions(len(program) // 8, program))
    options, label = ctypes.c_ulong(int(flags)), f"seccomp(SET_MODE_FILTER, {flags:#x})"
    return raw_call("seccomp", SET_MODE_FILTER, options, instructions, label=label)


_libc_with_gil = ctypes.PyDLL(None, use_errno=True)
_CALL = methodcaller("__call__")


def filter_this_process(program: bytes, supervisor: int) -> int:
    """Install *program* on all threads and return the listener."""
    _let_trace(supervisor)
    return _with_known_flags(lambda flags: install_filter(program, flags))


def filter_and_send(
    program: bytes, supervisor: int, connection: socket.socket, packed: bytes, fds: Sequence[int]
) -> int:
    """Install *program* on all threads, send *packed* with the listener and *fds*; the listener.

    No other thread of the interpreter gets the
    GIL between the two calls: a call of that thread could wait for the supervisor, and this thread
    for the GIL. So C code makes both of them, one after the other.
    """
    _let_trace(supervisor)
    instructions = ctypes.byref(_Instructions(len(program) // 8, program))
    descriptors = array.array("i")
    rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, descriptors)

    def install(flags: FilterFlag) -> int:
        number, options = SYSCALLS[MACHINE]["seccomp"], ctypes.c_ulong(int(flags))
        seccomp = partial(_libc_with_gil.syscall, number, SET_MODE_FILTER, options, instructions)
        del descriptors[:]
        steps = (
            partial(descriptors.extend, map(_CALL, (seccomp,))),
            partial(descriptors.extend, fds),
            partial(connection.sendmsg, (packed,), (rights,)),
        )
        try:
            list(map(_CALL, steps))
        except OSError:
            check(descriptors[0], f"seccomp(SET_MODE_FILTER, {flags:#x})")
            os.close(descriptors[0])
            raise
        return descriptors[0]

    return _with_known_flags(install)


def _let_trace(supervisor: int) -> None:
    """Let the process *supervisor* read the memory of this one, and allow filters."""
    try:
        prctl(Prctl.SET_PTRACER, supervisor)
    except OSError as error:  # EINVAL: this kernel lacks yama, and does not need it.
        if error.errno != errno.EINVAL:
            raise
    prctl(Prctl.SET_NO_NEW_PRIVS, 1)


def _with_known_flags(install: Callable[[FilterFlag], int]) -> int:
    """What *install* returns with the flags that this kernel knows."""
    try:
        return install(_FLAGS | FilterFlag.WAIT_KILLABLE_RECV)
    except OSError as error:  # EINVAL: Linux before 5.19.
        if error.errno != errno.EINVAL:
            raise
        return install(_FLAGS)


def notification_sizes() -> tuple[int, ...]:
    """Sizes of the notification, response and data structs in the running kernel, in bytes."""
    sizes = struct.Struct("=HHH")
    buffer = ctypes.create_string_buffer(sizes.size)
    raw_call("seccomp", GET_NOTIF_SIZES, 0, buffer, label="GET_NOTIF_SIZES")
    return sizes.unpack(buffer.raw)


def read_memory(pid: int, address: int, length: int) -> bytes:
    """At most *length* bytes of another process, a page or less, by process_vm_readv(2)."""
    _here.length = _there.length = length
    _there.base = address
    read = libc.process_vm_readv(pid, _here_pointer, 1, _there_pointer, 1, 0)
    return ctypes.string_at(_page, check(read, "process_vm_readv"))


def write_memory(pid: int, address: int, data: bytes) -> None:
    """Put all of *data* into the memory of another process."""
    source = ctypes.cast(ctypes.c_char_p(data), ctypes.c_void_p).value or 0
    sent = 0
    while sent < len(data):  # A page that is not there ends a call, and fails the next one.
        _from.base, _there.base = source + sent, address + sent
        _from.length = _there.length = len(data) - sent
        written = libc.process_vm_writev(pid, _from_pointer, 1, _there_pointer, 1, 0)
        sent += check(written, "process_vm_writev")


def raw_call(name: str, *arguments: object, label: str = "") -> int:
    """Make a system call that nothing in Python makes as it stands; an error names *label*."""
    return check(libc.syscall(SYSCALLS[MACHINE][name], *arguments), label or name)


_LOCAL = frozenset(
    {
        *(0xEF53, 0x58465342, 0x9123683E, 0x01021994),  # ext, XFS, btrfs, tmpfs
        *(0xF2F52010, 0x2FC12FC1, 0xCA451A4E),  # F2FS, ZFS, bcachefs
    }
)
_STATX_BTIME = 0x800
_STATX = struct.Struct("=I76xqI164x")
"""struct statx: which fields are known, and the time of birth in seconds and nanoseconds."""


def birth_time(path: str) -> float | None:
    """When the file at *path* was made, by the clock of this machine; None if that is unknown.

    A link at its end is not followed. Copies of overlayfs are born when they are first changed, so
    theirs is unknown.
    """
    name, details = os.fsencode(path), ctypes.create_string_buffer(_STATX.size)
    try:
        folder = ctypes.create_string_buffer(256)
        check(libc.statfs(os.path.dirname(name), folder), "statfs")
        if ctypes.c_long.from_buffer(folder).value not in _LOCAL:
            return None
        raw_call("statx", AT_FDCWD, name, AT_SYMLINK_NOFOLLOW, _STATX_BTIME, details)
    except OSError:
        return None
    known, seconds, nanoseconds = _STATX.unpack(details.raw)
    return seconds + nanoseconds / 1e9 if known & _STATX_BTIME and seconds else None


def file_clock() -> float:
    """The time by which file systems date files; a test may have replaced that of Python."""
    descriptor = os.memfd_create("clock")
    try:
        return os.fstat(descriptor).st_ctime
    finally:
        os.close(descriptor)


def map_over(address: int, length: int, protection: int, fd: int, offset: int) -> None:
    """Replace the mapping at *address* by one of *fd*, shared."""
    shared = 1
    result = libc.mmap(address, length, protection, shared | MAP_FIXED, fd, offset)
    if result == _MAP_FAILED:
        check(-1, "mmap(MAP_FIXED)")
