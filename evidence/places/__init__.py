"""Places where users run pytest: other users, namespaces, file systems, filters, sandboxes.

python evidence places NAME COMMAND...    runs COMMAND there
"""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from paths import PYTHONPATH
from places import enter
from places import seccomp_profiles as profiles


@dataclass(frozen=True)
class Place:
    """One place: what it is *like*, how it is entered, and what comes of it.

    Where no fault can be injected, pytest's header *says* why. Where loaders cannot run, the checks
    *refuse* to say anything of datasets.
    """

    name: str
    like: str
    enter_it: Callable[[], enter.Prefix]
    says: str = ""
    refuses: str = ""
    is_quick: bool = False


_PROC = ("-t", "proc", "-o", "hidepid=2", "proc", "/proc")
_USERS_SHM = ("-t", "tmpfs", "-o", "mode=755", "tmpfs", "/dev/shm")
_NO_SHM = "no shared memory: /dev/shm is not writable"
_REFUSED = "seccomp(2) is forbidden here (the container's seccomp profile?) [EPERM"
_NO_PIDFD = "pidfd_open(2) (Linux 5.3 or newer) is missing or forbidden here"

_ALL = [
    Place("here", "the machine as it is, and root", lambda: None),
    Place("user", "another user: setpriv --reuid=nobody", enter.be_a_user, is_quick=True),
    Place("no-new-privs", "docker --security-opt no-new-privileges", enter.no_new_privs),
    Place(
        "docker",
        "what Docker's default seccomp profile refuses, and the capabilities of root there",
        enter.container_of_root,
    ),
    Place("docker-user", "the same, as another user, no_new_privs", enter.container_of_a_user),
    Place("docker-old", "what the profile of Docker 18.09 refuses", enter.old_container, _NO_PIDFD),
    Place(
        "seccomp-eperm",
        "a profile that answers seccomp(2) with EPERM",
        partial(profiles.refuse, {"seccomp": errno.EPERM}),
        _REFUSED,
    ),
    Place(
        "seccomp-enosys",
        "a profile that answers seccomp(2) with ENOSYS",
        partial(profiles.refuse, {"seccomp": errno.ENOSYS}),
        "seccomp(2) is missing or forbidden here [ENOSYS",
    ),
    Place(
        "no-user-notification",
        "seccomp(2) without user notification (EINVAL), as in gVisor",
        partial(profiles.refuse, {"seccomp": errno.EINVAL}),
        "the kernel does not support seccomp user notification",
    ),
    Place(
        "listened-to",
        "a sandbox that answers system calls itself has the one listener that there can be",
        enter.listened_to,
        "this process already has a seccomp listener (is it in a sandbox?) [EBUSY",
    ),
    Place(
        "no-pidfds",
        "a profile that answers pidfd_open(2) and pidfd_getfd(2) with EPERM",
        partial(profiles.refuse, profiles.PIDFDS),
        _NO_PIDFD,
        is_quick=True,
    ),
    Place(
        "old-calls",
        "openat2(2), clone3(2) and pidfd_open(2) answered with ENOSYS, as by Linux 5.2",
        partial(profiles.refuse, profiles.OLD_KERNEL),
        _NO_PIDFD,
    ),
    Place(
        "no-openat2",
        "openat2(2), clone3(2), close_range(2) and faccessat2(2) answered with ENOSYS",
        partial(profiles.refuse, profiles.NO_NEW_CALLS),
    ),
    Place(
        "memory",
        "process_vm_readv(2) and ptrace(2) answered with EPERM, as by yama's ptrace_scope 2 and 3",
        partial(profiles.refuse, profiles.MEMORY),
        "reading another process's memory is forbidden here",
    ),
    Place(
        "unreadable",
        "an interpreter that its user may run but not read (mode 711): no process may trace it",
        partial(enter.be_a_user, enter.unreadable_interpreter),
        "/proc hides this process",
    ),
    Place("user-namespace", "unshare --map-root-user", enter.root_of_a_user_namespace),
    Place("user-namespace-of-user", "the same, of another user", enter.user_namespace_of_a_user),
    Place(
        "user-namespace-unmapped",
        "unshare --user: every user is 65534",
        partial(enter.unshare, enter.NEW_USER),
    ),
    Place("pid-namespace", "unshare --pid --mount-proc: pytest is process 1", enter.own_pids),
    Place(
        "pid-namespace-old-proc",
        "unshare --pid --fork, and /proc of the other namespace",
        partial(enter.run_below, enter.NEW_PIDS, lambda: None),
        "/proc belongs to another PID namespace",
    ),
    Place(
        "hidepid",
        "/proc with hidepid=2, as another user",
        partial(enter.be_a_user, partial(enter.mount, *_PROC)),
    ),
    Place(
        "no-proc",
        "no /proc",
        partial(enter.mount_alone, "-t", "tmpfs", "tmpfs", "/proc"),
        "/proc is not mounted",
    ),
    Place("overlay", "data and TMPDIR on overlayfs, the data in the lower layer", enter.overlay),
    Place("tmpfs", "data and TMPDIR on tmpfs", enter.tmpfs),
    Place(
        "read-only",
        "all file systems read-only, home and rootdir too; TMPDIR on tmpfs: docker --read-only",
        enter.read_only,
    ),
    Place(
        "shm-64m",
        "/dev/shm of 64 MiB, as Docker has it",
        partial(enter.mount_alone, "-t", "tmpfs", "-o", "size=64m", "tmpfs", "/dev/shm"),
    ),
    Place(
        "shm-read-only",
        "/dev/shm read-only",
        partial(enter.mount_alone, "-t", "tmpfs", "-o", "ro", "tmpfs", "/dev/shm"),
        refuses=_NO_SHM,
    ),
    Place(
        "shm-of-root",
        "/dev/shm where only root writes, as another user",
        partial(enter.be_a_user, partial(enter.mount, *_USERS_SHM)),
        refuses=_NO_SHM,
    ),
    Place("bubblewrap", "bwrap --unshare-all --ro-bind / / --dev /dev", enter.bubblewrap),
]
PLACES = {place.name: place for place in _ALL}


def environment(folder: str) -> dict[str, str]:
    """The environment variables of a command that begins in *folder*."""
    changed = {
        "PYTHONPATH": PYTHONPATH,
        "TMPDIR": os.path.join(folder, "tmp"),
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    return {**os.environ, **changed}


def lacking(name: str) -> str:
    """Why this machine cannot make the place; "" if it can."""
    if name == "bubblewrap" and not shutil.which("bwrap"):
        return "bwrap is not installed"
    if missing := profiles.lacking():
        return missing
    command = [sys.executable, "-m", "places", name, "/bin/true"]
    with tempfile.TemporaryDirectory() as folder:
        for subfolder in ("data", "tmp", "out"):
            os.mkdir(os.path.join(folder, subfolder))
        process = subprocess.run(
            command,
            cwd=folder,
            env=environment(folder),
            capture_output=True,
            text=True,
            check=False,
        )
    return f"this machine cannot make it: {process.stderr[-200:]}" if process.returncode else ""
