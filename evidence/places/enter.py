"""How a process enters each of the places: it changes itself, for good, before execve(2).

What is mounted is in a mount namespace of its own, and gone with it. A process is in a folder that
has the data in ``data``, room for temporary files in ``tmp``, and the reports in ``out``.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable
from importlib.util import find_spec
from pathlib import Path

import pytest_dataloader_faults as package
from places import seccomp_profiles as profiles

NOBODY = 65534
NEW_USER, NEW_PIDS = 0x10000000, 0x20000000
_NEW_MOUNTS = 0x00020000
_BIND = 0x1000
_SET_DUMPABLE, _DROP_BOUNDING, _SET_NO_NEW_PRIVS = 4, 24, 38
_CAPABILITIES = 41
_OF_DOCKER = {0, 1, 3, 4, 5, 6, 7, 8, 10, 13, 18, 27, 29, 31}
"""The capabilities of root in a container: CHOWN, DAC_OVERRIDE, FOWNER, FSETID, KILL and so on."""
_libc = ctypes.CDLL(None, use_errno=True)

Prefix = list[str] | None
"""What comes before the command, if the place is made by another command."""


def _checked(result: int, call: str) -> None:
    if result:
        raise OSError(ctypes.get_errno(), f"{call}: {os.strerror(ctypes.get_errno())}")


def unshare(flags: int) -> None:
    """Leave namespaces for new ones, by unshare(2)."""
    _checked(_libc.unshare(flags), "unshare")


def mount(*arguments: object) -> None:
    """mount(8), by its own arguments."""
    subprocess.run(["/bin/mount", *map(str, arguments)], check=True)


def _own_mounts() -> None:
    unshare(_NEW_MOUNTS)
    mount("--make-rprivate", "/")


def _let_everybody_read(paths: Iterable[Path]) -> None:
    """Show *paths* to other users, and nothing else of the private folders that they are in."""
    hidden: dict[Path, dict[Path, int]] = {}
    for path in paths:
        private = [each for each in reversed(path.parents) if not each.stat().st_mode & 0o001]
        if private:
            hidden.setdefault(private[0], {})[path] = os.open(path, os.O_PATH)
    for private, descriptors in hidden.items():
        mount("-t", "tmpfs", "-o", "mode=755", "tmpfs", private)
        for path, fd in descriptors.items():
            path.mkdir(parents=True, exist_ok=True)
            # Not by mount(8), which would look up the path that the descriptor had.
            source, target = f"/proc/self/fd/{fd}".encode(), os.fsencode(path)
            _checked(_libc.mount(source, target, None, _BIND, None), "mount")
            os.close(fd)


def be_a_user(mounting: Callable[[], object] = lambda: None) -> None:
    """Another user, who can read the interpreter, its packages and the plugin."""
    _own_mounts()
    origins = (sys.base_prefix, sys.prefix, find_spec("torch").origin, package.__file__)
    folders = [Path(each).resolve() for each in origins]
    _let_everybody_read({each if each.is_dir() else each.parents[1] for each in folders})
    for path in [Path(), *Path().rglob("*")]:
        os.chown(path, NOBODY, NOBODY)
    mounting()
    os.setgroups([])
    os.setresgid(NOBODY, NOBODY, NOBODY)
    os.setresuid(NOBODY, NOBODY, NOBODY)
    # Who changes the user without execve(2) may not even look at itself, unless it says so.
    _checked(_libc.prctl(_SET_DUMPABLE, 1, 0, 0, 0), "prctl")


def no_new_privs() -> None:
    """No execve(2) gives this process any rights."""
    _checked(_libc.prctl(_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "prctl")


def container_of_root() -> None:
    """Docker's default profile, and the capabilities of root in a container."""
    profiles.refuse_like_docker()
    _drop_capabilities()


def _drop_capabilities() -> None:
    for capability in set(range(_CAPABILITIES)) - _OF_DOCKER:
        _libc.prctl(_DROP_BOUNDING, capability, 0, 0, 0)


def container_of_a_user() -> None:
    """The profile, and another user who gets no rights."""
    be_a_user()
    no_new_privs()  # Or who is not root may install no filter.
    profiles.refuse_like_docker()


def old_container() -> None:
    """The profile of Docker 18.09."""
    profiles.refuse_like_docker(profiles.OLD_DOCKER)
    _drop_capabilities()


def unreadable_interpreter() -> None:
    """Nobody may trace a process whose user may run the program but not read it."""
    interpreter = Path(sys.executable).resolve()
    copy = Path("out/python").absolute()
    shutil.copy(interpreter, copy)
    copy.chmod(0o711)
    mount("--bind", copy, interpreter)


def run_below(namespaces: int, prepare: Callable[[], object]) -> None:
    """Go on as the first process of new namespaces; this one ends as that one does."""
    unshare(namespaces)
    if child := os.fork():
        _, status = os.waitpid(child, 0)
        os._exit(os.waitstatus_to_exitcode(status) & 0x7F)
    prepare()


def own_pids() -> None:
    """Be process 1 of a PID namespace, with its /proc."""
    run_below(NEW_PIDS | _NEW_MOUNTS, _fresh_proc)


def _fresh_proc() -> None:
    mount("--make-rprivate", "/")
    mount("-t", "proc", "proc", "/proc")


def root_of_a_user_namespace() -> None:
    """Be root in a user namespace that has no other user."""
    user, group = os.getuid(), os.getgid()
    unshare(NEW_USER)
    maps = {"setgroups": "deny", "uid_map": f"0 {user} 1", "gid_map": f"0 {group} 1"}
    for name, text in maps.items():
        Path("/proc/self", name).write_text(text, encoding="ascii")


def user_namespace_of_a_user() -> None:
    """The same, where the user is not root outside."""
    be_a_user()
    root_of_a_user_namespace()


def overlay() -> None:
    """The data is in the lower layer, temporary files are in the upper one."""
    _own_mounts()
    layers = Path("layers").absolute()
    layers.mkdir()
    mount("-t", "tmpfs", "tmpfs", layers)
    for name in ("data", "tmp"):
        upper, scratch, lower = layers / name, layers / f"{name}-work", Path(name).absolute()
        upper.mkdir()
        scratch.mkdir()
        options = f"lowerdir={lower},upperdir={upper},workdir={scratch}"
        mount("-t", "overlay", "-o", options, "overlay", lower)


def tmpfs() -> None:
    """The data and temporary files are on file systems in memory."""
    _own_mounts()
    contents = {path: path.read_bytes() for path in Path("data").iterdir()}
    for name in ("data", "tmp"):
        mount("-t", "tmpfs", "tmpfs", Path(name).absolute())
    for path, content in contents.items():
        path.write_bytes(content)


def read_only() -> None:
    """Every file system, home and the tests' own folder too; temporary files are on a tmpfs."""
    _own_mounts()
    out, temporary = Path("out").absolute(), Path("tmp").absolute()
    mount("--bind", out, out)
    mount("-t", "tmpfs", "tmpfs", temporary)
    mount("-o", "remount,bind,ro", "/")
    for path in ("/work", "/tmp", "/var/tmp", "/home"):
        if os.path.ismount(path):
            mount("-o", "remount,bind,ro", path)


def mount_alone(*arguments: str) -> None:
    """Mount something, in a mount namespace of this process."""
    _own_mounts()
    mount(*arguments)


def bubblewrap() -> Prefix:
    """A sandbox in which all but this folder is read-only."""
    folder = os.getcwd()
    command = "bwrap --unshare-all --die-with-parent --ro-bind / / --dev /dev --proc /proc"
    return [*command.split(), "--bind", folder, folder, "--"]


def listened_to() -> None:
    """As a sandbox does that answers some system calls itself."""
    from pytest_dataloader_faults._engine.kernel import calls, linux

    nothing = calls.program({}, linux.ARCHITECTURES[linux.MACHINE], base=1 << 20)
    os.set_inheritable(linux.filter_this_process(nothing, os.getpid()), True)
