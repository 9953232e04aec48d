"""Which files and which connections a glob means. Pure.

Left out unless a glob names their folder literally: the system's own files, installed packages, and
code (its import or the printing of a traceback would otherwise be hit by ``"*"``).
"""

from __future__ import annotations

import fnmatch
import os
import re
import sys
import sysconfig
from collections.abc import Iterable
from functools import lru_cache

# Some facts about /dev/shm. shm_open(3) and sem_open(3) do not accept a name with a slash, so the
# segments and semaphores of all libraries lie directly in it: torch_PID_..., sem.mp-..., psm_...
# and pym-... of multiprocessing, and others whose names are unknown (vader_segment.host.0,
# cuda.shm.0.1.1). A fault in one would break the communication of processes instead of what they
# read from a disk. Data that was copied there for speed is in a folder, or its name ends as that of
# a file does.
#
# The path of a TCP connection is the address of the peer: ``tcp://192.0.2.1:443`` or
# ``tcp://[2001:db8::1]:443``. Like a system file, only an explicit glob matches it, one that starts
# with tcp://. The bracket after that is part of the address.


SCHEME = "tcp://"
"""The start of the path of a TCP connection."""
IN_MEMORY = "/dev/shm/"
_SYSTEM = (
    SCHEME,
    *("/proc/", "/sys/", "/dev/", "/memfd:", "/etc/", "/lib/", "/lib32/", "/lib64/"),
    *("/bin/", "/usr/bin/", "/usr/lib/", "/usr/lib32/", "/usr/lib64/", "/usr/share/"),
    *("/usr/local/bin/", "/usr/local/lib/"),
)
_SEGMENT = re.compile(r"/dev/shm/(torch_|sem\.|psm_|pym-)[^/]*")
_ENDING = r"\.([a-z][a-z0-9]{0,7}|[A-Z][A-Z0-9]{0,7})"
_DATA_IN_MEMORY = re.compile(rf"/dev/shm/([^/]+/.+|[^/.][^/]*{_ENDING})", re.DOTALL)
_CODE = (".py", ".pyc", ".pyi", ".so", ".pth", ".egg-link")
_WILD = re.compile(r"[*?\[]")


def is_below(path: str, folders: Iterable[str]) -> bool:
    """Whether *path* is one of *folders*, or in one of them."""
    return os.path.join(path, "").startswith(tuple(os.path.join(each, "") for each in folders))


@lru_cache
def package_folders() -> tuple[str, ...]:
    """Where Python and its packages are; it takes a millisecond to find out."""
    python = (sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib"))
    prefixes = {sys.prefix, sys.base_prefix}
    environment = (f"{each}/{name}" for each in prefixes for name in ("bin/", "lib/", "pyvenv.cfg"))
    return (*(f"{folder}/" for folder in python if folder), *environment)


def _is_code(path: str) -> bool:
    return path.endswith(_CODE) or ".so." in path


def _is_segment(path: str) -> bool:
    return _SEGMENT.fullmatch(path) is not None


def _is_system_path(path: str) -> bool:
    if not path.startswith(_SYSTEM):
        return False
    return _is_segment(path) or not _DATA_IN_MEMORY.fullmatch(path)


def is_absolute(glob: str) -> bool:
    """Whether *glob* can match an absolute path."""
    return glob.startswith(("*", "?", "[", "/", SCHEME))


def may_be_data(path: str) -> bool:
    """Whether *path*, which is left out, might be what a dataset reads.

    That is data in a package, and what lies directly in /dev/shm under an arbitrary name.
    """
    in_memory = path.startswith(IN_MEMORY) and not _is_segment(path)
    return not _is_code(path) and (in_memory or not path.startswith(_SYSTEM))


@lru_cache(1 << 12)
def is_excluded(path: str) -> bool:
    """Whether *path* is a system, package or code file, which no dataset means by its data."""
    in_package = path.startswith(package_folders()) or "/site-packages/" in path
    return _is_system_path(path) or in_package or _is_code(path)


def is_address(path: str) -> bool:
    """Whether *path* is the address of a connection, or a glob for some."""
    return path.startswith(SCHEME)


def connection_path(host: str, port: int | str) -> str:
    """The path of a connection to that address."""
    return f"{SCHEME}{f'[{host}]' if ':' in host else host}:{port}"


def host_of(path: str) -> str:
    """The address in the *path* of a connection, without the port."""
    return path.removeprefix(SCHEME).rpartition(":")[0]


def is_by_name(glob: str) -> bool:
    """Whether *glob* names the host of connections, whose paths have its address.

    No address has a letter beyond f.
    """
    return is_address(glob) and re.search("[g-zG-Z]", glob.removeprefix(SCHEME)) is not None


def has_address(text: str, path: str) -> bool:
    """Whether *text* has the address and the port of the connection *path*, if it is one.

    For example, as in ``host='192.0.2.1', port=443``.
    """
    if not is_address(path):
        return False
    host, _, port = path.removeprefix(SCHEME).rpartition(":")
    words = rf"(?<![\w.:]){re.escape(host.strip('[]'))}\W{{1,4}}(port\W{{1,2}})?{port}\b"
    return re.search(words, text) is not None


def _escape_bracket(glob: str) -> str:
    """*glob* without the meaning that the bracket of an IPv6 address has in one."""
    address = f"{SCHEME}["
    is_bare = glob.startswith(address) and not glob.startswith(f"{address}[]")
    return glob.replace(address, f"{address}[]", 1) if is_bare else glob


class GlobMatcher:
    """The files that some globs mean."""

    def __init__(self, globs: tuple[str, ...]) -> None:
        patterns = (fnmatch.translate(_escape_bracket(glob)) for glob in globs)
        self._match = re.compile("|".join(patterns) or r"(?!)").match
        prefixes = (_WILD.split(glob, maxsplit=1)[0] for glob in globs)
        self._literal_prefixes = tuple(
            prefix for prefix in prefixes if prefix and is_excluded(prefix)
        )

    def means(self, path: str) -> bool:
        """Whether *path*, absolute, is meant, were nothing left out."""
        return self._match(path) is not None

    def __call__(self, path: str) -> bool:
        """Whether *path*, absolute, is meant."""
        return self.means(path) and (
            not is_excluded(path) or path.startswith(self._literal_prefixes)
        )
