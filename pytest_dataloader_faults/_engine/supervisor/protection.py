"""Keep the files that existed before a trial, once a fault has fired [runs in the supervisor].

A dataset that cannot read a file may remove it, or build its cache again over it. The file is
sound: the fault was ours. So a call that would take a name or a byte of it fails with EROFS.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Callable, Iterator
from typing import NamedTuple

from pytest_dataloader_faults._engine.kernel import caller, linux
from pytest_dataloader_faults._engine.kernel.caller import BadSyscallError, Syscall
from pytest_dataloader_faults._engine.supervisor.worker_state import WorkerState
from pytest_dataloader_faults._engine.system import proc
from pytest_dataloader_faults._engine.system.temporary import SharedCount
from pytest_dataloader_faults.faults import Fault
from pytest_dataloader_faults.faults.globs import is_below, is_excluded
from pytest_dataloader_faults.outcomes.stages import Change, FileChanged, FileCreated, FileHistory

# Some facts about which files those are. A file that a process of the trial has made may be
# changed, and what made it was seen: open(2) with O_CREAT, mkdir(2), link(2) and so on. The kernel
# notifies before such a call, so the inode is known only afterwards. Processes that are not
# filtered, as those that take the reference, make files, too. These were born while such a process
# ran (statx(2)). On overlayfs that proves nothing, because an open of an old file for writing
# copies it, and the copy is born then. On a file system of another machine, it is the time of that
# machine.
#
# Some facts about files that are changed in place. A database writes down what it is about to
# change, and removes these notes when it has done so, or sets its file back to its earlier size. If
# it is killed in between, the next process that opens it does that. So the notes must stay.
#
# Some facts about calls that fail anyway. Code that removes a file which may be missing expects
# ENOENT, and attempts in a loop may depend on EEXIST or EXDEV. Such a call is left to the kernel.


_KINDS = (stat.S_IFREG, stat.S_IFLNK, stat.S_IFDIR)
"""What is protected: not devices, FIFOs and sockets."""
_OF_KERNEL = ("/proc/", "/sys/", "/dev/")
_IN_MEMORY = ("/dev/shm/", "/memfd:")
"""Only names and sizes of such files are protected."""
_SEMAPHORES = b"/dev/shm/sem."
_OF_NAMES = (Change.UNLINK, Change.RMDIR, Change.RENAME, Change.REPLACE)
_UNKNOWN = "(unknown)"
_MISSING = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.EACCES)

Inode = tuple[int, int]
"""Device and inode."""


class File(NamedTuple):
    """What a path or a descriptor of a caller leads to."""

    path: str
    status: os.stat_result

    @property
    def inode(self) -> Inode:
        return self.status.st_dev, self.status.st_ino

    @property
    def kind(self) -> int:
        """S_IFREG, S_IFDIR and so on."""
        return stat.S_IFMT(self.status.st_mode)


class Loss(NamedTuple):
    """What a call would do to *file*; *appends*: only at its end. *new_path*: if it is renamed."""

    change: Change
    file: File
    appends: bool = False
    new_path: str = ""

    @property
    def as_usual(self) -> FileChanged:
        """The same without a fault."""
        return FileChanged(self.file.path, self.change, self.new_path)


class Protection:
    """Decides whether calls may change files.

    *fired*: how many faults have fired in this trial, or in its whole group. *history*: what
    was known of files before. *spared*: folders in which files may be changed. *is_read*: whether
    the dataset reads a path. *write* gets each new file and, with *notes_changes*, what happens to
    older ones without a fault.
    """

    def __init__(
        self,
        fired: SharedCount,
        history: FileHistory,
        spared: tuple[str, ...],
        is_read: Callable[[str], bool],
        write: Callable[[FileCreated | FileChanged], None],
        *,
        notes_changes: bool,
    ) -> None:
        self._fired = fired
        self._created: set[Inode] = set()
        self._created_before = history.created
        self._changed = set(history.changed)
        self._unseen = history.unseen
        self._spared = spared
        self._is_read = is_read
        self._pending: dict[str, int] = {}
        """Paths that the calls of these threads are about to create."""
        self._links: set[str] = set()
        """Other names of files, made here."""
        self._names: dict[Inode, int] = {}
        """How many names these files had before."""
        self._sizes: dict[Inode, int] = {}
        """Of older files: how many bytes they had before they were changed as usual."""
        self._in_use: set[tuple[str, str]] = set()
        """The folders and the names of these files, without suffixes."""
        self._lost: set[str] = set()
        """Names that were there before, and are not any longer, or belong to other files."""
        self._rewritten: set[Inode] = set()
        """Older files whose content is the trial's own, since they have been empty."""
        self._made: dict[str, Inode] = {}
        """What was created here, by path."""
        self._write, self._notes_changes = write, notes_changes

    def spare(self, inode: Inode) -> None:
        """Let the content of the file *inode* be changed."""
        self._rewritten.add(inode)

    def find_loss(self, worker: WorkerState, call: Syscall) -> Loss | None:
        """What *call* of *worker* would change for good; None if it may be made."""
        if self._pending:
            self._settle(call.pid)
        losses = _LOSSES.get(call.name)
        if losses is None:
            return None
        try:
            for loss in filter(self._is_kept, losses(self, worker, call)):
                if loss.as_usual not in self._changed and self._fired.value:
                    return loss
                self._note_usual(loss)
        except (BadSyscallError, ProcessLookupError):  # The kernel refuses it, or it is dead.
            pass
        except OSError:  # What it would change cannot be found out: its path is too long, say.
            return Loss(Change.WRITE, File(_UNKNOWN, os.stat("/"))) if self._fired.value else None
        return None

    def _note_usual(self, loss: Loss) -> None:
        """Note what happens to an older file without a fault, or as it does without one."""
        if loss.as_usual not in self._changed:
            self._changed.add(loss.as_usual)
            if self._notes_changes:
                self._write(loss.as_usual)
        if loss.change in _OF_NAMES:
            self._lost.add(loss.file.path)
            return
        if loss.file.inode not in self._sizes:
            self._sizes[loss.file.inode] = loss.file.status.st_size
            folder, name = os.path.split(loss.file.path)
            self._in_use.add((folder, os.path.splitext(name)[0]))
        if loss.change is Change.TRUNCATE:
            self.spare(loss.file.inode)

    def remove_created(self) -> None:
        """Remove what the trial has created, if a fault has fired, so that nothing finds it."""
        self._settle(None)
        if self._fired.value:
            for path, inode in reversed(self._made.items()):
                if not self._must_stay(path):
                    self._remove(path, inode)
            for path in self._links - self._lost:
                with contextlib.suppress(OSError):
                    if self._is_another_name(File(path, os.lstat(path))):
                        os.unlink(path)

    def _must_stay(self, path: str) -> bool:
        """Whether what was created at *path* is none of ours, or an older file may need it."""
        folder, name = os.path.split(path)
        is_note = any(folder == each and name.startswith(stem) for each, stem in self._in_use)
        return is_note or is_excluded(path) or is_below(path, self._spared)

    def _is_another_name(self, file: File) -> bool:
        """Whether *file* got its path here, and has more names than it had before."""
        earlier_count = self._names.get(file.inode, 1)
        return file.path in self._links and file.status.st_nlink > earlier_count

    def _remove(self, path: str, inode: Inode) -> None:
        """Remove *path* if it is still the same file; of a folder, what was created here."""
        with contextlib.suppress(OSError):
            file = File(path, os.lstat(path))
            if file.inode != inode:
                return
            if file.kind != stat.S_IFDIR:
                os.unlink(path)
                return
            for entry in os.scandir(path):
                inside = File(entry.path, entry.stat(follow_symlinks=False))
                if inside.inode in self._created:
                    self._remove(inside.path, inside.inode)
            os.rmdir(path)

    def _settle(self, thread: int | None) -> None:
        """Look for what was about to be created. *thread* makes another call, None: all have."""
        for path, creator in tuple(self._pending.items()):
            try:
                inode = File(path, os.lstat(path)).inode
            except OSError:
                if thread in (None, creator):  # The call has failed.
                    del self._pending[path]
                continue
            del self._pending[path]
            self._created.add(inode)
            if path not in self._lost:
                self._made[path] = inode
            self._write(FileCreated(*inode, linux.birth_time(path)))

    def _is_kept(self, loss: Loss) -> bool:
        """Whether the file of *loss* was there before, and is protected."""
        path, inode = loss.file.path, loss.file.inode
        if (
            not _is_kept_by_system(loss.file)
            or is_below(path, self._spared)
            or self._is_own(loss.file)
        ):
            return False
        if loss.file.kind == stat.S_IFREG and not loss.file.status.st_size:  # It is a lock.
            self.spare(inode)
            return False
        if loss.change in _OF_NAMES:
            return not self._is_another_name(loss.file)
        is_log = loss.appends and self._fired.value and not self._is_read(path)
        return not is_log and inode not in self._rewritten

    def _is_own(self, file: File) -> bool:
        """Whether a process of the dataset's trials has created *file*."""
        if file.inode not in self._created and file.path in self._pending:
            self._settle(None)
        if file.inode in self._created:
            return True
        found = _file_at(file.path)  # The name of a descriptor may be another file's by now.
        born = linux.birth_time(file.path) if found and found.inode == file.inode else None
        was_seen = FileCreated(*file.inode, born) in self._created_before
        was_near = born and any(begin < born < end for begin, end in self._unseen)
        if not (was_seen or was_near):
            return False
        self._created.add(file.inode)
        return True

    # What each call would do, as far as the kernel would not refuse it.

    def of_open(self, worker: WorkerState, call: Syscall) -> Iterator[Loss]:
        """open(2), openat(2), openat2(2), creat(2)."""
        flags = call.arguments[2] if call.name == "openat" else os.O_CREAT
        if not flags & (os.O_CREAT | os.O_TRUNC) or _is_of_semaphore(call):
            return
        request = caller.open_request(call)
        flags = request.flags
        if flags & (os.O_PATH | os.O_DIRECTORY):  # O_TMPFILE contains the latter.
            return
        must_create = flags & os.O_CREAT and flags & os.O_EXCL
        path = _real_path(worker, call, follows=not (must_create or flags & os.O_NOFOLLOW))
        file = _file_at(path)
        if file is None:
            if flags & os.O_CREAT:
                self._pending[path] = call.pid
        elif flags & os.O_TRUNC and not must_create:
            yield from self._truncation(file, 0, _may(worker, call, file.path, os.W_OK))

    def of_unlink(self, worker: WorkerState, call: Syscall) -> Iterator[Loss]:
        """unlink(2), unlinkat(2), rmdir(2)."""
        if _is_of_semaphore(call):
            return
        path = _real_path(worker, call)
        file = _file_at(path)
        is_at = call.facts.flags_at is not None
        of_folder = call.name == "rmdir" or (is_at and call.arguments[2] & linux.AT_REMOVEDIR)
        if file is None or not _may_remove(worker, call, path):
            return
        if (file.kind == stat.S_IFDIR) is not bool(of_folder):
            return
        if not of_folder:
            yield Loss(Change.UNLINK, file)
            return
        paths = [os.path.join(path, entry) for entry in os.listdir(path)]
        if paths and not _are_hidden(worker, paths):
            return  # ENOTEMPTY, and the listing says so.
        yield Loss(Change.RMDIR, file)
        for hidden in filter(None, map(_file_at, paths)):
            if self._is_own(hidden) or is_below(hidden.path, self._spared):
                os.unlink(hidden.path)  # For the caller, it is not there.

    def of_rename(self, worker: WorkerState, call: Syscall) -> Iterator[Loss]:
        """rename(2), renameat(2), renameat2(2)."""
        flags = call.arguments[4] if call.facts.flags_at else 0
        paths = _real_path(worker, call), _real_path(worker, call, call.facts.new_path_at)
        old, new = map(_file_at, paths)
        if old is None or _rename_fails(old, new, paths[1], flags):
            return
        if not all(_may_remove(worker, call, path) for path in paths):
            return
        yield Loss(Change.RENAME, old, new_path=paths[1])
        exchanges = bool(flags & linux.RENAME_EXCHANGE)
        if new is not None and exchanges:
            yield Loss(Change.RENAME, new, new_path=paths[0])
        elif new is not None:
            yield Loss(Change.REPLACE, new)
        # What gets here is not refused. A name that was there before stays, whatever has it now.
        made, replaced = (self._made.pop(path, None) for path in paths)
        if made is not None and paths[1] not in self._lost:
            self._made[paths[1]] = made
        if replaced is not None and exchanges:
            self._made[paths[0]] = replaced
        if paths[0] in self._links:
            self._links.add(paths[1])

    def of_new_name(self, worker: WorkerState, call: Syscall) -> Iterator[Loss]:
        """link(2), symlink(2), mkdir(2), mknod(2), and their siblings. They take nothing."""
        links = call.name in ("link", "linkat")
        if links and _is_of_semaphore(call):
            return
        path = _real_path(worker, call, call.facts.new_path_at)
        if _file_at(path) is not None:  # EEXIST.
            return
        linked = None
        if links:
            follows = call.name == "linkat" and call.arguments[4] & linux.AT_SYMLINK_FOLLOW
            linked = _file_at(_real_path(worker, call, follows=bool(follows)))
        if linked is None:  # A file of open(2) with O_TMPFILE has no name before.
            self._pending[path] = call.pid
        else:
            self._names.setdefault(linked.inode, linked.status.st_nlink)
            self._pending.pop(path, None)
            self._links.add(path)
        yield from ()

    def of_truncate(self, worker: WorkerState, call: Syscall) -> Iterator[Loss]:
        """truncate(2)."""
        file = _file_at(_real_path(worker, call, follows=True))
        if file is not None:
            may = _may(worker, call, file.path, os.W_OK)
            yield from self._truncation(file, call.arguments[1], may)

    def of_ftruncate(self, _worker: WorkerState, call: Syscall) -> Iterator[Loss]:
        """ftruncate(2)."""
        file, access = _opened_file(call)
        if file is not None:
            may = access & os.O_ACCMODE != os.O_RDONLY
            yield from self._truncation(file, call.arguments[1], may)

    def _truncation(self, file: File, size: int, may: bool) -> Iterator[Loss]:
        """What is lost if *file* gets this *size*, which a negative number is not.

        It may lose what it has got since the trial began. *may*: whether the caller may change it.
        """
        now = file.status.st_size
        keeps = size == now or self._sizes.get(file.inode, now) <= size < now
        if may and size < 1 << 63 and not keeps and file.kind == stat.S_IFREG:
            yield Loss(Change.TRUNCATE, file)

    def of_write(self, _worker: WorkerState, call: Syscall) -> Iterator[Loss]:
        """write(2) and all others that change what is in the file of a descriptor."""
        file, flags = _opened_file(call, of_content=True)
        if file is not None and flags & os.O_ACCMODE != os.O_RDONLY:
            yield Loss(Change.WRITE, file, bool(flags & os.O_APPEND) and _may_append(call))

    def of_mapping(self, _worker: WorkerState, call: Syscall) -> Iterator[Loss]:
        """mmap(2) for stores that reach the file."""
        stores = linux.PROT_WRITE & call.arguments[2] and linux.MAP_SHARED & call.arguments[3]
        if stores and not call.arguments[3] & linux.MAP_ANONYMOUS:
            file, flags = _opened_file(call, of_content=True)
            if file is not None and flags & os.O_ACCMODE == os.O_RDWR:
                yield Loss(Change.MAP, file)


def _is_of_semaphore(call: Syscall) -> bool:
    """Whether *call* is about a semaphore by its name. A loader makes and removes several."""
    return caller.read_path(call).startswith(_SEMAPHORES)


def _is_kept_by_system(file: File) -> bool:
    """Whether *file* is one that a file system keeps, and not what Python compiles again."""
    path, is_named = file.path, bool(file.status.st_nlink)
    is_of_kernel = path.startswith(_OF_KERNEL) and not path.startswith(_IN_MEMORY)
    is_bytecode = path.endswith(".pyc")  # An import replaces it if its source has another time.
    return file.kind in _KINDS and is_named and not (is_of_kernel or is_bytecode)


_Losses = Callable[[Protection, WorkerState, Syscall], Iterator[Loss]]
_CHANGING = (
    *("write", "pwrite64", "writev", "pwritev", "pwritev2", "sendfile", "copy_file_range"),
    *("splice", "fallocate", "ioctl"),
)
_LOSSES: dict[str, _Losses] = {
    **dict.fromkeys(("open", "openat", "openat2", "creat"), Protection.of_open),
    **dict.fromkeys(("unlink", "unlinkat", "rmdir"), Protection.of_unlink),
    **dict.fromkeys(("rename", "renameat", "renameat2"), Protection.of_rename),
    **dict.fromkeys(("link", "linkat", "symlink", "symlinkat"), Protection.of_new_name),
    **dict.fromkeys(("mkdir", "mkdirat", "mknod", "mknodat"), Protection.of_new_name),
    "truncate": Protection.of_truncate,
    "ftruncate": Protection.of_ftruncate,
    **dict.fromkeys(_CHANGING, Protection.of_write),
    "mmap": Protection.of_mapping,
}


def _real_path(
    worker: WorkerState, call: Syscall, place: int | None = None, *, follows: bool = False
) -> str:
    """The path at argument *place* of *call*, without links in its folders.

    *follows*: nor at its end.
    """
    place = call.facts.path_at if place is None else place
    assert place is not None
    name = os.fsdecode(caller.read_path(call, place))
    if call.tree is not None:
        path = caller.absolute_path(call, os.fsencode(name), place)
        name = call.tree.locate(path, changes=True, follows=follows)
    root = "/"
    if worker.identities.difference(call.pid):  # Only it may have another one, and pays for that.
        root = caller.read_link(f"/proc/{call.pid}/root")
    start = root if name.startswith("/") else caller.read_link(caller.folder_link(call, place))
    return caller.walk(start, name, root, call.pid, follows=follows)


def _may_append(call: Syscall) -> bool:
    """Whether *call* writes at the end of a file that was opened with O_APPEND."""
    return call.name in ("write", "writev", "pwrite64", "pwritev")


def _file_at(path: str) -> File | None:
    try:
        return File(path, os.lstat(path))
    except OSError as error:
        if error.errno not in _MISSING:
            raise
        return None


def _opened_file(call: Syscall, *, of_content: bool = False) -> tuple[File | None, int]:
    """The regular file of the descriptor that *call* writes to, if it is one, and its O_* flags.

    *of_content*: None for pipes, sockets and files in memory, before they cost another look.
    """
    number = caller.to_signed(call.arguments[call.facts.writes_fd or 0])
    link = f"/proc/{call.pid}/fd/{number}"
    try:
        path = os.readlink(link)
        if of_content and (not path.startswith("/") or path.startswith(_IN_MEMORY)):
            return None, 0
        file = File(path, os.stat(link))
    except (FileNotFoundError, ProcessLookupError):
        return None, 0
    if file.kind != stat.S_IFREG:
        return None, 0
    return file, proc.fd_info(number, call.pid).flags


def _may(worker: WorkerState, call: Syscall, path: str, mode: int) -> bool:
    """Whether the caller has these rights, as far as that is known."""
    return bool(worker.identities.difference(call.pid)) or os.access(path, mode, effective_ids=True)


def _may_remove(worker: WorkerState, call: Syscall, path: str) -> bool:
    """Whether the caller may change the folder of *path*."""
    return _may(worker, call, os.path.dirname(path), os.W_OK | os.X_OK)


def _rename_fails(old: File, new: File | None, new_path: str, flags: int) -> bool:
    """Whether the kernel refuses to rename *old* to *new_path*, where *new* is, or does nothing."""
    folder = _file_at(os.path.dirname(new_path))
    if folder is None or folder.status.st_dev != old.status.st_dev:
        return True
    if is_below(new_path, [old.path]):
        return True
    if new is None:
        return bool(flags & linux.RENAME_EXCHANGE)
    if flags & linux.RENAME_NOREPLACE or new.inode == old.inode:
        return True
    if flags & linux.RENAME_EXCHANGE:
        return False
    is_folder = new.kind == stat.S_IFDIR
    return is_folder is not (old.kind == stat.S_IFDIR) or (is_folder and bool(os.listdir(new.path)))


def _are_hidden(worker: WorkerState, paths: list[str]) -> bool:
    """Whether a fault hides all *paths*, so that the worker takes their folder for empty."""
    counters = worker.counters_of_kind(Fault)
    hiding = [counter for counter in counters if counter.fault.hides_file]
    return all(any(each.matches(path) for each in hiding) for path in paths)
