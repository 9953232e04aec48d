"""Facts about a process that waits in the kernel for an answer [runs in the supervisor]."""

from __future__ import annotations

import errno
import functools
import os
import socket
import stat
import struct
import sys
from typing import Any, NamedTuple

from pytest_dataloader_faults._engine.fake import FakeTree
from pytest_dataloader_faults._engine.kernel import linux
from pytest_dataloader_faults._engine.kernel.calls import CALLS, CHANGING_ATTRIBUTES, Call
from pytest_dataloader_faults._engine.system import proc
from pytest_dataloader_faults.faults.base import MAX_NAME
from pytest_dataloader_faults.faults.globs import connection_path

_MOST_LINKS = 40
_PAGE = 4096


class Syscall(NamedTuple):
    """One system call about which the kernel notified.

    *tree*: the fake files that its process sees, if any.
    """

    id: int
    pid: int
    name: str
    arguments: tuple[int, ...]
    tree: FakeTree | None = None

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


class PathRequest(NamedTuple):
    """What a call of the open(2) or stat(2) kind requests: a file, by O_* and RESOLVE_* flags.

    *path* is absolute, and what globs are about; *raw* is one to open the file by. They differ if
    only the kernel can resolve the path: ``..`` behind a symbolic link, a slash behind a file's
    name, and, with *is_descriptor*, a link of /proc to an open descriptor. And the file of a fake
    path is elsewhere.
    """

    path: str
    raw: str
    is_descriptor: bool = False
    flags: int = 0
    resolve: int = 0

    @property
    def reads(self) -> bool:
        """Whether it opens a file in a way that allows reading what is in it.

        O_CREAT alone changes nothing for a file that is there: SQLite opens every database so.
        """
        without = os.O_EXCL | os.O_TRUNC | os.O_PATH | os.O_DIRECTORY
        return not self.flags & without and self.flags & os.O_ACCMODE != os.O_WRONLY


CHANGING_FLAGS = os.O_CREAT | os.O_WRONLY | os.O_RDWR | os.O_TRUNC
"""Flags of an open(2) that may create the file or change what is in it."""


def open_how(call: Syscall) -> tuple[int, int, int]:
    """The O_* flags of *call*, an open(2) or a variant, the mode of a new file, RESOLVE_* flags."""
    if call.name == "creat":
        return os.O_CREAT | os.O_WRONLY | os.O_TRUNC, call.arguments[1], 0
    place = call.facts.flags_at or 0
    if call.name == "openat2":
        data = read_argument(call, call.arguments[place], linux.OPEN_HOW.size)
        flags, mode, resolve = linux.OPEN_HOW.unpack(data)
        return flags, mode, resolve
    return call.arguments[place] & 0xFFFFFFFF, call.arguments[place + 1] & 0o7777, 0


def open_request(call: Syscall) -> PathRequest:
    """What *call* requests, an open(2) or one of its variants."""
    name, (flags, _, resolve) = read_path(call), open_how(call)
    if resolve & linux.RESOLVE_IN_ROOT:
        name = name.lstrip(b"/")
    request = resolve_path(call, name, flags, changes=bool(flags & CHANGING_FLAGS))
    return request._replace(flags=flags & 0xFFFFFFFF, resolve=resolve)


_OF_LINKS = (
    *("lstat", "lchown", "readlink", "readlinkat"),
    *("llistxattr", "lgetxattr", "lsetxattr", "lremovexattr"),
)
"""Calls that examine a symbolic link itself, without a flag."""


def stat_flags(call: Syscall) -> int:
    """O_NOFOLLOW if *call* examines a link itself, instead of its target."""
    place = call.facts.flags_at
    by_name = call.name in _OF_LINKS
    not_behind = call.arguments[place] & linux.AT_SYMLINK_NOFOLLOW if place else by_name
    return os.O_NOFOLLOW if not_behind else 0


def stat_request(call: Syscall) -> PathRequest:
    """What *call* examines: a link itself, instead of its target, by O_NOFOLLOW."""
    flags, changes = stat_flags(call), call.name in CHANGING_ATTRIBUTES
    return resolve_path(call, read_path(call), flags, changes=changes)._replace(flags=flags)


def resolve_path(
    call: Syscall, name: bytes, flags: int = 0, *, changes: bool = False
) -> PathRequest:
    """The file that a call of the open(2) or stat(2) kind is about; *name* is its path argument.

    *flags*: O_NOFOLLOW for a link itself. *changes*: it may create the file, or change it.
    """
    raw = absolute_path(call, name)
    try:
        raw = proc.resolve_folder_link(raw, call.pid)
    except FileNotFoundError as error:
        raise BadSyscallError from error
    if descriptor := proc.parse_descriptor_path(raw, call.pid):
        link = "/proc/{}/fd/{}".format(*descriptor)
        return PathRequest(name_in(call.tree, read_link(link)), link, is_descriptor=True)
    if call.tree is not None:
        raw = call.tree.locate(raw, changes=changes, follows=not flags & os.O_NOFOLLOW)
    if "/../" not in f"{raw}/":
        return PathRequest(name_in(call.tree, os.path.abspath(raw)), raw)
    folder, base = os.path.split(raw.rstrip("/"))
    folder, base = os.path.split(os.path.realpath(raw)) if base == ".." else (folder, base)
    return PathRequest(os.path.join(os.path.realpath(folder), base), raw)


def absolute_path(call: Syscall, name: bytes, place: int | None = None) -> str:
    """The path *name*, argument *place* of *call* or the only one, from the root folder."""
    path = os.fsdecode(name)
    is_absolute = path.startswith("/")
    return path if is_absolute else os.path.join(read_link(folder_link(call, place)), path)


def name_in(tree: FakeTree | None, path: str) -> str:
    """The path that globs match of the file at *path*: the fake one, if *tree* has it."""
    return path if tree is None else tree.name(path)


def read_argument(call: Syscall, address: int, length: int) -> bytes:
    """What a pointer among the arguments of *call* leads to."""
    try:
        return linux.read_memory(call.pid, address, length)
    except OSError as error:
        if error.errno != errno.EFAULT:
            raise
        raise BadSyscallError from error


def read_link(link: str) -> str:
    """Where the *link* in /proc leads to, which the call needs."""
    try:
        return os.readlink(link)
    except FileNotFoundError as error:
        raise BadSyscallError from error


def find(call: Syscall, request: PathRequest) -> str:
    """A path by which this process finds the file that *request* means to the caller of *call*."""
    if request.is_descriptor:
        return request.raw
    follows = not request.flags & os.O_NOFOLLOW
    return walk("/", request.raw, "/", call.pid, follows=follows)


def walk(start: str, name: str, root: str, thread: int, *, follows: bool) -> str:
    """The path that *name* leads the caller to from *start*, without links.

    A link of /proc to "self" means the caller's process, and an absolute link starts at its *root*.
    """
    path, names, links = start, name.split("/")[::-1], 0
    while names:
        part = names.pop()
        if part in ("", "."):
            continue
        if len(os.fsencode(part)) > MAX_NAME:
            raise BadSyscallError
        path = os.path.dirname(path) if part == ".." else os.path.join(path, part)
        if path == "/proc/self":
            path = f"/proc/{proc.status(thread).process}"
        elif path == "/proc/thread-self":
            path = f"/proc/{proc.status(thread).process}/task/{thread}"
        elif names or follows:
            kind = kind_of(path)
            if kind == stat.S_IFREG and names:  # It is not a folder.
                raise BadSyscallError
            if kind == stat.S_IFLNK:
                links += 1
                if links > _MOST_LINKS:
                    raise BadSyscallError
                target = os.readlink(path)
                names += target.split("/")[::-1]
                path = root if target.startswith("/") else os.path.dirname(path)
    return path


def kind_of(path: str) -> int:
    """S_IFREG and so on, of a link itself; 0 if there is nothing."""
    try:
        return stat.S_IFMT(os.lstat(path).st_mode)
    except OSError:
        return 0


_IN_CWD = ("rename", "link", "symlink")
"""Calls whose second path is not behind the descriptor of a folder."""


def folder_link(call: Syscall, place: int | None = None) -> str:
    """The link in /proc to the folder that the path at *place* of *call* is relative to."""
    place = call.facts.path_at if place is None else place
    fd = to_signed(call.arguments[place - 1]) if place else linux.AT_FDCWD
    is_in_cwd = fd == linux.AT_FDCWD or call.name in _IN_CWD
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
        return linux.raw_call("pidfd_getfd", pidfd, fd, 0)
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


@functools.lru_cache(1)
def read_path(call: Syscall, place: int | None = None) -> bytes:
    """The path at argument *place* of *call*, or the only one that it is about.

    The latest one is kept, because several answers may ask for it.
    """
    return _string(call.pid, call.argument(call.facts.path_at if place is None else place))


def _string(pid: int, address: int) -> bytes:
    """A C string. Read up to the end of its page first: the next one may not be there."""
    text = b""
    while len(text) < _PAGE:
        try:
            text += linux.read_memory(pid, address, _PAGE - address % _PAGE)
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
        data = linux.read_memory(
            call.pid, call.arguments[1], min(call.arguments[2] & 0xFFFFFFFF, 28)
        )
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
    if linux.NAMES.get(call.number) not in _RECEIVES:
        return False
    with socket.socket(fileno=duplicate(pid, call.arguments[0])) as connection:
        limit = connection.getsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, 16)
        return not any(limit) and connection.getpeername()[1] == address[1]


# Whether a process opens files as the supervisor does [runs in the supervisor].
#
# Some facts about what a path means. The kernel looks it up from the caller's root folder
# (chroot(2)) in the caller's mounts (mount_namespaces(7)), and opens what is there if the caller's
# file system ids, groups and capabilities allow it (credentials(7), path_resolution(7)). So the
# same path may mean another file to the supervisor, or one that the caller must not read.
# /proc/PID/root, ns and status show all of that, if the supervisor may read them (ptrace(2),
# "access mode checking"); to read them takes longer than an open(2) with all that is done about it.
# But only a few system calls can change it (``Role.CHANGES_IDENTITY``), and the filter notifies of
# those. So reading once suffices until such a call is made.


INVISIBLE = "by a process that the supervisor may not inspect"
_ELSEWHERE = "with a different root folder or different mounts"
_OTHER_RIGHTS = "as a different user, or with different groups or capabilities"
_FOR_FILES = 0b1110
"""CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH and CAP_FOWNER: those that let open(2) pass."""


class Identities:
    """The identities of a worker and its descendants, compared with the supervisor's own."""

    def __init__(self) -> None:
        self._may_differ = True
        self._changed = False

    def note_change(self) -> None:
        """A call that may change one is about to be made."""
        self._changed = True

    def difference(self, pid: int) -> str | None:
        """How *pid* opens files unlike the supervisor, as text; None if it does not."""
        if not self._may_differ and not self._changed:
            return None
        difference = _difference(pid)
        self._may_differ = difference is not None
        return difference


def _difference(pid: int) -> str | None:
    try:
        place, rights = _identity_of(pid)
    except PermissionError:
        return INVISIBLE
    own_place, own_rights = _own_identity()
    if place != own_place:
        return _ELSEWHERE
    return _OTHER_RIGHTS if rights != own_rights else None


@functools.cache
def _own_identity() -> tuple[object, object]:
    return _identity_of("self")


def _identity_of(pid: proc.Pid) -> tuple[object, object]:
    """Where *pid* looks up paths, and with which rights."""
    status = proc.status(pid)
    root, mounts, users = (proc.link(pid, name) for name in ("root", "ns/mnt", "ns/user"))
    capabilities = status.capabilities & _FOR_FILES
    return (root, mounts), (status.user, status.group, status.groups, capabilities, users)
