"""Copies of folders, for trials whose dataset changes its own data [runs in the warden].

Some facts about symbolic links in a folder. A write through one goes to the user's own file, and
creates it where the link leads nowhere. chmod(2) also acts on the user's file. So a copy has files
instead of links. A link that leads nowhere leads into a folder that does not exist, where nothing
can be created. A link to a folder around itself leads to the copy of that folder.
"""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import stat

from pytest_dataloader_faults._engine.file_copies import copy_content
from pytest_dataloader_faults.exceptions import InvalidArgumentError
from pytest_dataloader_faults.faults.globs import is_below
from pytest_dataloader_faults.outcomes.text import format_value

_FICLONE = 0x40049409
"""Of linux/fs.h: the copy has the blocks of the original, until either is written to."""
_LEADS_NOWHERE = (errno.ENOENT, errno.ENOTDIR)


def copy_folder(folder: str, to: str) -> None:
    """Make *to*, which does not exist yet, a copy of *folder*.

    Files keep their times and modes.

    Raises:
        InvalidArgumentError: *folder* contains *to*, or what is neither a file nor a folder.
        OSError: A file cannot be read or written.
    """
    within = os.path.dirname(to)
    if is_below(os.path.realpath(within), [os.path.realpath(folder)]):
        message = f"copy={format_value(folder)} must be a folder that does not contain {within!r}"
        raise InvalidArgumentError(f"{message}, where copies are created (see TMPDIR)")
    tree = _Tree(folder)
    nowhere = os.path.join(f"{to}.missing", "file")
    for name in tree.folders:
        os.mkdir(os.path.join(to, name), 0o700)
    for name, target in tree.links.items():
        os.symlink(nowhere if target is None else target, os.path.join(to, name))
    for name, path in tree.files.items():
        _copy_file(path, os.path.join(to, name))
    for name, path in reversed(tree.folders.items()):  # Last, as some are read-only.
        shutil.copystat(path, os.path.join(to, name))


class _Tree:
    """What a folder has, by names relative to it: folders, files, and links that stay links."""

    def __init__(self, root: str) -> None:
        self.folders: dict[str, str] = {}
        self.files: dict[str, str] = {}
        self.links: dict[str, str | None] = {}
        """Where each leads to in the copy; None for nowhere."""
        self._root = os.path.realpath(root)
        self._add_folder("", root, {})

    def _add_folder(self, name: str, path: str, around: dict[str, str]) -> None:
        """*around*: the real paths of the folders that are around it, with their names."""
        self.folders[name] = path
        around = {**around, os.path.realpath(path): name}
        for entry in sorted(os.listdir(path)):
            self._add(os.path.join(name, entry), os.path.join(path, entry), around)

    def _add(self, name: str, path: str, around: dict[str, str]) -> None:
        try:
            mode = os.stat(path).st_mode
        except OSError as error:
            if not os.path.islink(path) or error.errno not in (*_LEADS_NOWHERE, errno.ELOOP):
                raise
            self.links[name] = os.path.basename(name) if error.errno == errno.ELOOP else None
            return
        if stat.S_ISREG(mode):
            self.files[name] = path
        elif not stat.S_ISDIR(mode):
            message = f"{path} is neither a file nor a folder, so it cannot be copied. Remove it"
            raise InvalidArgumentError(message)
        elif (real := os.path.realpath(path)) in around:
            self.links[name] = os.path.relpath(around[real] or ".", os.path.dirname(name) or ".")
        elif is_below(self._root, [real]):
            message = f"{path} is a link to {real}, which contains the folder. Remove the link"
            raise InvalidArgumentError(message)
        else:
            self._add_folder(name, path, around)


def _copy_file(path: str, to: str) -> None:
    with open(path, "rb") as original, open(to, "x+b") as copy:
        if not _clone(original.fileno(), copy.fileno()):
            copy_content(original.fileno(), copy.fileno())
    shutil.copystat(path, to)


def _clone(original: int, copy: int) -> bool:
    """Have *copy* share the blocks of *original*; False if the file system cannot."""
    try:
        fcntl.ioctl(copy, _FICLONE, original)
    except OSError:
        return False
    return True
