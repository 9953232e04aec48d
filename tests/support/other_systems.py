"""Another system, as far as Linux can play it: its name, and without what only Linux has.

What the standard library and other packages import for a system is imported before, since they
would look for files and modules that only the real system has.
"""

import ctypes
import multiprocessing.context
import os
import select
import socket
import sys
import sysconfig

import hypothesis.strategies
import psutil
import pyfakefs.fake_filesystem_unittest
import pytest
import torch.utils.data

_IMPORTED = (multiprocessing.context, sysconfig, hypothesis, psutil, pyfakefs, pytest, torch)
_OF_LINUX = {
    os: "pidfd_open memfd_create MFD_CLOEXEC eventfd splice copy_file_range".split(),
    select: [name for name in dir(select) if "epoll" in name.lower()],
    socket: ["SO_PEERCRED"],
}
_OF_UNIX = {
    os: "fork forkpty waitid pipe2 register_at_fork getuid".split(),
    select: ["poll"],
    socket: ["AF_UNIX", "SCM_RIGHTS"],
}
_MODULES_OF_UNIX = ("fcntl", "grp", "pwd", "resource", "termios")


class _Library(ctypes.CDLL):
    def __getattr__(self, name):
        if name in ("prctl", "process_vm_readv", "process_vm_writev"):
            raise AttributeError(f"dlsym(RTLD_DEFAULT, {name}): symbol not found")
        return super().__getattr__(name)


def play(system: str) -> None:
    """From now on this process is one of *system*, as ``sys.platform`` has it."""
    tables = [_OF_LINUX, _OF_UNIX] if system == "win32" else [_OF_LINUX]
    for module, names in (each for table in tables for each in table.items()):
        for name in names:
            vars(module).pop(name, None)
    sys.modules.update(dict.fromkeys(_MODULES_OF_UNIX if system == "win32" else ()))
    ctypes.CDLL = _Library
    sys.platform = system
