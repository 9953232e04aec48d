"""Whether this machine can run the kernel engine [runs in a child that is thrown away].

Some facts about the ways it can be refused. Reading what the kernel says it supports is not
enough: containers and sandboxes refuse the installation itself. gVisor answers NEW_LISTENER with
EINVAL, a seccomp profile may answer EPERM or ENOSYS, and a process that has a listener already
(some sandboxes give it one) gets EBUSY, since there is one listener per tree of tasks.

A process may always read its own memory. That of another, which the supervisor reads, takes the
right to trace it: yama refuses that from ptrace_scope 2 on, and so may a seccomp profile, AppArmor
or SELinux.
"""

from __future__ import annotations

import errno
import os

from pytest_dataloader_faults._engine.system import proc
from pytest_dataloader_faults._engine.system.processes import fork

_HINTS = {
    errno.EBUSY: "this process is under a seccomp listener already (a sandbox?)",
    errno.EINVAL: "the kernel knows no user notification (Linux 5.9 or newer has it; gVisor not)",
    errno.ENOSYS: "seccomp(2) is missing or forbidden here",
    errno.EPERM: "seccomp(2) is forbidden here (the container's seccomp profile?)",
    errno.EACCES: "seccomp(2) is forbidden here",
}
_NO_MEMORY = (
    "reading another process's memory is forbidden here (kernel.yama.ptrace_scope above 1? a"
    " profile of seccomp, AppArmor or SELinux?)"
)
_ANY_PROCESS = -1
"""For PR_SET_PTRACER: whatever reads is a child of this process, or its supervisor."""


def kernel_engine_reason() -> str | None:
    """Install a filter on this process, permanently; None if it works, else why not."""
    from pytest_dataloader_faults._engine.kernel import linux
    from pytest_dataloader_faults._engine.kernel.bpf import program

    if linux.MACHINE not in linux.SYSCALLS:
        return f"it knows {' and '.join(linux.SYSCALLS)}, this is {linux.MACHINE}"
    try:
        if (sizes := linux.notification_sizes()) != (linux.NOTIF.size, linux.RESPONSE.size, 64):
            return f"the kernel's notification structs have sizes {sizes}"
        os.close(os.memfd_create("probe"))
        code = linux.ARCHITECTURES[linux.MACHINE]
        os.close(linux.filter_this_process(program({}, code, base=1 << 20), _ANY_PROCESS))
    except OSError as error:
        number = error.errno or 0
        name = errno.errorcode.get(number, "error")
        return f"{_HINTS.get(number, error.strerror)} [{name}, Linux {os.uname().release}]"
    return _memory_reason()


def _memory_reason() -> str | None:
    """Why another process cannot read the memory of this one; None if it can."""
    if not (child := fork()):
        os._exit(_error_of_reading(os.getppid()))
    number = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if not number:
        return None
    name = errno.errorcode.get(number, "error")
    return f"{_NO_MEMORY} [{name}, Linux {os.uname().release}]"


def _error_of_reading(pid: int) -> int:
    """The errno with which the memory of *pid*, a parent, or its descriptors cannot be read."""
    from pytest_dataloader_faults._engine.kernel import linux

    word = 8
    try:
        linux.read_memory(pid, id(word), word)
        proc.descriptors(pid)
    except OSError as error:
        return error.errno or -1
    return 0
