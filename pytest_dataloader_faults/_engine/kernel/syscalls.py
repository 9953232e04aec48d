"""System calls of which a filter notifies: receive and answer them [runs in the supervisor]."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import os
import stat
import struct
import sys
from collections.abc import Mapping
from typing import Any, NamedTuple

from pytest_dataloader_faults._engine.fake import FakeTree
from pytest_dataloader_faults._engine.kernel import caller, linux
from pytest_dataloader_faults._engine.kernel.caller import Syscall
from pytest_dataloader_faults._engine.kernel.calls import CHANGING_ATTRIBUTES, SEVERAL, Role
from pytest_dataloader_faults._engine.kernel.linux import Ioctl
from pytest_dataloader_faults._engine.system import proc

# Some facts about seccomp user notification. poll(2) before RECV, since RECV blocks forever once
# the last filtered task has exited; that shows as POLLHUP. RECV needs a zeroed buffer and answers
# ENOENT if the caller died in the meantime: such a call does not need an answer. SEND also answers
# ENOENT for it. ADDFD with SETFD puts a descriptor at a number of our choice, and with SEND also
# makes that number the result of the call, in one step. Without SYNC_WAKE_UP (Linux 6.6) the two
# sides wake each other across processors, which costs ten times as much.


_ZEROES = bytes(linux.NOTIF.size)


class Listener:
    """Answers for the calls of one worker and its descendants."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self._received = bytearray(linux.NOTIF.size)
        self._answer = bytearray(linux.RESPONSE.size)
        with contextlib.suppress(OSError):  # Linux before 6.6: slower, not different.
            fcntl.ioctl(fd, Ioctl.SET_FLAGS, linux.SYNC_WAKE_UP)

    def receive(self) -> Syscall | None:
        """The next call, or None if its caller has died."""
        self._received[:] = _ZEROES
        try:
            fcntl.ioctl(self.fd, Ioctl.RECV, self._received)
        except OSError as error:
            if error.errno in (errno.ENOENT, errno.EINTR):
                return None
            raise
        data = linux.NOTIF.unpack(self._received)
        return Syscall(data[0], data[1], linux.NAMES[data[3]], data[6:])

    def is_waiting(self, call: Syscall) -> bool:
        """Whether the caller is still there, waiting for an answer."""
        try:
            fcntl.ioctl(self.fd, Ioctl.ID_VALID, call.id.to_bytes(8, sys.byteorder))
        except OSError:
            return False
        return True

    def continue_syscall(self, call: Syscall) -> None:
        """Let the kernel execute the call."""
        self._send(call, flags=linux.CONTINUE)

    def fail(self, call: Syscall, number: int) -> None:
        """Answer with an errno; the call is not made."""
        self._send(call, error=-number)

    def return_value(self, call: Syscall, value: int) -> None:
        """Answer with a result; the call is not made."""
        self._send(call, value)

    def return_fd(self, call: Syscall, source: int, flags: int) -> None:
        """Move *source* to the lowest free descriptor of the caller, and answer with that.

        *flags*: those of an open(2). If no number is free, the answer is EMFILE.
        """
        try:
            self._add(call, source, 0, linux.ADDFD_SEND, flags & os.O_CLOEXEC)
        except OSError as error:
            if error.errno != errno.EMFILE:
                raise
            self.fail(call, errno.EMFILE)
        finally:
            os.close(source)

    def replace_fd(self, call: Syscall, source: int, number: int) -> None:
        """Put *source* at descriptor *number* of the caller; the call still waits."""
        self._add(call, source, number, linux.ADDFD_SETFD, os.O_CLOEXEC)

    def _add(self, call: Syscall, source: int, number: int, flags: int, mode: int) -> None:
        request = linux.ADDFD.pack(call.id, flags, source, number, mode)
        self._ioctl(Ioctl.ADDFD, bytearray(request))

    def _send(self, call: Syscall, value: int = 0, error: int = 0, flags: int = 0) -> None:
        linux.RESPONSE.pack_into(self._answer, 0, call.id, value, error, flags)
        self._ioctl(Ioctl.SEND, self._answer)

    def _ioctl(self, request: int, argument: bytearray) -> None:
        try:
            fcntl.ioctl(self.fd, request, argument)
        except OSError as error:
            if error.errno != errno.ENOENT:  # The caller died, so nothing waits for this answer.
                raise


# Some facts about the structs. stat(2) fills a struct stat of 144 bytes on x86_64 and 128 on
# aarch64, with st_size at offset 48 on both; statx(2) fills 256 bytes, with stx_size at offset 40.
# fstat(2) and similar calls on a descriptor do not need this: it is the substitute's, with the
# right size.


_IOVEC = struct.Struct("=QQ")
_PAGE = 4096
_CURRENT = -1
"""To preadv2(2) and pwritev2(2): the offset of the descriptor."""


def span(call: Syscall, number: int) -> tuple[int, int]:
    """Which bytes *call* reads from the descriptor *number*, or maps: the first, and how many.

    Unknown: none.
    """
    if call.name == "mmap":
        return call.arguments[5], call.arguments[1]
    if not call.facts.reads_into_buffers:
        return 0, 0
    start = _offset(call)
    if start is None:
        start = proc.fd_info(number, call.pid).offset
    size = os.stat(f"/proc/{call.pid}/fd/{number}").st_size
    return start, max(0, min(requested_length(call), size - start))


# Some facts about a part of a read or a write. An answer cannot change how much the kernel
# transfers: all of it, or nothing. So the supervisor transfers the part itself, by a duplicate that
# pidfd_getfd(2) gives it. That is the same open file description, so the offset and O_APPEND are
# right by themselves. Docker's own seccomp profile refuses that call if a container lacks
# CAP_SYS_PTRACE. There the supervisor opens the file once more, and puts its own opening under the
# number of the descriptor, at the offset where the part ends. The duplicates that the worker has of
# the descriptor stay where they were, and a flock(2) is lost: so that is the second choice.


_FORBIDDEN = (errno.EPERM, errno.ENOSYS)


class Description(NamedTuple):
    """Our descriptor of the file that a call uses; the caller may not share its offset."""

    descriptor: int
    has_own_offset: bool

    def read(self, listener: Listener, call: Syscall, length: int) -> int:
        """Read *length* bytes for *call*, and move the caller's offset; how many were read."""
        count = _give_short(call, self.descriptor, length)
        self._move_offset(listener, call, call.facts.reads_fd)
        return count

    def write(self, listener: Listener, call: Syscall, length: int) -> int:
        """Write *length* bytes of *call*, and move the caller's offset; how many were written."""
        count = _write_part(call, self.descriptor, length)
        self._move_offset(listener, call, call.facts.writes_fd)
        return count

    def _move_offset(self, listener: Listener, call: Syscall, place: int | None) -> None:
        if self.has_own_offset and _offset(call) is None:
            listener.replace_fd(call, self.descriptor, caller.to_signed(call.argument(place)))


def description_of(call: Syscall, number: int) -> Description:
    """The file of descriptor *number* of the caller; PermissionError if nothing gives us it."""
    try:
        return Description(caller.duplicate(call.pid, number), has_own_offset=False)
    except OSError as error:
        if error.errno not in _FORBIDDEN:
            raise
    return Description(caller.reopen_at_offset(call.pid, number), has_own_offset=True)


def _give_short(call: Syscall, source: int, length: int) -> int:
    """Put at most *length* bytes where *call* wants them; how many they are."""
    start = _offset(call)
    data = os.read(source, length) if start is None else os.pread(source, length, start)
    place = 0
    for address, room in _buffers(call):
        linux.write_memory(call.pid, address, data[place : place + room])
        place += min(room, len(data) - place)
    return len(data)


def requested_length(call: Syscall) -> int:
    """How many bytes *call* should transfer: the length of its buffers."""
    return sum(length for _, length in _buffers(call))


def _write_part(call: Syscall, target: int, length: int) -> int:
    """Write *length* bytes of what *call* writes to *target*, a duplicate; how many it took."""
    flags_at = call.facts.flags_at
    data, flags = _beginning(call, length), 0 if flags_at is None else call.arguments[flags_at]
    start = _offset(call)
    if start is None and not flags:
        return os.write(target, data)
    return os.pwritev(target, [data], _CURRENT if start is None else start, flags)


def _beginning(call: Syscall, length: int) -> bytes:
    """The first *length* bytes in the buffers of *call*."""
    data = bytearray()
    for address, size in _buffers(call):
        end = address + min(size, length - len(data))
        for at in range(address, end, _PAGE):
            data += linux.read_memory(call.pid, at, min(_PAGE, end - at))
    return bytes(data)


def _offset(call: Syscall) -> int | None:
    """Where in the file *call* reads or writes; None: at the descriptor's offset."""
    place = call.facts.offset_at
    if place is None or call.arguments[place] == _CURRENT % (1 << 64):
        return None
    return call.arguments[place]


def _buffers(call: Syscall) -> list[tuple[int, int]]:
    """The address and the length of each buffer."""
    if call.facts.buffers != SEVERAL:
        return [(call.arguments[1], call.arguments[2])]
    address, length = call.arguments[1], call.arguments[2] * _IOVEC.size
    data = b"".join(
        caller.read_argument(call, address + at, min(_PAGE, length - at))
        for at in range(0, length, _PAGE)
    )
    return list(_IOVEC.iter_unpack(data))


_STAT_LENGTHS = {"x86_64": 144, "aarch64": 128}
_STATX_LENGTH = 256
_STAT_SIZE_AT, _STATX_SIZE_AT = 48, 40


def write_stat(call: Syscall, fd: int, size: int) -> None:
    """Fill in the struct that *call* requests: as for the file *fd*, but with *size*."""
    if call.name == "statx":
        flags, mask = call.arguments[2] | linux.AT_EMPTY_PATH, call.arguments[3]
        size_at, data = _STATX_SIZE_AT, ctypes.create_string_buffer(_STATX_LENGTH)
        linux.raw_call("statx", fd, b"", flags, mask, data)
    else:
        size_at, data = _STAT_SIZE_AT, ctypes.create_string_buffer(_STAT_LENGTHS[linux.MACHINE])
        linux.raw_call("newfstatat", fd, b"", data, linux.AT_EMPTY_PATH)
    struct.pack_into("<Q", data, size_at, size)
    linux.write_memory(call.pid, call.argument(call.facts.result_at), data.raw)


# Some facts about listings. getdents64(2) fills struct linux_dirent64: inode, the offset behind the
# entry, the length of the struct, the kind of file, and the name. The offset of the descriptor is
# where the next call continues; rewinddir(3) and seekdir(3) change it by lseek(2), of which the
# filter does not notify. So if entries are not the kernel's, their numbers are put there.


_ENTRY = struct.Struct("=QqHB")
_ALIGNMENT = 8
_ROOM = 1 << 16


FOLDER, REGULAR, LINK, UNKNOWN = 4, 8, 10, 0
"""Kinds of entries, see readdir(3)."""


class Entry(NamedTuple):
    """One entry of a folder; *kind*: ``REGULAR`` and so on."""

    inode: int
    kind: int
    name: bytes

    def pack(self, end: int) -> bytes:
        """The struct for a caller, for which the next entry is at the offset *end*."""
        length = -(-(_ENTRY.size + len(self.name) + 1) // _ALIGNMENT) * _ALIGNMENT
        head = _ENTRY.pack(self.inode, end, length, self.kind)
        return (head + self.name).ljust(length, b"\0")


def read_entries(folder: int) -> list[Entry]:
    """All entries of *folder*, a descriptor of which nothing has been listed."""
    entries, buffer = [], ctypes.create_string_buffer(_ROOM)
    while length := linux.raw_call("getdents64", folder, buffer, _ROOM):
        at = 0
        while at < length:
            inode, _, size, kind = _ENTRY.unpack_from(buffer, at)
            name = buffer.raw[at + _ENTRY.size : at + size].partition(b"\0")[0]
            entries.append(Entry(inode, kind, name))
            at += size
    return entries


def give_entries(call: Syscall, entries: list[Entry], folder: int) -> int:
    """Put the next of *entries* where *call* wants them; how many bytes they are.

    *folder*: a duplicate of the descriptor. OSError(EINVAL): there is no room for one entry.
    """
    place, room, data = os.lseek(folder, 0, os.SEEK_CUR), call.arguments[2] & 0xFFFFFFFF, b""
    for number, entry in enumerate(entries[place:], start=place + 1):
        record = entry.pack(number)
        if len(data) + len(record) > room:
            break
        data, place = data + record, number
    if not data and place < len(entries):
        raise OSError(errno.EINVAL, "the buffer is too small for an entry")
    linux.write_memory(call.pid, call.arguments[1], data)
    os.lseek(folder, place, os.SEEK_SET)
    return len(data)


# Some facts about calls that name fake files. The kernel would look for a fake path among the real
# files. So the supervisor makes such a call itself, and gives the caller the result: a descriptor,
# a struct, or the target of a link.
#
# Some facts about attributes. shutil.copystat() lists the extended attributes of each file that it
# copies. pyfakefs has none on Linux but what a test sets, so no fake file has any here.


_LONGEST_PATH = 4096
_TIMES_SIZE = 32
"""Of two struct timespec, in bytes."""


class FakePathListener(Listener):
    """Answers for the calls of a worker that sees the fake files of *tree*."""

    def __init__(self, fd: int, tree: FakeTree) -> None:
        super().__init__(fd)
        self._tree = tree

    def receive(self) -> Syscall | None:
        """The next call, which is about the files of the tree; None if its caller has died."""
        call = super().receive()
        return None if call is None else call._replace(tree=self._tree)

    def continue_syscall(self, call: Syscall) -> None:
        """Make the call here if it names a fake file; otherwise the kernel executes it."""
        try:
            paths = self._locate_paths(call)
            if paths is None:
                super().continue_syscall(call)
            elif call.facts.role is Role.OPENS:
                self._open(call, *paths.values())
            else:
                self.return_value(call, self._make(call, paths))
        except caller.BadSyscallError:  # The kernel refuses it, or it is about a descriptor alone.
            super().continue_syscall(call)
        except OSError as error:
            self.fail(call, error.errno or errno.EIO)

    def _locate_paths(self, call: Syscall) -> dict[int, str] | None:
        """Where the files are that *call* names, by argument; None if all are where it says.

        Raises PermissionError if it would change a real file.
        """
        places = (each for each in (call.facts.path_at, call.facts.new_path_at) if each is not None)
        changes, paths, is_fake = _changes(call), {}, False
        for place in places:
            name = caller.read_path(call, place)
            path = caller.absolute_path(call, name, place)
            options = {"changes": changes, "follows": _follows(call, place)}
            paths[place] = located = self._locate(call.pid, path, **options)
            descriptor = proc.parse_descriptor_path(located, call.pid) if changes else None
            target = proc.link_of(*descriptor) if descriptor else located
            if changes and target.startswith("/") and not self._tree.may_change(target):
                raise PermissionError(errno.EACCES, "a real file")
            is_plain = located == os.path.normpath(path) and "/../" not in f"{path}/"
            is_fake |= bool(name) and not is_plain
            if name.endswith(b"/"):
                paths[place] += "/"
        return paths if is_fake else None

    def _locate(self, pid: int, path: str, **options: bool) -> str:
        """Where *path* of *pid* is; it, or a link that it leads to, may lead by way of /proc."""
        located = self._tree.locate(proc.resolve_folder_link(path, pid), **options)
        target = proc.resolve_folder_link(located, pid)
        return located if target == located else self._locate(pid, target, **options)

    def _open(self, call: Syscall, path: str) -> None:
        flags, mode, _ = caller.open_how(call)
        if caller.kind_of(path) == stat.S_IFIFO:
            raise OSError(errno.ENXIO, "this process would wait for the other end")
        if flags & os.O_PATH:  # Such a descriptor cannot be passed on.
            flags &= ~(os.O_PATH | os.O_ACCMODE)
        self.return_fd(call, os.open(path, flags | os.O_CLOEXEC, mode), flags)

    def _make(self, call: Syscall, paths: Mapping[int, str]) -> int:
        """Make *call* with these *paths* in place of its own, and return its result."""
        if "xattr" in call.name:
            if "list" in call.name:
                return 0
            raise OSError(errno.ENODATA if "get" in call.name else errno.EOPNOTSUPP, call.name)
        arguments: list[Any] = [ctypes.c_ulong(each) for each in call.arguments]
        for place, path in paths.items():
            arguments[place] = ctypes.c_char_p(os.fsencode(path))
        if call.name in ("symlink", "symlinkat"):  # A target is a fake path, as the link itself.
            arguments[0] = ctypes.c_char_p(caller.read_path(call, 0))
        behind = (call.facts.path_at or 0) + 1
        if call.name == "utimensat" and call.arguments[behind]:
            times = linux.read_memory(call.pid, call.arguments[behind], _TIMES_SIZE)
            arguments[behind] = ctypes.create_string_buffer(times, _TIMES_SIZE)
        is_link = call.name in ("readlink", "readlinkat")
        result_at = behind if is_link else call.facts.result_at
        result = ctypes.create_string_buffer(_LONGEST_PATH)
        if result_at is not None:
            arguments[result_at] = result
        if is_link:
            arguments[behind + 1] = ctypes.c_ulong(_LONGEST_PATH)
        value = linux.raw_call(call.name, *arguments)
        if result_at is None:
            return value
        data = result.raw[: _STATX_LENGTH if call.name == "statx" else _STAT_LENGTHS[linux.MACHINE]]
        if is_link:
            data = result.raw[: min(value, call.arguments[behind + 1])]
            value = len(data)
        linux.write_memory(call.pid, call.arguments[result_at], data)
        return value


def _changes(call: Syscall) -> bool:
    """Whether *call* may create, change or remove what it names."""
    if call.facts.role is Role.OPENS:
        return bool(caller.open_how(call)[0] & caller.CHANGING_FLAGS)
    return call.facts.role is Role.CHANGES or call.name in CHANGING_ATTRIBUTES


def _follows(call: Syscall, place: int) -> bool:
    """Whether *call* is about the target of a link at the end of the path at *place*."""
    if call.facts.role is Role.OPENS:
        flags = caller.open_how(call)[0]
        is_exclusive = flags & os.O_CREAT and flags & os.O_EXCL
        return not (flags & os.O_NOFOLLOW or is_exclusive)
    if call.facts.role is Role.CHANGES:
        is_old = place == call.facts.path_at
        is_linked = call.name == "linkat" and call.arguments[4] & linux.AT_SYMLINK_FOLLOW
        return call.name == "truncate" or bool(is_old and is_linked)
    return not caller.stat_flags(call)
