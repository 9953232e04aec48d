"""Seccomp profiles as containers have them, by libseccomp: which system calls are refused, and how.

Some facts about Docker's default profile. It is a list of what is allowed; all else is answered
with EPERM, and what is newer than the list with ENOSYS. It allows seccomp(2), ptrace(2),
process_vm_readv(2) and pidfd_open(2) to everybody, and refuses pidfd_getfd(2), kcmp(2) and
io_uring_setup(2). A new namespace by clone(2) is refused, and clone3(2), whose flags no filter
sees, does not seem to be there, so that the C library takes clone(2). Up to Docker 19.02 it
refused process_vm_readv(2) and ptrace(2), too, and did not know what came after Linux 5.2.

A list of what is refused is shorter, and the same for the calls that there are here.
"""

from __future__ import annotations

import ctypes
import errno
from collections.abc import Iterable, Mapping

_ALLOW, _ERRNO = 0x7FFF0000, 0x00050000
_NO_NEW_PRIVS = 3
"""The attribute by which libseccomp sets no_new_privs, which takes another call to be undone."""
_EQUAL, _MASKED_EQUAL = 4, 7
_NAMESPACES = tuple(1 << bit for bit in (17, 25, 26, 27, 28, 29, 30))
"""The CLONE_NEW* flags of clone(2), but for that of time, which clone(2) does not have."""
_VSOCK = 40

DOCKER = dict.fromkeys(
    (
        "_sysctl acct add_key bpf chroot clock_settime delete_module fanotify_init finit_module"
        " fsconfig fsmount fsopen fspick get_mempolicy init_module io_uring_enter"
        " io_uring_register io_uring_setup ioperm iopl kcmp kexec_file_load kexec_load keyctl"
        " lookup_dcookie mbind migrate_pages mount mount_setattr move_mount move_pages"
        " nfsservctl open_by_handle_at open_tree perf_event_open pidfd_getfd pivot_root"
        " process_madvise quotactl quotactl_fd reboot request_key set_mempolicy"
        " set_mempolicy_home_node setdomainname sethostname setns settimeofday swapoff swapon"
        " sysfs syslog umount2 unshare uselib userfaultfd ustat vhangup"
    ).split(),
    errno.EPERM,
) | {"clone3": errno.ENOSYS}
"""What a process without capabilities is refused by the profile of November 2025."""
_OTHER_MEMORY = dict.fromkeys(("process_vm_readv", "process_vm_writev", "ptrace"), errno.EPERM)
_SINCE_5_3 = "openat2 close_range pidfd_open faccessat2 epoll_pwait2 rseq statx".split()
OLD_DOCKER = DOCKER | _OTHER_MEMORY | dict.fromkeys(_SINCE_5_3, errno.EPERM)
"""The same as of Docker 18.09, on a kernel that is newer."""
NO_NEW_CALLS = dict.fromkeys(("openat2", "clone3", "close_range", "faccessat2"), errno.ENOSYS)
OLD_KERNEL = dict.fromkeys(("openat2", "clone3", "pidfd_open"), errno.ENOSYS)
MEMORY = _OTHER_MEMORY
PIDFDS = dict.fromkeys(("pidfd_open", "pidfd_getfd"), errno.EPERM)


class _Comparison(ctypes.Structure):
    """struct scmp_arg_cmp."""

    _fields_ = (
        ("argument", ctypes.c_uint),
        ("operator", ctypes.c_int),
        ("first", ctypes.c_uint64),
        ("second", ctypes.c_uint64),
    )


_LIKE_DOCKER = [
    ("socket", _Comparison(0, _EQUAL, _VSOCK, 0)),
    *(("clone", _Comparison(0, _MASKED_EQUAL, each, each)) for each in _NAMESPACES),
]


def lacking() -> str:
    """Why no profile can be made here; "" if one can."""
    try:
        ctypes.CDLL("libseccomp.so.2")
    except OSError as error:
        return str(error)
    return ""


def refuse(calls: Mapping[str, int], arguments: Iterable[tuple[str, _Comparison]] = ()) -> None:
    """Answer system calls of this process, and of all that it starts, with an errno, for good."""
    library = ctypes.CDLL("libseccomp.so.2")
    library.seccomp_init.restype = ctypes.c_void_p
    profile = ctypes.c_void_p(library.seccomp_init(_ALLOW))
    library.seccomp_attr_set(profile, _NO_NEW_PRIVS, 0)
    rules = [(name, number, ()) for name, number in calls.items()]
    rules += [(name, errno.EPERM, (comparison,)) for name, comparison in arguments]
    for name, number, compared in rules:
        call = library.seccomp_syscall_resolve_name(name.encode())
        if call >= 0:  # It may be newer than libseccomp, or of another processor.
            array = (_Comparison * len(compared))(*compared)
            library.seccomp_rule_add_array(profile, _ERRNO | number, call, len(array), array)
    error = library.seccomp_load(profile)
    library.seccomp_release(profile)
    if error:
        raise OSError(-error, "seccomp_load")


def refuse_like_docker(calls: Mapping[str, int] = DOCKER) -> None:
    """The calls, and the arguments of clone(2) and socket(2), that Docker's profile refuses."""
    refuse(calls, _LIKE_DOCKER)
