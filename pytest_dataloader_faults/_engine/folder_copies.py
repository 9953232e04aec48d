"""Damaged copies of folders, for files that the test's own process opens [runs in pytest].

Faults of the engines happen in DataLoader workers. What a dataset reads or maps in its constructor,
in pytest's own process, they cannot reach. So here are files on a disk that are bad themselves.

Some facts about symbolic links in a folder. A write through one goes to the user's own file, and
creates it where the link leads nowhere. chmod(2) acts on the user's file, too. So a copy has files
in place of links. A link that leads nowhere leads into a folder that does not exist, where nothing
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
from pytest_dataloader_faults._engine.file_copies import FileEdit, copy_content, flipped
from pytest_dataloader_faults._engine.system import temporary
from pytest_dataloader_faults._settings import check
from pytest_dataloader_faults.exceptions import InvalidArgumentError
from pytest_dataloader_faults.faults import CorruptedFile, Fault, OpenError, TruncatedFile
from pytest_dataloader_faults.faults.base import Trigger, why_no_fault
from pytest_dataloader_faults.globs import GlobMatcher, is_below
from pytest_dataloader_faults.outcomes.fault_facts import wrong_globs
from pytest_dataloader_faults.outcomes.text import counted, listed, shown, shown_fault

if TYPE_CHECKING:
    from typing_extensions import Self

_FICLONE = 0x40049409
"""Of linux/fs.h: the copy has the blocks of the original, until either is written to."""
_LEADS_NOWHERE = (errno.ENOENT, errno.ENOTDIR)
_SHOWN = 10
"""Files of a folder that an error names."""
_POSSIBLE = (
    "A copy can have TruncatedFile, CorruptedFile and, for files that are missing,"
    " OpenError(..., errno=errno.ENOENT)"
)
_OF_WORKERS = "Arm other faults in DataLoader workers, by inject(...) or by a fixture"
_LEFT_OUT = (
    "it means code, or files of the system or of installed packages, which are left out unless a"
    " glob names them literally, as {!r}"
)
_FAKE = (
    "damaged_copy copies real files, and this process sees those of pyfakefs. Write bad content"
    " into the fake files instead, or use real files, as in pytest's tmp_path"
)


def damaged_copy(
    folder: str | os.PathLike[str], *faults: Fault, links: str = "copy"
) -> contextlib.AbstractContextManager[Path]:
    """Copy *folder*, and damage files of the copy, for the code in a ``with`` statement.

    The faults of ``inject`` and of the fixtures happen in DataLoader workers. This is for a file
    that the test's own process opens, as a dataset does in its constructor. It works without
    pytest, and needs no engine. The end of the scope removes the copy. Nothing is written to the
    originals.

    Files that no fault means are copied with their times and modes; where the file system can, the
    copy shares the blocks of the original (a reflink). A symbolic link is replaced by a copy of
    what it leads to. One that leads nowhere leads nowhere in the copy, too, and one to a folder
    around itself leads to the copy of that folder.

    Args:
        folder: What to copy.
        *faults: At least one ``TruncatedFile``, ``CorruptedFile``, or ``OpenError`` with
            ``errno=errno.ENOENT``, whose files are missing from the copy. Their globs are matched
            against the absolute paths of the originals. The same bytes differ as in a worker.
        links: ``"copy"``, or ``"symlink"`` for symbolic links to the originals in place of copies
            of files that no fault means. That takes no room, but **code that writes to such a file
            writes to your own**.

    Returns:
        A context manager. Its value is the ``pathlib.Path`` of the copy, which has the name of
        *folder*, in a new folder for temporary files.

    Raises:
        EngineUnavailableError: This is Windows.
        InvalidArgumentError: An argument cannot be used, one of *faults* would alter no file,
            *folder* has something that is neither a file nor a folder, or this process has a fake
            file system.
        OSError: A file cannot be read or, on entry, copied.

    """
    return _copied(_Plan(folder, faults, links, tempfile.gettempdir()))


class DamagedCopies:
    """What the fixture ``damaged_copy`` gives: each call makes a copy, until the scope ends."""

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
        plan = _Plan(folder, faults, links, self._within)
        return self._scope.enter_context(_copied(plan))


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
        for each in sorted(os.listdir(path)):
            self._add(os.path.join(name, each), os.path.join(path, each), around)

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
            message = f"{path} is neither a file nor a folder, and cannot be copied. Take it away"
            raise InvalidArgumentError(message)
        elif (real := os.path.realpath(path)) in around:
            self.links[name] = os.path.relpath(around[real] or ".", os.path.dirname(name) or ".")
        elif is_below(self._root, [real]):
            message = f"{path} is a link to {real}, which has the folder in it. Take the link away"
            raise InvalidArgumentError(message)
        else:
            self._add_folder(name, path, around)


class _Damage(NamedTuple):
    """How a file of the copy differs, None if it is missing; and the faults that do that."""

    edit: FileEdit | None = FileEdit()
    by: Sequence[Fault] = ()


class _Plan:
    """What is to be copied into a new folder in *within*, and how it is to be damaged."""

    def __init__(
        self,
        folder: object,
        faults: tuple[Fault, ...],
        links: str,
        within: str | os.PathLike[str],
    ) -> None:
        _require_some(faults)
        check(links=links)
        if not hasattr(os, "pread"):  # Nor has Windows much else of what copies are made by.
            raise not_linux()
        self.links, self.root, self.within = links, _folder_at(folder), os.fspath(within)
        _require_outside(self.root, self.within, f"folder={shown(folder)}")
        self.tree = _Tree(self.root)
        self.damages = _damages(self.tree, faults)
        for fault in faults:
            self._require_effect(fault)

    def _require_effect(self, fault: Fault) -> None:
        """Refuse a fault that alters nothing: a test under it would show nothing."""
        if any(each is fault for damage in self.damages.values() for each in damage.by):
            return
        paths = self.tree.files.values()
        has = f"It has {counted(len(paths), 'file')}: {listed(self.tree.files, _SHOWN)}"
        why = self._why_no_effect(fault, [*paths])
        message = f"{shown_fault(fault)} alters no file of {self.root}: {why}."
        raise InvalidArgumentError(f"{message} {has if paths else 'It has no file'}")

    def _why_no_effect(self, fault: Fault, paths: list[str]) -> str:
        matcher = GlobMatcher(fault.globs)
        if meant := [path for path in paths if matcher(path)]:
            sizes = ((each, counted(os.stat(each).st_size, "byte")) for each in meant)
            shorts = listed(f"{os.path.basename(each)} ({size})" for each, size in sizes)
            less = ", or have it keep less" if isinstance(fault, TruncatedFile) else ""
            return (
                "each file that it means is too short for it, or another fault leaves nothing of it"
                f" to alter: {shorts}. Give it other files{less}"
            )
        if left_out := next(filter(matcher.means, paths), None):
            return _LEFT_OUT.format(left_out)
        return wrong_globs(fault, paths) or "its globs match none. Give it one that does"


def _require_outside(root: str, within: str, argument: str) -> None:
    """Refuse the folder *root*, which is what the *argument* says, if it has *within* in it."""
    if is_below(os.path.realpath(within), [os.path.realpath(root)]):
        message = f"{argument} must be a folder that does not contain {within!r}"
        raise InvalidArgumentError(f"{message}, where copies are made (see TMPDIR)")


def _require_some(faults: tuple[Fault, ...]) -> None:
    """Refuse faults that a copy cannot have, and none at all."""
    for fault in faults:
        _require_possible(fault)
    if not faults:
        message = "no fault was given, so nothing would be damaged. Give one or more, such as"
        raise InvalidArgumentError(f"{message} TruncatedFile('*.npy'). {_POSSIBLE}")


def _require_possible(fault: Fault) -> None:
    """Refuse what is no fault, or none that a copy can have."""
    if problem := why_no_fault(fault):
        raise InvalidArgumentError(f"{problem}. {_POSSIBLE}")
    is_missing = isinstance(fault, OpenError) and fault.errno == errno.ENOENT
    if not is_missing and not isinstance(fault, (TruncatedFile, CorruptedFile)):
        message = f"{shown_fault(fault)} happens to a call or a process, and not in a copy"
        raise InvalidArgumentError(f"{message}. {_POSSIBLE}. {_OF_WORKERS}")
    if fault.trigger != Trigger():
        message = "a file of a copy is missing each time: leave out nth, times, every, probability"
        raise InvalidArgumentError(f"{shown_fault(fault)}: {message}")
    if getattr(fault, "workers", None) is not None:
        message = "a copy is the same for every process: leave out workers"
        raise InvalidArgumentError(f"{shown_fault(fault)}: {message}")


def _folder_at(folder: object) -> str:
    """The absolute path of *folder*, which is to be one."""
    path = os.fspath(folder) if isinstance(folder, os.PathLike) else folder
    given = f"folder={shown(folder)} must be"
    if not isinstance(path, str):
        raise InvalidArgumentError(f"{given} the path of a folder, a str or a pathlib.Path")
    if fake_files() is not None:
        raise InvalidArgumentError(_FAKE)
    if os.path.isfile(path):
        above = os.path.dirname(os.path.abspath(path))
        raise InvalidArgumentError(f"{given} a folder, and is a file: give {above!r}")
    if not os.path.isdir(path):
        where = f"the current folder is {os.getcwd()}"
        message = f"{given} a folder that exists ({where}). Make it first, or give its whole path"
        raise InvalidArgumentError(message)
    return os.path.abspath(path)


def _damages(tree: _Tree, faults: tuple[Fault, ...]) -> dict[str, _Damage]:
    """What *faults* do to the files that they alter."""
    matchers = [(fault, GlobMatcher(fault.globs)) for fault in faults]
    all_of_them = {
        name: _damage(path, [fault for fault, means in matchers if means(path)])
        for name, path in tree.files.items()
    }
    return {name: damage for name, damage in all_of_them.items() if damage.by}


def _damage(path: str, meant: list[Fault]) -> _Damage:
    """What the faults that mean the file at *path* do to it together, as in a worker."""
    if missing := [each for each in meant if isinstance(each, OpenError)]:
        return _Damage(None, missing)
    size, name = os.stat(path).st_size, os.path.basename(path)
    cuts = [each for each in meant if isinstance(each, TruncatedFile) and each.kept(size) < size]
    kept = min((each.kept(size) for each in cuts), default=size)
    cuts = [each for each in cuts if each.kept(size) == kept]
    damaging = [
        each
        for each in meant
        if isinstance(each, CorruptedFile)
        and any(place < kept for place in flipped(name, size, each.flips, each.seed))
    ]
    # Each once, since the same damage twice would undo itself.
    flips = dict.fromkeys((each.flips, each.seed) for each in damaging)
    return _Damage(FileEdit(kept if cuts else None, tuple(flips)), [*cuts, *damaging])


def copy_folder(folder: str, to: str) -> None:
    """Make *to*, which does not exist yet, a copy of *folder* in which nothing is damaged."""
    _require_outside(folder, os.path.dirname(to), f"copy={shown(folder)}")
    _fill(to, _Tree(folder), {})


@contextlib.contextmanager
def _copied(plan: _Plan) -> Iterator[Path]:
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

    Links that lead nowhere lead nowhere in the copy, too.
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
        if edit != FileEdit() or not _is_cloned(original.fileno(), copy.fileno()):
            copy_content(os, original.fileno(), copy.fileno(), path, edit)
    shutil.copystat(path, to)


def _is_cloned(original: int, copy: int) -> bool:
    """Have *copy* share the blocks of *original*; False where the file system cannot."""
    if sys.platform != "linux":
        return False
    import fcntl

    try:
        fcntl.ioctl(copy, _FICLONE, original)
    except OSError:
        return False
    return True
