"""The fake file system of pyfakefs, and the files on the disk that workers see in its place.

pyfakefs replaces Python's own functions, so code in C does not see its files, and no system call
shows them. So a loader writes the fake files to a private folder when it starts, and the supervisor
redirects the path calls of its workers there. They see these files however they read them.
"""

from __future__ import annotations

import errno
import os
import stat
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from multiprocessing.util import get_temp_dir
from typing import Any

from pytest_dataloader_faults._engine import patcher
from pytest_dataloader_faults.faults.globs import is_below

# Some facts about what is redirected. A worker needs real files too: its modules, sockets and
# shared memory. So only a path that the fake file system has is redirected, or one whose folder it
# has, and everything that would create, change or remove a name: no worker changes real files.


_MOST_LINKS = 40
_OF_KERNEL = ("/dev", "/proc", "/sys")


def fake_files() -> Any:
    """The fake file system that this process sees in the place of the real one; else None."""
    current = patcher()
    return None if current is None else current.fs


@dataclass(frozen=True, eq=False)
class FakeTree:
    """The files of a fake file system, as the workers of one loader see them.

    Attributes:
        folder: Where they are on the disk, without links.
        real: Folders of which no path is fake: those of the kernel, and of sockets of workers.
        mounts: The real file or folder of each fake path that pyfakefs reads from the disk.
        shared: Folders in which a path is real unless the fake file system has it.
        cwd: The current folder, by its fake path.
    """

    folder: str
    real: tuple[str, ...]
    mounts: Mapping[str, str]
    shared: frozenset[str]
    cwd: str

    def locate(self, path: str, *, changes: bool, follows: bool) -> str:
        """Where a worker finds the absolute *path*, without links among fake files.

        *changes*: it may create or change what is there. *follows*: a link at the end as well.
        """
        path = self._resolve(self._visible(path), follows=follows)
        if is_below(path, self.real):
            return path
        mount = next((each for each in self.mounts if is_below(path, [each])), None)
        if mount is not None:
            return self.mounts[mount] + path.removeprefix(mount)
        private = self.folder + path
        if changes or os.path.lexists(private):
            return private
        above = os.path.dirname(path)
        return private if above not in self.shared and os.path.isdir(self.folder + above) else path

    def _visible(self, path: str) -> str:
        """The fake path of *path* in the folder; it may contain "..", which ends at the root."""
        is_private = is_below(path, [self.folder])
        return path.removeprefix(self.folder) or "/" if is_private else path

    def _resolve(self, path: str, *, follows: bool) -> str:
        """The fake *path* without links; *follows*: also at its end. No link leaves the tree."""
        parts, resolved, links = path.split("/")[::-1], "/", 0
        while parts:
            part = parts.pop()
            if part == "..":
                resolved = os.path.dirname(resolved)
            elif part not in ("", "."):
                resolved = os.path.join(resolved, part)
                if (parts or follows) and os.path.islink(self.folder + resolved):
                    links += 1
                    if links > _MOST_LINKS:
                        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
                    target = os.readlink(self.folder + resolved)
                    parts += target.split("/")[::-1]
                    resolved = "/" if target.startswith("/") else os.path.dirname(resolved)
        return resolved

    def may_change(self, path: str) -> bool:
        """Whether a worker may change what is at *path* on the disk: it is none of the user's."""
        return is_below(path, (self.folder, *self.real))

    def name(self, path: str) -> str:
        """The fake path of the file that is at *path* on the disk; *path* itself if it is real."""
        if is_below(path, [self.folder]):
            return self._visible(path)
        mount = next((each for each, real in self.mounts.items() if is_below(path, [real])), None)
        return path if mount is None else mount + path.removeprefix(self.mounts[mount])

    def enter(self) -> None:
        """Let this process, a worker, see the tree once its path calls are redirected."""
        files = fake_files()
        if files is not None:  # It was forked, and has the patches of its parent.
            files.pause()
            _use_real_paths()
        sys.path[:] = map(os.path.abspath, sys.path)
        self._replace_current_folder()
        os.chdir(self.cwd)

    def _replace_current_folder(self) -> None:
        """Replace two functions: no other process can change the current folder of this one."""
        chdir, getcwd = os.chdir, os.getcwd

        def change(path: Any) -> None:
            is_path = isinstance(path, (str, bytes, os.PathLike))
            whole = os.path.abspath(os.fsdecode(path)) if is_path else ""
            chdir(self.locate(whole, changes=False, follows=True) if is_path else path)

        os.chdir, os.getcwd = change, lambda: self.name(getcwd())


def write_tree(folder: str) -> FakeTree:
    """Write the files of this process's fake file system to the new *folder*."""
    files = fake_files()
    os.makedirs(folder)
    folder = os.path.realpath(folder)
    real = (*_OF_KERNEL, os.path.dirname(folder), os.path.realpath(get_temp_dir()))
    mounts: dict[str, str] = {}
    _write_entries(files.root_dir, folder, folder, mounts, {})
    return FakeTree(folder, real, mounts, frozenset(_shared_folders()), files.cwd)


def _write_entries(
    directory: Any, place: str, root: str, mounts: dict[str, str], written: dict[int, str]
) -> None:
    """Write what is in *directory* to *place* below *root*; *written*: files by their ids."""
    for name, entry in directory.entries.items():
        path = os.path.join(place, name)
        kind, source = stat.S_IFMT(entry.st_mode), _unread_source(entry)
        if source is not None:
            mounts[path.removeprefix(root)] = source
            os.mkdir(path) if kind == stat.S_IFDIR else os.mknod(path)  # So that listings have it.
        elif id(entry) in written:
            os.link(written[id(entry)], path)
        elif kind == stat.S_IFLNK:
            os.symlink(entry.byte_contents, path)
        elif kind == stat.S_IFDIR:
            os.mkdir(path)
            _write_entries(entry, path, root, mounts, written)
            _copy_attributes(entry, path)
        elif kind == stat.S_IFREG:
            written[id(entry)] = path
            with open(path, "xb") as file:
                file.write(entry.byte_contents or b"")
                file.truncate(entry.st_size)  # Of a large file, pyfakefs has the size alone.
            _copy_attributes(entry, path)


def _unread_source(entry: Any) -> str | None:
    """The real file or folder that *entry* stands for, if pyfakefs has not read it."""
    if getattr(entry, "contents_read", True):
        return None
    source = getattr(entry, "source_path", None) or entry.file_path
    return os.path.realpath(os.fsdecode(source))


def _copy_attributes(entry: Any, path: str) -> None:
    os.utime(path, (entry.st_atime, entry.st_mtime))
    os.chmod(path, stat.S_IMODE(entry.st_mode))


def _shared_folders() -> Iterator[str]:
    """The folders above what every process needs: Python, its modules and temporary files."""
    needed = (sys.prefix, sys.base_prefix, *sys.path, os.path.join(tempfile.gettempdir(), "x"))
    for path in map(os.path.abspath, needed):
        parts = path.split("/")
        yield from ("/".join(parts[:count]) or "/" for count in range(1, len(parts)))


def _use_real_paths() -> None:
    """Have the path objects that pyfakefs has made access real files.

    Their classes derive from those of pathlib, and replace methods. In Python 3.10, these methods
    call an accessor.
    """
    pathlib, fake_pathlib = (sys.modules[each] for each in ("pathlib", "pyfakefs.fake_pathlib"))
    classes = fake_pathlib.FakePathlibModule.PosixPath.__mro__
    fakes = [each for each in classes if each.__module__.startswith("pyfakefs.")]
    real_names = {name for kind in classes if kind not in fakes for name in vars(kind)}
    for kind in fakes:
        for name in [each for each in vars(kind) if each in real_names and each[:2] != "__"]:
            delattr(kind, name)
    for name, function in vars(getattr(pathlib, "_NormalAccessor", object)).items():
        if not name.startswith("__"):
            setattr(fake_pathlib._FakeAccessor, name, function)
