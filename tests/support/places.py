"""Places where users run pytest: other users, namespaces, file systems, filters, sandboxes.

    PYTHONPATH=tests python -m support.places NAME COMMAND...    runs COMMAND there

Each place is a function that changes this process before it becomes COMMAND, by execve(2). What it
mounts is in a mount namespace of its own, and gone with it. It is entered in a folder that has the
data in ``data``, room for temporary files in ``tmp``, and what the command is asked for in ``out``.
"""

from __future__ import annotations

import ctypes
import errno
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import pytest_dataloader_faults as package
from support import seccomp_profiles as profiles
from support.inner import PYTHONPATH

NOBODY = 65534
_NEW_MOUNTS, _NEW_USER, _NEW_PIDS = 0x00020000, 0x10000000, 0x20000000
_SET_DUMPABLE, _DROP_BOUNDING, _SET_NO_NEW_PRIVS = 4, 24, 38
_CAPABILITIES = 41
_BIND = 0x1000
_OF_DOCKER = {0, 1, 3, 4, 5, 6, 7, 8, 10, 13, 18, 27, 29, 31}
"""The capabilities of root in a container: CHOWN, DAC_OVERRIDE, FOWNER, FSETID, KILL and so on."""
_libc = ctypes.CDLL(None, use_errno=True)

Prefix = list[str] | None
"""What comes before the command, if the place is made by another command."""


@dataclass(frozen=True)
class Place:
    """One place: what it is *like*, how it is entered, and what comes of it.

    *engine* is the one that runs there, or "none". pytest's header *says* why it is not the kernel
    engine. Where loaders cannot run, the checks *refuse* to say anything of datasets.
    """

    name: str
    like: str
    enter: Callable[[], Prefix]
    engine: str = "kernel"
    says: str = ""
    refuses: str = ""
    is_quick: bool = False


def _checked(result: int, what: str) -> None:
    if result:
        raise OSError(ctypes.get_errno(), f"{what}: {os.strerror(ctypes.get_errno())}")


def _unshare(flags: int) -> None:
    _checked(_libc.unshare(flags), "unshare")


def _mount(*arguments: object) -> None:
    subprocess.run(["/bin/mount", *map(str, arguments)], check=True)


def _own_mounts() -> None:
    _unshare(_NEW_MOUNTS)
    _mount("--make-rprivate", "/")


def _let_everybody_read(paths: Iterable[Path]) -> None:
    """Show *paths* to other users, and nothing else of the private folders that they are in."""
    hidden: dict[Path, dict[Path, int]] = {}
    for path in paths:
        private = [each for each in reversed(path.parents) if not each.stat().st_mode & 0o001]
        if private:
            hidden.setdefault(private[0], {})[path] = os.open(path, os.O_PATH)
    for private, shown in hidden.items():
        _mount("-t", "tmpfs", "-o", "mode=755", "tmpfs", private)
        for path, fd in shown.items():
            path.mkdir(parents=True, exist_ok=True)
            # Not by mount(8), which would look up the path that the descriptor had.
            source, target = f"/proc/self/fd/{fd}".encode(), os.fsencode(path)
            _checked(_libc.mount(source, target, None, _BIND, None), "mount")
            os.close(fd)


def _be_a_user(mounting: Callable[[], object] = lambda: None) -> None:
    """Another user, who can read the interpreter, its packages and the plugin."""
    _own_mounts()
    found = (sys.base_prefix, sys.prefix, find_spec("torch").origin, package.__file__)
    folders = [Path(each).resolve() for each in found]
    _let_everybody_read({each if each.is_dir() else each.parents[1] for each in folders})
    for path in [Path(), *Path().rglob("*")]:
        os.chown(path, NOBODY, NOBODY)
    mounting()
    os.setgroups([])
    os.setresgid(NOBODY, NOBODY, NOBODY)
    os.setresuid(NOBODY, NOBODY, NOBODY)
    # Who changes the user without execve(2) may not even look at itself, unless it says so.
    _checked(_libc.prctl(_SET_DUMPABLE, 1, 0, 0, 0), "prctl")


def _no_new_privs() -> None:
    _checked(_libc.prctl(_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "prctl")


def _container_of_root() -> None:
    profiles.refuse_like_docker()
    _drop_capabilities()


def _drop_capabilities() -> None:
    for each in set(range(_CAPABILITIES)) - _OF_DOCKER:
        _libc.prctl(_DROP_BOUNDING, each, 0, 0, 0)


def _container_of_a_user() -> None:
    _be_a_user()
    _no_new_privs()  # Or who is not root may install no filter.
    profiles.refuse_like_docker()


def _old_container() -> None:
    profiles.refuse_like_docker(profiles.OLD_DOCKER)
    _drop_capabilities()


def _unreadable_interpreter() -> None:
    """Nobody may trace a process whose user may run the program but not read it."""
    interpreter = Path(sys.executable).resolve()
    copy = Path("out/python").absolute()
    shutil.copy(interpreter, copy)
    copy.chmod(0o711)
    _mount("--bind", copy, interpreter)


def _run_below(namespaces: int, prepare: Callable[[], object]) -> None:
    """Go on as the first process of new namespaces; this one ends as that one does."""
    _unshare(namespaces)
    if child := os.fork():
        _, status = os.waitpid(child, 0)
        os._exit(os.waitstatus_to_exitcode(status) & 0x7F)
    prepare()


def _own_pids() -> None:
    _run_below(_NEW_PIDS | _NEW_MOUNTS, _fresh_proc)


def _fresh_proc() -> None:
    _mount("--make-rprivate", "/")
    _mount("-t", "proc", "proc", "/proc")


def _root_of_a_user_namespace() -> None:
    user, group = os.getuid(), os.getgid()
    _unshare(_NEW_USER)
    maps = {"setgroups": "deny", "uid_map": f"0 {user} 1", "gid_map": f"0 {group} 1"}
    for name, text in maps.items():
        Path("/proc/self", name).write_text(text, encoding="ascii")


def _user_namespace_of_a_user() -> None:
    _be_a_user()
    _root_of_a_user_namespace()


def _overlay() -> None:
    """The data is in the lower layer, temporary files are in the upper one."""
    _own_mounts()
    layers = Path("layers").absolute()
    layers.mkdir()
    _mount("-t", "tmpfs", "tmpfs", layers)
    for name in ("data", "tmp"):
        upper, scratch, lower = layers / name, layers / f"{name}-work", Path(name).absolute()
        upper.mkdir()
        scratch.mkdir()
        options = f"lowerdir={lower},upperdir={upper},workdir={scratch}"
        _mount("-t", "overlay", "-o", options, "overlay", lower)


def _tmpfs() -> None:
    _own_mounts()
    kept = {path: path.read_bytes() for path in Path("data").iterdir()}
    for name in ("data", "tmp"):
        _mount("-t", "tmpfs", "tmpfs", Path(name).absolute())
    for path, content in kept.items():
        path.write_bytes(content)


def _read_only() -> None:
    """Every file system, home and the tests' own folder too; temporary files are on a tmpfs."""
    _own_mounts()
    out, temporary = Path("out").absolute(), Path("tmp").absolute()
    _mount("--bind", out, out)
    _mount("-t", "tmpfs", "tmpfs", temporary)
    _mount("-o", "remount,bind,ro", "/")
    for path in ("/work", "/tmp", "/var/tmp", "/home"):
        if os.path.ismount(path):
            _mount("-o", "remount,bind,ro", path)


def _mount_alone(*arguments: str) -> None:
    _own_mounts()
    _mount(*arguments)


def _bubblewrap() -> Prefix:
    here = os.getcwd()
    command = "bwrap --unshare-all --die-with-parent --ro-bind / / --dev /dev --proc /proc"
    return [*command.split(), "--bind", here, here, "--"]


def _listened_to() -> None:
    """As a sandbox does that answers some system calls itself."""
    from pytest_dataloader_faults._engine.kernel import bpf, linux

    nothing = bpf.program({}, linux.ARCHITECTURES[linux.MACHINE], base=1 << 20)
    os.set_inheritable(linux.filter_this_process(nothing, os.getpid()), True)


_PROC = ("-t", "proc", "-o", "hidepid=2", "proc", "/proc")
_USERS_SHM = ("-t", "tmpfs", "-o", "mode=755", "tmpfs", "/dev/shm")
_NO_SHM = "no shared memory: /dev/shm is not writable"
_REFUSED = "seccomp(2) is forbidden here (the container's seccomp profile?) [EPERM"
_NO_PIDFD = "pidfd_open(2), of Linux 5.3 or newer, is missing or forbidden here"

_ALL = [
    Place("here", "the machine as it is, and root", lambda: None),
    Place("user", "another user: setpriv --reuid=nobody --clear-groups", _be_a_user, is_quick=True),
    Place("no-new-privs", "no_new_privs: docker --security-opt no-new-privileges", _no_new_privs),
    Place(
        "docker",
        "what Docker's default seccomp profile refuses, and the capabilities of root there",
        _container_of_root,
        is_quick=True,
    ),
    Place("docker-user", "the same as another user, and with no_new_privs", _container_of_a_user),
    Place(
        "docker-old",
        "what the profile of Docker 18.09 refuses",
        _old_container,
        "none",
        _NO_PIDFD,
    ),
    Place(
        "seccomp-eperm",
        "a profile that answers seccomp(2) with EPERM",
        partial(profiles.refuse, {"seccomp": errno.EPERM}),
        "python",
        _REFUSED,
    ),
    Place(
        "seccomp-enosys",
        "a profile that answers seccomp(2) with ENOSYS",
        partial(profiles.refuse, {"seccomp": errno.ENOSYS}),
        "python",
        "seccomp(2) is missing or forbidden here [ENOSYS",
    ),
    Place(
        "no-user-notification",
        "seccomp(2) without user notification: gVisor, or Linux before 5.0 (EINVAL)",
        partial(profiles.refuse, {"seccomp": errno.EINVAL}),
        "python",
        "the kernel knows no user notification",
    ),
    Place(
        "listened-to",
        "a sandbox that answers system calls itself has the one listener that there can be",
        _listened_to,
        "python",
        "this process is under a seccomp listener already (a sandbox?) [EBUSY",
    ),
    Place(
        "no-pidfds",
        "a profile that answers pidfd_open(2) and pidfd_getfd(2) with EPERM",
        partial(profiles.refuse, profiles.PIDFDS),
        "none",
        _NO_PIDFD,
        is_quick=True,
    ),
    Place(
        "old-calls",
        "openat2(2), clone3(2) and pidfd_open(2) answered with ENOSYS, as by Linux 5.2",
        partial(profiles.refuse, profiles.OLD_KERNEL),
        "none",
        _NO_PIDFD,
    ),
    Place(
        "memory",
        "process_vm_readv(2) and ptrace(2) answered with EPERM, as by yama's ptrace_scope 2 and 3",
        partial(profiles.refuse, profiles.MEMORY),
        "python",
        "reading another process's memory is forbidden here",
        is_quick=True,
    ),
    Place(
        "unreadable",
        "an interpreter that its user may run but not read (mode 711): nobody may trace it",
        partial(_be_a_user, _unreadable_interpreter),
        "none",
        "/proc shows nothing of this process",
    ),
    Place("user-namespace", "unshare --map-root-user", _root_of_a_user_namespace),
    Place("user-namespace-of-user", "the same, of another user", _user_namespace_of_a_user),
    Place(
        "user-namespace-unmapped",
        "unshare --user: every user is 65534",
        partial(_unshare, _NEW_USER),
        is_quick=True,
    ),
    Place("pid-namespace", "unshare --pid --mount-proc: pytest is process 1", _own_pids),
    Place(
        "pid-namespace-old-proc",
        "unshare --pid --fork, and /proc of the other namespace",
        partial(_run_below, _NEW_PIDS, lambda: None),
        "none",
        "/proc is that of another PID namespace",
        is_quick=True,
    ),
    Place(
        "hidepid",
        "/proc with hidepid=2, as another user",
        partial(_be_a_user, partial(_mount, *_PROC)),
    ),
    Place(
        "no-proc",
        "no /proc",
        partial(_mount_alone, "-t", "tmpfs", "tmpfs", "/proc"),
        "none",
        "/proc is not mounted",
    ),
    Place("overlay", "data and TMPDIR on overlayfs, the data in the lower layer", _overlay),
    Place("tmpfs", "data and TMPDIR on tmpfs", _tmpfs),
    Place(
        "read-only",
        "all file systems read-only, home and rootdir too; TMPDIR on tmpfs: docker --read-only",
        _read_only,
        is_quick=True,
    ),
    Place(
        "shm-64m",
        "/dev/shm of 64 MiB, as Docker has it",
        partial(_mount_alone, "-t", "tmpfs", "-o", "size=64m", "tmpfs", "/dev/shm"),
    ),
    Place(
        "shm-read-only",
        "/dev/shm read-only",
        partial(_mount_alone, "-t", "tmpfs", "-o", "ro", "tmpfs", "/dev/shm"),
        refuses=_NO_SHM,
    ),
    Place(
        "shm-of-root",
        "/dev/shm where only root writes, as another user",
        partial(_be_a_user, partial(_mount, *_USERS_SHM)),
        refuses=_NO_SHM,
    ),
    Place("bubblewrap", "bwrap --unshare-all --ro-bind / / --dev /dev --proc /proc", _bubblewrap),
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
    command = [sys.executable, "-m", "support.places", name, "/bin/true"]
    with tempfile.TemporaryDirectory() as folder:
        for each in ("data", "tmp", "out"):
            os.mkdir(os.path.join(folder, each))
        done = subprocess.run(
            command,
            cwd=folder,
            env=environment(folder),
            capture_output=True,
            text=True,
            check=False,
        )
    return f"this machine cannot make it: {done.stderr[-200:]}" if done.returncode else ""


def main() -> None:
    """Become the command, in the place."""
    place, command = PLACES[sys.argv[1]], sys.argv[2:]
    prefix = place.enter() or []
    os.execvp([*prefix, *command][0], [*prefix, *command])  # noqa: S606  # that is what it is for


if __name__ == "__main__":
    main()
