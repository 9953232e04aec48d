"""Folders that must not outlive what they are for, whichever process is killed.

Some facts about who makes a folder. Between mkdtemp(3) and the next line a process can be killed,
and then the name is lost. So the process that needs the folder chooses a name that no other
one will have, and another process makes the folder and removes it in the end. If that one is
killed, the first one removes the folder, by its name.

multiprocessing puts the sockets by which workers pass tensors on into such a folder. A worker of
root may drop its privileges before it makes one, so root's folder is like /tmp, but cannot be
listed; names in it are random, and who connects has to know a key (multiprocessing.connection).

The path of a socket has at most 107 bytes (unix(7)). multiprocessing adds 18 to that of its folder.
Where TMPDIR is longer than the rest, workers cannot pass tensors on, and a loader waits forever.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import tempfile

from pytest_dataloader_faults.exceptions import UnusableEnvironmentError

_SHORT = "/tmp"
_LONGEST = 107 - len("/dlf-" + 12 * "x") - len("/listener-" + 8 * "x")


def name_for_sockets() -> str:
    """The path of a folder that is not there, short enough for the sockets in it."""
    usual = tempfile.gettempdir()
    if len(os.fsencode(usual)) <= _LONGEST:
        return _name_below(usual)
    if not os.access(_SHORT, os.W_OK | os.X_OK):
        message = (
            f"the folder for temporary files has a long path, {usual}, and no file can be made in"
            f" {_SHORT}. Sockets of workers need a path of at most {_LONGEST} bytes. Set TMPDIR to"
            " a folder with a shorter path. No dataset was judged"
        )
        raise UnusableEnvironmentError(message)
    return _name_below(_SHORT)


def _name_below(folder: str) -> str:
    return os.path.join(folder, f"dlf-{secrets.token_hex(6)}")


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
