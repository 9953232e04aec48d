"""Facts about a process that waits in the kernel for an answer [runs in the supervisor]."""

from __future__ import annotations

import errno
import os
import socket
import struct
import sys
from typing import Any, NamedTuple

from pytest_dataloader_faults._engine.calls import CALLS, Call
from pytest_dataloader_faults._engine.kernel.linux import (
    AT_FDCWD,
    AT_SYMLINK_NOFOLLOW,
    NAMES,
    OPEN_HOW,
    RESOLVE_IN_ROOT,
    raw_call,
    read_memory,
)
from pytest_dataloader_faults._engine.system import proc
from pytest_dataloader_faults.faults.globs import connection_path


class Syscall(NamedTuple):
    """One system call about which the kernel notified."""

    id: int
    pid: int
    name: str
    arguments: tuple[int, ...]

    @property
    def facts(self) -> Call:
        """What is known about the call of that name."""
        return CALLS[self.name]

    def argument(self, place: int | None) -> int:
        """The argument at *place*, which is a fact that the call has."""
        assert place is not None, self.name
        return self.arguments[place]


class BadSyscallError(Exception):
    """The call has a pointer to nothing or a folder that is not open: the kernel refuses it."""


class _ResolvedPath(NamedTuple):
    """The file that a call means: the absolute path that globs are about, and one to open it by.

    They differ if only the kernel can resolve the path: ``..`` behind a symbolic link, a slash
    behind a file's name, a link of /proc to a folder, and, with *is_descriptor*, to an open
    descriptor.
    """

    path: str
    raw: str
    is_descriptor: bool = False


class PathRequest(NamedTuple):
    """What a call of the open(2) or stat(2) kind requests: a file, by O_* and RESOLVE_* flags.

    *name* is its path argument; see ``_ResolvedPath`` for the others.
    """

    path: str
    raw: str
    is_descriptor: bool
    name: bytes
    flags: int
    resolve: int = 0

    @property
    def reads(self) -> bool:
        """Whether it opens a file in a way that allows reading what is in it.

        O_CREAT alone changes nothing for a file that is there: SQLite opens every database so.
        """
        without = os.O_EXCL | os.O_TRUNC | os.O_PATH | os.O_DIRECTORY
        return not self.flags & without and self.flags & os.O_ACCMODE != os.O_WRONLY


def open_request(call: Syscall, name: bytes) -> PathRequest:
    """What *call* requests, whose path argument is *name*."""
    flags, resolve = call.argument(call.facts.flags_at), 0
    if call.name == "openat2":
        flags, _, resolve = OPEN_HOW.unpack(_read_argument(call, flags, OPEN_HOW.size))
    if resolve & RESOLVE_IN_ROOT:
        name = name.lstrip(b"/")
    resolved = resolve_path(call, name)
    return PathRequest(*resolved, name, flags & 0xFFFFFFFF, resolve)


def stat_request(call: Syscall, name: bytes) -> PathRequest:
    """What *call* examines: a link itself, instead of its target, by O_NOFOLLOW."""
    place = call.facts.flags_at
    not_behind = call.arguments[place] & AT_SYMLINK_NOFOLLOW if place else call.name == "lstat"
    return PathRequest(*resolve_path(call, name), name, os.O_NOFOLLOW if not_behind else 0)


def resolve_path(call: Syscall, name: bytes) -> _ResolvedPath:
    """The file that a call of the open(2) or stat(2) kind is about; *name* is its path argument."""
    path = os.fsdecode(name)
    raw = path if path.startswith("/") else os.path.join(_read_link(folder_link(call)), path)
    try:
        followed = proc.resolve_folder_link(raw, call.pid)
    except FileNotFoundError as error:
        raise BadSyscallError from error
    if descriptor := proc.parse_descriptor_path(followed, call.pid):
        link = "/proc/{}/fd/{}".format(*descriptor)
        return _ResolvedPath(_read_link(link), link, is_descriptor=True)
    if "/../" not in f"{followed}/":
        return _ResolvedPath(os.path.abspath(followed), raw)
    folder, base = os.path.split(followed.rstrip("/"))
    folder, base = os.path.split(os.path.realpath(followed)) if base == ".." else (folder, base)
    return _ResolvedPath(os.path.join(os.path.realpath(folder), base), raw)


def _read_argument(call: Syscall, address: int, length: int) -> bytes:
    try:
        return read_memory(call.pid, address, length)
    except OSError as error:
        if error.errno != errno.EFAULT:
            raise
        raise BadSyscallError from error


def _read_link(link: str) -> str:
    try:
        return os.readlink(link)
    except FileNotFoundError as error:
        raise BadSyscallError from error


def folder_link(call: Syscall) -> str:
    """The link in /proc to the folder that a relative path of *call* is relative to."""
    fd = to_signed(call.arguments[0])
    is_in_cwd = call.facts.path_at == 0 or fd == AT_FDCWD
    return f"/proc/{call.pid}/cwd" if is_in_cwd else f"/proc/{call.pid}/fd/{fd}"


def duplicate(pid: int, fd: int) -> int:
    """Our duplicate of descriptor *fd* of *pid*, a process or one of its threads."""
    try:
        pidfd = os.pidfd_open(pid)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOENT):  # A thread; kernels differ.
            raise
        pidfd = os.pidfd_open(proc.status(pid).process)
    try:
        return raw_call("pidfd_getfd", pidfd, fd, 0)
    finally:
        os.close(pidfd)


def reopen_at_offset(pid: int, fd: int) -> int:
    """The file of descriptor *fd* of *pid*, opened again here at the same offset."""
    about = proc.fd_info(fd, pid)
    flags = about.flags & (os.O_ACCMODE | os.O_APPEND | os.O_SYNC)
    ours = os.open(f"/proc/{pid}/fd/{fd}", flags | os.O_CLOEXEC)
    os.lseek(ours, about.offset, os.SEEK_SET)
    return ours


def to_signed(argument: int) -> int:
    """A C int out of a 64-bit argument."""
    low = argument & 0xFFFFFFFF
    return low - (1 << 32) if low & 0x80000000 else low


class TrackedFile(NamedTuple):
    """A file that a worker has open and whose reads are seen.

    *source* is our own duplicate, or with *reopened* the file opened again; *inherited*: the worker
    had it when it was armed, so that other workers may share its offset. *stand_in*: device and
    inode of what was put under its number when it was mapped.
    """

    path: str
    source: int | None
    inherited: bool
    reopened: bool = False
    stand_in: tuple[int, int] | None = None

    def is_open_at(self, pid: int, number: int) -> bool:
        """Whether *number* of process *pid* is this file."""
        try:
            if self.source is None:
                return proc.link_of(pid, number) == self.path
            status = os.stat(f"/proc/{pid}/fd/{number}")
        except (FileNotFoundError, ProcessLookupError):
            return False
        is_stand_in = (status.st_dev, status.st_ino) == self.stand_in
        return is_stand_in or os.path.samestat(status, os.fstat(self.source))


# Some facts about reading another process's memory. By process_vm_readv(2) it takes 3 µs, and 1 µs
# by pread(2) from an open /proc/PID/mem. The latter is about the memory that the process had when
# it was opened. Once execve(2) has replaced that memory, a read returns 0 bytes. A forked process
# has its own memory, and one made by vfork(2) gets its own without notice. So only the worker
# itself is read that way, by its main thread's id, and all others by process_vm_readv(2).


_PAGE, _LENGTH = 4096, 512


class ProcessMemory:
    """The memory of the worker *pid* and of its descendants."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._fd: int | None = None

    def path(self, call: Syscall) -> bytes:
        """The path that *call*, of the open(2) or stat(2) kind, is about."""
        address = call.argument(call.facts.path_at)
        if call.pid == self._pid:
            try:
                if self._fd is None:
                    self._fd = os.open(f"/proc/{self._pid}/mem", os.O_RDONLY | os.O_CLOEXEC)
                text = os.pread(self._fd, min(_LENGTH, _PAGE - address % _PAGE), address)
            except (OSError, OverflowError):  # It may be a pointer to nothing.
                text = b""
            path, zero, _ = text.partition(b"\0")
            if zero:
                return path
        return _string(call.pid, address)

    def close(self) -> None:
        """No process of this worker is left."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None


def _string(pid: int, address: int) -> bytes:
    """A C string. Read up to the end of its page first: the next one may not be there."""
    text = b""
    while len(text) < _PAGE:
        try:
            text += read_memory(pid, address, _PAGE - address % _PAGE)
        except OSError as error:
            if error.errno != errno.EFAULT:
                raise
            raise BadSyscallError from error
        head, zero, _ = text.partition(b"\0")
        if zero:
            return head
        address += _PAGE - address % _PAGE
    return text


# Some facts about sockets of another process. /proc/PID/fd shows only a number for one, but the
# extended attribute system.sockprotoname of it is the name of its protocol. pidfd_getfd(2), of
# Linux 5.6, returns a duplicate: with that, connect(2) connects the very socket of the other
# process, and TCP_INFO shows its state. Docker allows it to containers with CAP_SYS_PTRACE alone.
# If it is not allowed, each connect(2) counts as the first one of its socket. getaddrinfo(3)
# connects sockets of UDP, to see which address it would have: these are not connections.


_ADDRESS = struct.Struct("!2xH4s")
"""struct sockaddr_in, without its family, which is in the machine's order of bytes."""
_ADDRESS_6 = struct.Struct("!2xHI16s")
_SCOPE = struct.Struct("=I")
_LEAST = {socket.AF_INET: 16, socket.AF_INET6: 28}
"""How long an address is, at least."""
_PROTOCOL = "system.sockprotoname"
_TCP = (b"TCP", b"TCPv6", b"MPTCP", b"MPTCPv6")
_FORBIDDEN = (
    "pidfd_getfd(2) is forbidden here (the container's seccomp profile?), but faults that hit the"
    " answers of a server need it. Docker allows it with --cap-add SYS_PTRACE. ConnectError works"
    " without it"
)
_CLOSE = 7
"""The state of a socket that is not connected: the first byte of TCP_INFO."""
_RECEIVES = ("read", "recvfrom", "recvmsg")


class Peer(NamedTuple):
    """The address of the peer of a connection, as Python's sockets take it."""

    family: socket.AddressFamily
    address: tuple[Any, ...]

    @property
    def path(self) -> str:
        """What globs are about, such as ``tcp://192.0.2.1:443``."""
        return connection_path(*self.address[:2])

    @property
    def is_mapped(self) -> bool:
        """Whether it is one of IPv4, which a socket of IPv6 reaches."""
        return str(self.address[0]).startswith("::ffff:")


def peer_of(call: Syscall) -> Peer | None:
    """Where a connect(2) leads, if its socket is of TCP; None also if the kernel refuses it.

    Raises:
        PermissionError: The supervisor may not inspect the caller.
    """
    link = f"/proc/{call.pid}/fd/{to_signed(call.arguments[0])}"
    try:
        data = read_memory(call.pid, call.arguments[1], min(call.arguments[2] & 0xFFFFFFFF, 28))
        is_tcp = os.getxattr(link, _PROTOCOL).rstrip(b"\0") in _TCP
    except PermissionError:
        raise
    except OSError:  # No address, or no socket.
        return None
    return _parse_address(data) if is_tcp else None


def _parse_address(data: bytes) -> Peer | None:
    family = int.from_bytes(data[:2], sys.byteorder)
    if family not in _LEAST or len(data) < _LEAST[socket.AddressFamily(family)]:
        return None
    if family == socket.AF_INET:
        port, host = _ADDRESS.unpack_from(data)
        return Peer(socket.AF_INET, (socket.inet_ntop(socket.AF_INET, host), port))
    port, flow, host = _ADDRESS_6.unpack_from(data)
    (scope,) = _SCOPE.unpack_from(data, _ADDRESS_6.size)
    name = socket.inet_ntop(socket.AF_INET6, host)
    return Peer(socket.AF_INET6, (name, port, flow, scope))


def duplicate_socket(call: Syscall) -> socket.socket:
    """A duplicate of the socket that *call* should connect."""
    try:
        return socket.socket(fileno=duplicate(call.pid, to_signed(call.arguments[0])))
    except PermissionError as error:
        raise PermissionError(error.errno, _FORBIDDEN) from error


def is_connecting(call: Syscall) -> bool:
    """Whether the socket is being connected already, and *call* checks whether that is over."""
    try:
        with duplicate_socket(call) as connection:
            state = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)
    except OSError:  # Forbidden, or the caller is dead.
        return False
    return state[0] != _CLOSE


def waits_for(pid: int, address: tuple[Any, ...]) -> bool:
    """Whether *pid* waits in recv(2), without a timeout, for what *address* sends.

    Only its main thread counts, which fetches: others may wait for data that is never sent. A
    thread in poll(2) or epoll_wait(2) may have any limit, which cannot be seen from outside.
    """
    try:
        call = proc.running_call(pid)
        return call is not None and _is_wait(pid, call, address)
    except OSError:  # The worker is dead, or the supervisor may not inspect it.
        return False


def _is_wait(pid: int, call: proc.RunningCall, address: tuple[Any, ...]) -> bool:
    if NAMES.get(call.number) not in _RECEIVES:
        return False
    with socket.socket(fileno=duplicate(pid, call.arguments[0])) as connection:
        limit = connection.getsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, 16)
        return not any(limit) and connection.getpeername()[1] == address[1]


def shares_network_namespace(pid: int) -> bool:
    """Whether *pid* has the network namespace of this process."""
    return proc.link(pid, "ns/net") == proc.link("self", "ns/net")
