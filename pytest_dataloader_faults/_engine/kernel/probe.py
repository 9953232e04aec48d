"""Whether this machine can run the kernel engine [runs in a child that is thrown away].

Some facts about the ways it can be refused. Reading what the kernel says it supports is not
enough: containers and sandboxes refuse the installation itself. gVisor answers NEW_LISTENER with
EINVAL, a seccomp profile may answer EPERM or ENOSYS, and a process that has a listener already
(some sandboxes give it one) gets EBUSY, since there is one listener per tree of tasks.
"""

from __future__ import annotations

import errno
import os

_HINTS = {
    errno.EBUSY: "this process is under a seccomp listener already (a sandbox?)",
    errno.EINVAL: "the kernel knows no user notification (Linux 5.9 or newer has it; gVisor not)",
    errno.ENOSYS: "seccomp(2) is missing or forbidden here",
    errno.EPERM: "seccomp(2) is forbidden here (the container's seccomp profile?)",
    errno.EACCES: "seccomp(2) is forbidden here",
}


def kernel_engine_reason() -> str | None:
    """Install a filter on this process, for good; None if it works, else why not."""
    from pytest_dataloader_faults._engine.kernel import linux
    from pytest_dataloader_faults._engine.kernel.bpf import program

    if linux.MACHINE not in linux.SYSCALLS:
        return f"it knows {' and '.join(linux.SYSCALLS)}, this is {linux.MACHINE}"
    try:
        if (sizes := linux.notification_sizes()) != (linux.NOTIF.size, linux.RESPONSE.size, 64):
            return f"the kernel's notification structs have sizes {sizes}"
        # A machine word of process memory, as the supervisor will read paths.
        linux.read_memory(os.getpid(), id(sizes), 8)
        os.close(os.memfd_create("probe"))
        code = linux.ARCHITECTURES[linux.MACHINE]
        os.close(linux.filter_this_process(program({}, code, base=1 << 20), os.getpid()))
    except OSError as error:
        number = error.errno or 0
        name = errno.errorcode.get(number, "error")
        return f"{_HINTS.get(number, error.strerror)} [{name}, Linux {os.uname().release}]"
    return None
