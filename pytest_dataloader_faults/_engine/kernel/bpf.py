"""The filter program: which system calls are handed to the supervisor. Pure: tables in, bytes out.

Some facts about classic BPF in seccomp: a program sees the call's number, architecture and six
arguments, never what they point to; jumps go forward only, by at most 255; arguments are 64 bits
wide and loaded in halves. A descriptor is a C int, so comparing its low half is enough.

Which file a descriptor is, the program cannot know. So reads of all descriptors are handed over, or
none, if no fault and no count is about reads.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping

from pytest_dataloader_faults._engine.calls import (
    BY_PATH,
    CALLS,
    Role,
    calls_for,
    calls_with_role,
    changed_fd,
)
from pytest_dataloader_faults._engine.kernel import linux
from pytest_dataloader_faults._engine.plan import FilterRequirements
from pytest_dataloader_faults._engine.system.libc import Prctl
from pytest_dataloader_faults.faults.base import Place

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
_LOCKS = (linux.F_SETLK, linux.F_SETLKW, linux.F_OFD_SETLK, linux.F_OFD_SETLKW)


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
    if name != "clone" or Place.START in needs.places:
        return _NOTIFY  # Of clone3(2), the flags are in memory.
    return _argument(0) + _instruction(_JSET, _NEW_NAMESPACES, 1, 0) + _ALLOW + _NOTIFY


def _on_change(name: str, number: int) -> bytes:
    """Notify if *name* may change the file of argument *number*, or maps it to be changed."""
    if name == "mmap":
        shared = _argument(3) + _instruction(_JSET, linux.MAP_SHARED, 0, 1) + _NOTIFY
        over = len(shared) // _INSTRUCTION.size
        return _argument(2) + _instruction(_JSET, linux.PROT_WRITE, 0, over) + shared
    return _on_descriptor(number)


def _on_duplicate(name: str) -> bytes:
    """Notify if *name* makes a duplicate, whose number may be the last one."""
    if name != "fcntl":
        return _NOTIFY
    plain, on_exec = linux.F_DUPFD, linux.F_DUPFD_CLOEXEC
    duplicating = _instruction(_JEQ, plain, 2, 0) + _instruction(_JEQ, on_exec, 1, 0)
    return _argument(1) + duplicating + _ALLOW + _NOTIFY


def _on_lock(name: str) -> bytes:
    """Notify if *name* locks a file, whatever its descriptor is."""
    if name == "flock":
        return _NOTIFY
    if name == "fcntl":
        checks = (_instruction(_JEQ, command, 0, 1) + _NOTIFY for command in _LOCKS)
        return _argument(1) + b"".join(checks)
    return b""


def _notify_from(index: int, least: int) -> bytes:
    """Notify if argument *index* is *least* or more, else allow; on every path."""
    high, low = divmod(least, _WORD)
    return (
        _instruction(_LOAD, _ARGUMENTS + 8 * index + 4)
        + _instruction(_JGE, high + 1, 4, 0)
        + _instruction(_JEQ, high, 0, 2)
        + _argument(index)
        + _instruction(_JGE, low, 1, 0)
        + _ALLOW
        + _NOTIFY
    )


def _on_allocation(name: str, least: int) -> bytes:
    """Notify if *name* gets *least* bytes of memory or more, or may do so instead of another call.

    Of mmap(2), what maps a file is left to the rest of the program.
    """
    if name == "brk":
        return _NOTIFY
    if name == "mprotect":
        return _argument(2) + _instruction(_JSET, linux.PROT_WRITE, 1, 0) + _ALLOW + _NOTIFY
    if name == "mremap":
        return _notify_from(2, least)
    anonymous = _instruction(_JSET, _PLACED, 0, 1) + _ALLOW + _notify_from(1, least)
    over = len(anonymous) // _INSTRUCTION.size
    return _argument(3) + _instruction(_JSET, linux.MAP_ANONYMOUS, 0, over) + anonymous


def _body(name: str, needs: FilterRequirements) -> bytes:
    """What to do when the call is *name*; ends in a return on every path."""
    call = CALLS[name]
    if call.role in (Role.CHANGES_IDENTITY, Role.CHANGES):
        return _on_request(name)
    if call.role is Role.STARTS:
        return _on_start(name, needs)
    if call.role in BY_PATH:
        return _allow_flag(call.flags_at, linux.AT_EMPTY_PATH) + _NOTIFY
    if call.role is Role.DUPLICATES:
        return _on_duplicate(name) if Place.ALLOCATION in needs.places else _ALLOW
    body = _allow_flag(3, linux.MAP_ANONYMOUS) if name == "mmap" else b""
    if (number := changed_fd(name, needs.places)) is not None:
        body += _on_change(name, number)
    elif call.role is not Role.TRANSFERS:
        return _NOTIFY
    if call.reads_fd is not None and Place.READ in needs.places:
        body += _on_descriptor(call.reads_fd)
    return body + _ALLOW


def program(
    syscalls: Mapping[str, int],
    architecture: int,
    needs: FilterRequirements = _NO_REQUIREMENTS,
) -> bytes:
    """The filter, as an array of struct sock_filter.

    *syscalls* maps names to numbers; names this machine does not have are left out.
    """
    code = _instruction(_LOAD, _ARCHITECTURE) + _instruction(_JEQ, architecture, 1, 0) + _ALLOW
    code += _instruction(_LOAD, _NUMBER)
    for name in calls_for(needs.places):
        if name in syscalls:
            body = _on_lock(name) if Place.LOCK in needs.places else b""
            if needs.memory and name in _ALLOCATE:
                body += _on_allocation(name, needs.memory)
            if CALLS[name].role is not Role.GROWS:
                body += _body(name, needs)
            # A plain jump over *body*, since the 8 bits of a conditional one may not reach.
            over = _instruction(_JUMP, len(body) // _INSTRUCTION.size)
            code += _instruction(_JEQ, syscalls[name], 1, 0) + over + body
    return code + _ALLOW
