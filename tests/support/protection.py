"""Folders that must survive a trial, and the deeds of workers that meet an error there.

``perform`` has a worker do each deed of a table in its own folder, after a read error in it.
"""

import ctypes
import errno
import hashlib
import mmap
import os
import re
import stat
import subprocess
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from torch.utils.data import Dataset

from pytest_dataloader_faults import run_trial
from pytest_dataloader_faults.faults import Fault, ReadError
from pytest_dataloader_faults.outcomes import Outcome

VICTIM = "victim.png"
"""The file in each folder that the dataset reads, and whose reads fail."""
OTHER = "other.bin"
"""A file in each folder that no fault affects."""
CONTENT = bytes(range(1, 65))
AT_FDCWD = -100
"""In place of the descriptor of a folder: paths are relative to the current one."""
DONE = "done"
_NOTE = 1000
libc = ctypes.CDLL(None, use_errno=True)


def contents(folder: Path) -> dict[str, str]:
    """Each name in *folder*, with its type, and a digest or the target of a link."""
    found = {"": str(folder)} if os.path.lexists(folder) else {}
    for parent, folders, files in os.walk(folder):
        found |= {os.path.join(parent, name): parent for name in (*folders, *files)}
    return {os.path.relpath(path or folder, folder): _describe(path or folder) for path in found}


def _describe(path: Any) -> str:
    mode = os.lstat(path).st_mode
    if stat.S_ISLNK(mode):
        return f"link to {os.readlink(path)}"
    if stat.S_ISREG(mode):
        return f"file {hashlib.sha256(Path(path).read_bytes()).hexdigest()[:12]}"
    return stat.filemode(mode)[0]


def changes(before: Mapping[str, str], after: Mapping[str, str]) -> list[str]:
    """The names that were lost, changed or added between two results of ``contents``."""
    names = sorted({*before, *after})
    return [
        f"{name}: {before.get(name, 'nothing')} -> {after.get(name, 'nothing')}"
        for name in names
        if before.get(name) != after.get(name)
    ]


class Notes:
    """A short text at each number, in memory that forked processes share.

    No system call leads there, so that neither a fault nor the protection affects it.
    """

    def __init__(self, count: int) -> None:
        self._memory = mmap.mmap(-1, count * _NOTE)

    def __setitem__(self, number: int, text: str) -> None:
        data = text.encode()[:_NOTE].ljust(_NOTE, b"\0")
        self._memory[number * _NOTE : (number + 1) * _NOTE] = data

    def __getitem__(self, number: int) -> str:
        data = self._memory[number * _NOTE : (number + 1) * _NOTE]
        return data.rstrip(b"\0").decode(errors="replace")


def answer_of(action: Callable[..., Any], *arguments: Any) -> str:
    """What *action* returned, the name of its errno, or the type and the text of its error."""
    try:
        value = action(*arguments)
    except OSError as error:
        return errno.errorcode[error.errno] if error.errno else f"{type(error).__name__}: {error}"
    except Exception as error:  # noqa: BLE001  # each library has its own
        return f"{type(error).__name__}: {error}"
    return DONE if value is None else repr(value)


def check(result: int) -> int:
    """The result of a function of ``libc``; OSError if it has failed."""
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result


def run(*command: object, **options: Any) -> None:
    options = {"stdout": subprocess.PIPE, "text": True, **options}
    process = subprocess.run(
        list(map(str, command)), stderr=subprocess.PIPE, check=False, **options
    )
    if process.returncode or process.stdout or process.stderr:
        raise ChildProcessError(f"{process.stdout}{process.stderr}")


def with_descriptor(
    use: Callable[[int], Any], flags: int = os.O_RDWR, name: str = VICTIM
) -> Callable[[Path], Any]:
    """A deed that opens a file of the folder, and calls *use* with the descriptor."""

    def do(folder: Path) -> Any:
        fd = os.open(folder / name, flags)
        try:
            return use(fd)
        finally:
            os.close(fd)

    return do


class Deed(NamedTuple):
    """What a worker does in a folder of its own, after an error in it.

    Attributes:
        do: Called with the folder.
        change: Of the refusal; "" if nothing is refused.
        path: Of the refusal, below the folder: a regular expression.
        says: What the answer must contain: a regular expression.
        prepare: Called with the folder before the trial.
        begin: Called with the folder in the worker, before any fault fires.
        create: Called with the folder when the dataset is created.
    """

    do: Callable[[Path], Any]
    change: str = ""
    path: str = VICTIM
    says: str = DONE
    prepare: Callable[[Path], Any] = id
    begin: Callable[[Path], Any] = id
    create: Callable[[Path], Any] = id

    def is_refused_by(self, change: str, path: str) -> bool:
        return change == self.change and re.fullmatch(self.path, path) is not None


def refused(
    do: Callable[[Path], Any],
    change: str,
    path: str = VICTIM,
    says: str = "EROFS",
    prepare: Callable[[Path], Any] = id,
) -> Deed:
    """A deed that is answered with EROFS, or a text that says so."""
    return Deed(do, change, path, says, prepare)


class Performed(NamedTuple):
    """A deed's answer, what its folder lost or gained, and (change, path) of each refusal in it."""

    answer: str
    changes: list[str]
    refusals: set[tuple[str, str]]

    def differences(self, deed: Deed) -> list[str]:
        """What is not as the *deed* has it; a deed that is refused must change nothing."""
        wrong = []
        if not re.search(deed.says, self.answer):
            wrong.append(f"answered {self.answer or 'nothing'!r}, expected {deed.says!r}")
        if deed.change:
            wrong += self.changes
            if not any(deed.is_refused_by(*refusal) for refusal in self.refusals):
                wrong.append(f"refused {sorted(self.refusals)}, expected {deed.change} {deed.path}")
        elif self.refusals:
            wrong.append(f"refused {sorted(self.refusals)}, expected nothing")
        return wrong


class Deeds(Dataset[int]):
    """Reads a file of each folder; if that fails, it does the deed of that folder once."""

    def __init__(self, deeds: Iterable[Deed], folders: list[Path], notes: Notes) -> None:
        self.deeds, self.folders, self.notes = list(deeds), folders, notes
        for deed, folder in zip(self.deeds, folders, strict=True):
            deed.create(folder)

    def __len__(self) -> int:
        return len(self.deeds)

    def __getitem__(self, index: int) -> int:
        if index == 0:
            for deed, folder in zip(self.deeds, self.folders, strict=True):
                deed.begin(folder)
        folder = self.folders[index]
        try:
            (folder / VICTIM).read_bytes()
        except OSError:
            if not self.notes[index]:
                self.notes[index] = answer_of(self.deeds[index].do, folder)
        return index


def write_tree(folder: Path) -> Path:
    """A folder with a file of each kind that must survive."""
    (folder / "inner").mkdir(parents=True)
    (folder / "empty").mkdir()
    (folder / VICTIM).write_bytes(CONTENT)
    (folder / OTHER).write_bytes(CONTENT[::-1])
    (folder / "inner" / "a.txt").write_text("a")
    (folder / "link").symlink_to(VICTIM)
    (folder / "inner-link").symlink_to("inner")
    return folder


def perform(
    deeds: Mapping[str, Deed], home: Path, *faults: Fault
) -> tuple[Outcome, dict[str, Performed]]:
    """Have one worker do all *deeds*, each after a read error in its folder below *home*.

    The folder of each has the number of the deed as its name; it may exist already. Other *faults*
    are injected as well.
    """
    folders = [home.resolve() / str(number) for number in range(len(deeds))]
    for deed, folder in zip(deeds.values(), folders, strict=True):
        if not folder.exists():
            write_tree(folder)
        deed.prepare(folder)
    before, notes = list(map(contents, folders)), Notes(len(deeds))
    outcome = run_trial(
        lambda: Deeds(deeds.values(), folders, notes),
        ReadError(f"*/{VICTIM}"),
        *faults,
        loader={"num_workers": 1},
    )
    assert outcome.fired, "nothing was done"
    performed = {
        name: Performed(
            notes[number],
            changes(before[number], contents(folders[number])),
            _refusals(outcome, folders[number]),
        )
        for number, name in enumerate(deeds)
    }
    return outcome, performed


def _refusals(outcome: Outcome, folder: Path) -> set[tuple[str, str]]:
    return {
        (refusal.change, os.path.relpath(refusal.path, folder))
        for refusal in outcome.refusals
        if Path(refusal.path).is_relative_to(folder)
    }


def perform_as_expected(deeds: Mapping[str, Deed], home: Path, *faults: Fault) -> Outcome:
    """The same; an AssertionError names each deed that differs, and how."""
    outcome, performed = perform(deeds, home, *faults)
    wrong = {name: performed[name].differences(deed) for name, deed in deeds.items()}
    texts = [f"{name}: {each}" for name, differences in wrong.items() for each in differences]
    failed = sum(map(bool, wrong.values()))
    assert not texts, f"{failed} of {len(deeds)} deeds differ\n" + "\n".join(texts)
    return outcome
