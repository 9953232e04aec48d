"""Make calls that name fake files where these files are [runs in the supervisor].

The kernel would look for a fake path among the real files. So the supervisor makes such a call
itself, and gives the caller the result: a descriptor, a struct, or the target of a link.
"""

from __future__ import annotations

import ctypes
import errno
import os
import stat
from collections.abc import Mapping
from typing import Any

from pytest_dataloader_faults._engine.fake import FakeTree
from pytest_dataloader_faults._engine.kernel import caller, linux
from pytest_dataloader_faults._engine.kernel.caller import BadSyscallError, Syscall
from pytest_dataloader_faults._engine.kernel.calls import CHANGING_ATTRIBUTES, Role
from pytest_dataloader_faults._engine.kernel.syscalls import STAT_LENGTHS, STATX_LENGTH, Listener
from pytest_dataloader_faults._engine.system import proc

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
        except BadSyscallError:  # The kernel refuses it, or it is about a descriptor alone.
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
            how = {"changes": changes, "follows": _follows(call, place)}
            paths[place] = located = self._locate(call.pid, path, **how)
            if changes and not self._may_change(call, located):
                raise PermissionError(errno.EACCES, "a real file")
            is_plain = located == os.path.normpath(path) and "/../" not in f"{path}/"
            is_fake |= bool(name) and not is_plain
            if name.endswith(b"/"):
                paths[place] += "/"
        return paths if is_fake else None

    def _locate(self, pid: int, path: str, **how: bool) -> str:
        """Where *path* of *pid* is; it, or a link that it leads to, may lead by way of /proc."""
        located = self._tree.locate(proc.resolve_folder_link(path, pid), **how)
        target = proc.resolve_folder_link(located, pid)
        return located if target == located else self._locate(pid, target, **how)

    def _may_change(self, call: Syscall, located: str) -> bool:
        """Whether what is *located* there is no real file, nor a descriptor of one."""
        if descriptor := proc.parse_descriptor_path(located, call.pid):
            located = proc.link_of(*descriptor)
        return not located.startswith("/") or self._tree.may_change(located)

    def _open(self, call: Syscall, path: str) -> None:
        flags, mode = _flags_and_mode(call)
        if caller.kind_of(path) == stat.S_IFIFO:
            raise OSError(errno.ENXIO, "this process would wait for the other end")
        if flags & os.O_PATH:  # Such a descriptor cannot be passed on.
            flags &= ~(os.O_PATH | os.O_ACCMODE)
        file = os.open(path, flags | os.O_CLOEXEC, mode)
        try:
            self.return_fd(call, file, flags)
        finally:
            os.close(file)

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
        data = result.raw[: STATX_LENGTH if call.name == "statx" else STAT_LENGTHS[linux.MACHINE]]
        if is_link:
            data = result.raw[: min(value, call.arguments[behind + 1])]
            value = len(data)
        linux.write_memory(call.pid, call.arguments[result_at], data)
        return value


def _changes(call: Syscall) -> bool:
    """Whether *call* may create, change or remove what it names."""
    if call.facts.role is Role.OPENS:
        return bool(_flags_and_mode(call)[0] & caller.CHANGING_FLAGS)
    return call.facts.role is Role.CHANGES or call.name in CHANGING_ATTRIBUTES


def _follows(call: Syscall, place: int) -> bool:
    """Whether *call* is about the target of a link at the end of the path at *place*."""
    if call.facts.role is Role.OPENS:
        flags = _flags_and_mode(call)[0]
        is_exclusive = flags & os.O_CREAT and flags & os.O_EXCL
        return not (flags & os.O_NOFOLLOW or is_exclusive)
    if call.facts.role is Role.CHANGES:
        is_old = place == call.facts.path_at
        is_linked = call.name == "linkat" and call.arguments[4] & linux.AT_SYMLINK_FOLLOW
        return call.name == "truncate" or bool(is_old and is_linked)
    return not caller.stat_flags(call)


def _flags_and_mode(call: Syscall) -> tuple[int, int]:
    """The O_* flags of *call*, an open(2) or one of its variants, and the mode of a new file."""
    if call.name == "creat":
        return caller.FLAGS_OF_CREAT, call.arguments[1]
    place = call.argument(call.facts.flags_at)
    if call.name == "openat2":
        data = caller.read_argument(call, place, linux.OPEN_HOW.size)
        flags, mode, _ = linux.OPEN_HOW.unpack(data)
        return flags, mode
    return place & 0xFFFFFFFF, call.arguments[(call.facts.flags_at or 0) + 1] & 0o7777
