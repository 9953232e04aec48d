"""Folders that must not outlive what they are for, whichever process is killed.

Some facts about who makes a folder. Between mkdtemp(3) and the next line a process can be killed,
and then nobody knows the name. So the process that needs the folder chooses a name that no other
one will have, and another process makes the folder and removes it in the end. If that one is
killed, the first one removes the folder, by its name.

multiprocessing puts the sockets by which workers pass tensors on into such a folder. A worker of
root may drop its privileges before it makes one, so root's folder is like /tmp, but cannot be
listed; names in it are random, and who connects has to know a key (multiprocessing.connection).
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import tempfile


def new_name() -> str:
    """The path of a folder that is not there. It is short: that of a socket has 107 bytes."""
    return os.path.join(tempfile.gettempdir(), f"dlf-{secrets.token_hex(6)}")


def make_for_sockets(path: str) -> None:
    """Make the folder *path*, for sockets of this user's processes."""
    os.mkdir(path, 0o700)
    if not os.geteuid():
        os.chmod(path, 0o1733)  # noqa: S103  # as /tmp, less reading


def remove(path: str) -> None:
    """Remove *path*, also where it has copies of folders that are read-only."""
    for folder, _, _ in os.walk(path):
        with contextlib.suppress(OSError):
            os.chmod(folder, 0o700)
    shutil.rmtree(path, ignore_errors=True)
