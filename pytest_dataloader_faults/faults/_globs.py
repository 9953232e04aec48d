"""Which files a glob means. Pure.

Left out unless a glob names their folder literally: the system's own files, installed packages, and
code (its import or the printing of a traceback would otherwise be hit by ``"*"``).
"""

from __future__ import annotations

import fnmatch
import re
import sys
import sysconfig
from functools import lru_cache

_SYSTEM = (
    *("/proc/", "/sys/", "/dev/", "/memfd:", "/etc/", "/lib/", "/lib32/", "/lib64/"),
    *("/bin/", "/usr/bin/", "/usr/lib/", "/usr/lib32/", "/usr/lib64/", "/usr/share/"),
    *("/usr/local/bin/", "/usr/local/lib/"),
)
_CODE = (".py", ".pyc", ".pyi", ".so", ".pth", ".egg-link")
_WILD = re.compile(r"[*?\[]")


@lru_cache
def _excluded_folders() -> tuple[str, ...]:
    python = (sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib"))
    prefixes = {sys.prefix, sys.base_prefix}
    own = (f"{prefix}/{folder}/" for prefix in prefixes for folder in ("bin", "lib"))
    return (*_SYSTEM, *(f"{folder}/" for folder in python if folder), *own)


def _is_code(path: str) -> bool:
    return path.endswith(_CODE) or ".so." in path


def is_package_data(path: str) -> bool:
    """Whether *path* is left out, and yet might be what a dataset reads: data in a package."""
    return is_excluded(path) and not _is_code(path) and not path.startswith(_SYSTEM)


def is_excluded(path: str) -> bool:
    """Whether *path* is a system, package or code file, which no dataset means by its data."""
    return path.startswith(_excluded_folders()) or _is_code(path) or "/site-packages/" in path


class GlobMatcher:
    """The files that some globs mean."""

    def __init__(self, globs: tuple[str, ...]) -> None:
        self._match = re.compile("|".join(map(fnmatch.translate, globs)) or r"(?!)").match
        asked = (_WILD.split(glob, maxsplit=1)[0] for glob in globs)
        self._asked = tuple(prefix for prefix in asked if prefix and is_excluded(prefix))

    def means(self, path: str) -> bool:
        """Whether *path*, absolute, is meant, were nothing left out."""
        return self._match(path) is not None

    def __call__(self, path: str) -> bool:
        """Whether *path*, absolute, is meant."""
        return self.means(path) and (not is_excluded(path) or path.startswith(self._asked))
