"""Damaged copies of folders, for files that the test's own process opens [runs in pytest].

Faults of the engines happen in DataLoader workers. What a dataset reads or maps in its constructor,
in pytest's own process, they cannot reach. So here are files on a disk that are bad themselves.

Some facts about symbolic links in a folder. A write through one goes to the user's own file, and
creates it where the link leads nowhere. chmod(2) also acts on the user's file. So a copy has files
instead of links. A link that leads nowhere leads into a folder that does not exist, where nothing
can be created. A link to a folder around itself leads to the copy of that folder.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import stat
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from pytest_dataloader_faults._engine import not_linux
from pytest_dataloader_faults._engine.fake import fake_files
from pytest_dataloader_faults._engine.file_copies import FileEdit, copy_content, flip_masks
from pytest_dataloader_faults._engine.system import temporary
from pytest_dataloader_faults._settings import check
from pytest_dataloader_faults.exceptions import InvalidArgumentError
from pytest_dataloader_faults.faults import CorruptedFile, Fault, OpenError, TruncatedFile
from pytest_dataloader_faults.faults.base import Trigger, explain_invalid_fault
from pytest_dataloader_faults.faults.globs import GlobMatcher, is_below
from pytest_dataloader_faults.outcomes.fault_facts import explain_wrong_globs
from pytest_dataloader_faults.outcomes.text import format_value, join_some, pluralize, shown_fault

if TYPE_CHECKING:
    from typing_extensions import Self

_FICLONE = 0x40049409
"""Of linux/fs.h: the copy has the blocks of the original, until either is written to."""
_LEADS_NOWHERE = (errno.ENOENT, errno.ENOTDIR)
_SHOWN = 10
"""Files of a folder that an error names."""
_POSSIBLE = (
    "damaged_copy() accepts TruncatedFile, CorruptedFile and, for missing files,"
    " OpenError(..., errno=errno.ENOENT)"
)
_OF_WORKERS = "Inject other faults into DataLoader workers, with inject(...) or with a fixture"
_LEFT_OUT = (
    "it matches only code, system files or files of installed packages, which are excluded unless a"
    " glob names them literally, such as {!r}"
)
_FAKE = (
    "damaged_copy() copies real files, but pyfakefs replaces them in this process. Write damaged"
    " content into the fake files instead, or use real files, for example in pytest's tmp_path"
)


def damaged_copy(
    folder: str | os.PathLike[str], *faults: Fault, links: str = "copy"
) -> contextlib.AbstractContextManager[Path]:
    """Copy *folder*, and damage files in the copy, for the code in a ``with`` statement.

    ``inject`` and the fixtures inject faults into DataLoader workers only. Use this function for
    files that the test's own process opens, for example in the constructor of a dataset. It works
    without pytest and does not need an engine. The copy is removed at the end of the ``with``
    statement. Nothing is ever written to the originals.

    Files that match no fault are copied with their times and modes. If the file system supports it,
    the copy shares the blocks of the original (a reflink). A symbolic link is replaced by a copy of
    its target. A dangling link stays dangling in the copy, and a link to a folder that contains the
    link leads to the copy of that folder.

    Args:
        folder: The folder to copy.
        *faults: At least one ``TruncatedFile``, ``CorruptedFile``, or ``OpenError`` with
            ``errno=errno.ENOENT``, which removes its files from the copy. Their globs are matched
            against the absolute paths of the originals. The damaged bytes are the same as in a
            worker.
        links: ``"copy"``, or ``"symlink"`` for symbolic links to the originals instead of copies of
            files that match no fault. Links do not need disk space, but **code that writes to such
            a file writes to your original**.

    Returns:
        A context manager. Its value is the ``pathlib.Path`` of the copy, which has the name of
        *folder* and is in a new temporary folder.

    Raises:
        EngineUnavailableError: This machine runs Windows.
        InvalidArgumentError: An argument is invalid, one of *faults* would not change any file,
            *folder* contains something that is neither a file nor a folder, or pyfakefs is active
            in this process.
        OSError: A file cannot be read or, on entry, copied.

    """
    return _temporary_copy(_CopyPlan(folder, faults, links, tempfile.gettempdir()))


class DamagedCopies:
    """The value of the fixture ``damaged_copy``: each call makes a copy, until the scope ends."""

    def __init__(self, within: str | os.PathLike[str]) -> None:
        self._within = within
        self._scope = contextlib.ExitStack()
        self.is_used = False

    def __enter__(self) -> Self:
        """Open the scope."""
        return self

    def __exit__(self, *_exception: object) -> None:
        """Remove the copies."""
        self._scope.close()

    def __repr__(self) -> str:
        return "<damaged_copy>"

    def __call__(self, folder: str | os.PathLike[str], *faults: Fault, links: str = "copy") -> Path:
        """The copy of *folder*; see ``damaged_copy``."""
        self.is_used = True
        plan = _CopyPlan(folder, faults, links, self._within)
        return self._scope.enter_context(_temporary_copy(plan))


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


class _Damage(NamedTuple):
    """How a file of the copy differs, None if it is missing; and the faults that do that."""

    edit: FileEdit | None = FileEdit()
    by: Sequence[Fault] = ()


class _CopyPlan:
    """What should be copied into a new folder in *within*, and how it should be damaged."""

    def __init__(
        self,
        folder: object,
        faults: tuple[Fault, ...],
        links: str,
        within: str | os.PathLike[str],
    ) -> None:
        _require_some(faults)
        check(links=links)
        if not hasattr(os, "pread"):  # Windows also lacks most other functions that copies need.
            raise not_linux()
        self.links, self.root, self.within = links, _folder_at(folder), os.fspath(within)
        _require_outside(self.root, self.within, f"folder={format_value(folder)}")
        self.tree = _Tree(self.root)
        self.damages = _plan_damages(self.tree, faults)
        for fault in faults:
            self._require_effect(fault)

    def _require_effect(self, fault: Fault) -> None:
        """Refuse a fault that alters nothing: a test under it would show nothing."""
        if any(each is fault for damage in self.damages.values() for each in damage.by):
            return
        paths = self.tree.files.values()
        why = self._explain_no_effect(fault, [*paths])
        content = f"{pluralize(len(paths), 'file')}: {join_some(self.tree.files, _SHOWN)}"
        raise InvalidArgumentError(
            f"{shown_fault(fault)} does not change any file of {self.root}: {why}. The folder"
            f" contains {content if paths else 'no files'}"
        )

    def _explain_no_effect(self, fault: Fault, paths: list[str]) -> str:
        matcher = GlobMatcher(fault.globs)
        if matching := [path for path in paths if matcher(path)]:
            sizes = ((each, pluralize(os.stat(each).st_size, "byte")) for each in matching)
            shorts = join_some(f"{os.path.basename(each)} ({size})" for each, size in sizes)
            less = ", or keep less of them" if isinstance(fault, TruncatedFile) else ""
            return (
                "every file that it matches is too short, or another fault removes the bytes that"
                f" it would change: {shorts}. Choose other files{less}"
            )
        if left_out := next(filter(matcher.means, paths), None):
            return _LEFT_OUT.format(left_out)
        return (
            explain_wrong_globs(fault, paths)
            or "its globs match none. Pass a glob that matches one"
        )


def _require_outside(root: str, within: str, argument: str) -> None:
    """Refuse the folder *root*, which is the value of *argument*, if it contains *within*."""
    if is_below(os.path.realpath(within), [os.path.realpath(root)]):
        message = f"{argument} must be a folder that does not contain {within!r}"
        raise InvalidArgumentError(f"{message}, where copies are created (see TMPDIR)")


def _require_some(faults: tuple[Fault, ...]) -> None:
    """Refuse faults that a copy cannot have, and none at all."""
    for fault in faults:
        _require_possible(fault)
    if not faults:
        message = "no fault was passed, so nothing would be damaged. Pass at least one, such as"
        raise InvalidArgumentError(f"{message} TruncatedFile('*.npy'). {_POSSIBLE}")


def _require_possible(fault: Fault) -> None:
    """Refuse other objects, and faults that a copy cannot have."""
    if problem := explain_invalid_fault(fault):
        raise InvalidArgumentError(f"{problem}. {_POSSIBLE}")
    is_missing = isinstance(fault, OpenError) and fault.errno == errno.ENOENT
    if not is_missing and not isinstance(fault, (TruncatedFile, CorruptedFile)):
        message = f"{shown_fault(fault)} affects a call or a process, so a copy cannot have it"
        raise InvalidArgumentError(f"{message}. {_POSSIBLE}. {_OF_WORKERS}")
    if fault.trigger != Trigger():
        message = "a file is missing from a copy for good: remove nth, times, every, probability"
        raise InvalidArgumentError(f"{shown_fault(fault)}: {message}")
    if getattr(fault, "workers", None) is not None:
        message = "a copy is the same for every process: remove workers"
        raise InvalidArgumentError(f"{shown_fault(fault)}: {message}")


def _folder_at(folder: object) -> str:
    """The absolute path of *folder*, which must be a folder."""
    path = os.fspath(folder) if isinstance(folder, os.PathLike) else folder
    requirement = f"folder={format_value(folder)} must be"
    if not isinstance(path, str):
        raise InvalidArgumentError(f"{requirement} the path of a folder, a str or a pathlib.Path")
    if fake_files() is not None:
        raise InvalidArgumentError(_FAKE)
    if os.path.isfile(path):
        above = os.path.dirname(os.path.abspath(path))
        raise InvalidArgumentError(f"{requirement} a folder, but is a file: pass {above!r}")
    if not os.path.isdir(path):
        where = f"the current folder is {os.getcwd()}"
        message = (
            f"{requirement} an existing folder ({where}). Create it first, or pass its full path"
        )
        raise InvalidArgumentError(message)
    return os.path.abspath(path)


def _plan_damages(tree: _Tree, faults: tuple[Fault, ...]) -> dict[str, _Damage]:
    """What *faults* do to the files that they alter."""
    matchers = [(fault, GlobMatcher(fault.globs)) for fault in faults]
    all_of_them = {
        name: _damage(path, [fault for fault, means in matchers if means(path)])
        for name, path in tree.files.items()
    }
    return {name: damage for name, damage in all_of_them.items() if damage.by}


def _damage(path: str, faults: list[Fault]) -> _Damage:
    """What the faults that mean the file at *path* do to it together, as in a worker."""
    if missing := [each for each in faults if isinstance(each, OpenError)]:
        return _Damage(None, missing)
    size, name = os.stat(path).st_size, os.path.basename(path)
    cuts = [each for each in faults if isinstance(each, TruncatedFile) and each.kept(size) < size]
    kept_size = min((each.kept(size) for each in cuts), default=size)
    cuts = [each for each in cuts if each.kept(size) == kept_size]
    damaging = [
        fault
        for fault in faults
        if isinstance(fault, CorruptedFile)
        and any(place < kept_size for place in flip_masks(name, size, fault.flips, fault.seed))
    ]
    # Each once, since the same damage twice would undo itself.
    flips = dict.fromkeys((each.flips, each.seed) for each in damaging)
    return _Damage(FileEdit(kept_size if cuts else None, tuple(flips)), [*cuts, *damaging])


def copy_folder(folder: str, to: str) -> None:
    """Make *to*, which does not exist yet, a copy of *folder* in which nothing is damaged."""
    _require_outside(folder, os.path.dirname(to), f"copy={format_value(folder)}")
    _fill(to, _Tree(folder), {})


@contextlib.contextmanager
def _temporary_copy(plan: _CopyPlan) -> Iterator[Path]:
    """The copy, until the scope ends."""
    holder = tempfile.mkdtemp(prefix="pytest-dataloader-faults-", dir=plan.within)
    try:
        copy = os.path.join(holder, os.path.basename(plan.root) or "copy")
        _fill(copy, plan.tree, plan.damages, plan.links)
        yield Path(copy)
    finally:
        temporary.remove(holder)


def _fill(copy: str, tree: _Tree, damages: Mapping[str, _Damage], links: str = "copy") -> None:
    """Make *copy* what *tree* has, with *damages* of some files; *links*: as for ``damaged_copy``.

    Links that lead nowhere also lead nowhere in the copy.
    """
    nowhere = os.path.join(f"{copy}.missing", "file")
    for name in tree.folders:
        os.mkdir(os.path.join(copy, name), 0o700)
    for name, target in tree.links.items():
        os.symlink(nowhere if target is None else target, os.path.join(copy, name))
    for name, path in tree.files.items():
        edit = damages.get(name, _Damage()).edit
        if edit == FileEdit() and links == "symlink":
            os.symlink(path, os.path.join(copy, name))
        elif edit is not None:
            _copy_file(path, os.path.join(copy, name), edit)
    for name, path in reversed(tree.folders.items()):  # Last, as some are read-only.
        shutil.copystat(path, os.path.join(copy, name))


def _copy_file(path: str, to: str, edit: FileEdit) -> None:
    with open(path, "rb") as original, open(to, "x+b") as copy:
        if edit != FileEdit() or not _clone(original.fileno(), copy.fileno()):
            copy_content(os, original.fileno(), copy.fileno(), path, edit)
    shutil.copystat(path, to)


def _clone(original: int, copy: int) -> bool:
    """Have *copy* share the blocks of *original*; False if the file system cannot."""
    if sys.platform != "linux":
        return False
    import fcntl

    try:
        fcntl.ioctl(copy, _FICLONE, original)
    except OSError:
        return False
    return True
