"""Files that a dataset makes while it is read: a cache, which hides its sources from faults.

Some facts about what can be seen of a cache. The first reading fills it, which is mostly that of
the reference, before there is any worker; from then on workers read the cache alone. So each file
that the workers of the control read is asked when it was changed last, and that is compared with
the time at which the baseline began. The time is ctime, since a program may set mtime to what it
likes. The stamps of files are a few milliseconds behind that time, and never ahead: what a test
wrote just before is not taken for a cache. The clock of a file server may be ahead, and then it
is. So the text says what was seen, and no verdict depends on it. A cache that an earlier run has
filled cannot be told from any other file.

Where the file system knows when a file was made (statx(2)), what the reading made is known from
what the factory made before it, and from what was there and was changed. In a private view of their
folder, without the files that the reading made, each trial begins as the reading began.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from pytest_dataloader_faults._engine.system.birth import birth_time
from pytest_dataloader_faults._engine.system.private_view import NO_VIEW, PrivateView
from pytest_dataloader_faults.faults._globs import is_below
from pytest_dataloader_faults.outcomes import Outcome
from pytest_dataloader_faults.outcomes._text import printable

_SHOWN = 3
_TAKE_FOLDER = (
    "To try the dataset without its cache, have make_dataset take a folder, and put the cache there"
)


class CacheFacts(NamedTuple):
    """What is known of the files that a dataset made while it was read.

    Attributes:
        read: Those that the workers of the control read, as they are in no private view.
        view: What trials have in place of their folders.
        hindrance: Why they have no such view; "" if they have, or need none.
    """

    read: tuple[str, ...] = ()
    view: PrivateView = NO_VIEW
    hindrance: str = ""

    @property
    def notes(self) -> tuple[str, ...]:
        """What to know of them about every trial with faults of files."""
        started_cold = (_note_of_view(self.view),) if self.view.removed else ()
        return (*started_cold, *((_note(self.read, self.hindrance),) if self.read else ()))


NOTHING_MADE = CacheFacts()


def files_made_since(began: int, control: Outcome, view: PrivateView) -> tuple[str, ...]:
    """The files that the workers of *control* read and that changed after *began*, in ns.

    Those that *view* has taken away are not among them.
    """
    made = (path for path in _read_by(control) if _last_change(path) > began)
    return tuple(path for path in made if not is_below(os.path.realpath(path), view.removed))


def view_without_files_made_since(began: int, control: Outcome) -> PrivateView:
    """A view of the folders in which the workers of *control* read files made after *began*.

    It has none of these files, nor others made there since. It is empty if there are none.
    """
    made = [path for path in _read_by(control) if (birth_time(path) or 0) >= began]
    tops = {_made_part(os.path.realpath(path), began) for path in made}
    folders = _topmost(os.path.dirname(top) for top in tops)
    kept = tuple(folder for folder in folders if not _is_ours(folder))
    also_made = (path for folder in kept for path in _entries_made_since(began, folder))
    removed = {*also_made, *(top for top in tops if is_below(top, kept))}
    return PrivateView(kept, tuple(sorted(removed)))


def _read_by(control: Outcome) -> list[str]:
    """The files that the workers of *control* read."""
    is_python = control.engine == "python"  # It does not see what C reads, but most opens.
    every = (each for worker in control.workers for each in worker.files.items())
    return sorted({path for path, counts in every if counts.reads or (is_python and counts.opens)})


def _made_part(path: str, began: int) -> str:
    """The topmost of *path* and its folders that was made after *began*."""
    folder = os.path.dirname(path)
    return _made_part(folder, began) if (birth_time(folder) or 0) >= began else path


def _entries_made_since(began: int, folder: str) -> Iterator[str]:
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:  # No file changes before it is made.
            changed = entry.stat(follow_symlinks=False).st_ctime_ns
            if changed >= began and (birth_time(entry.path) or 0) >= began:
                yield entry.path


def _topmost(folders: Iterable[str]) -> list[str]:
    found: list[str] = []
    for folder in sorted(set(folders)):
        if not is_below(folder, found):
            found.append(folder)
    return found


def _is_ours(folder: str) -> bool:
    """Whether the trial's own folders are in *folder*, of which there can be no view then."""
    return is_below(os.path.realpath(tempfile.gettempdir()), [folder])


def _last_change(path: str) -> int:
    with contextlib.suppress(OSError):  # It is gone: a temporary file, or one of another trial.
        return os.stat(path).st_ctime_ns
    return 0


def _note(made: Sequence[str], hindrance: str) -> str:
    """What to tell of the files that were *made*, and what to do."""
    files, were = ("file", "was") if len(made) == 1 else ("files", "were")
    why = f". Trials cannot begin without them in a private copy of their folder: {hindrance}"
    return (
        f"{len(made)} {files} that the workers read ({_listed(made)}) {were} made or changed after"
        " the first reading began, as a cache is. Faults happen to files that are read, and not to"
        f" the sources of a cache{why if hindrance else ''}. {_TAKE_FOLDER}"
    )


def _note_of_view(view: PrivateView) -> str:
    names = [os.path.basename(path) for path in view.removed[:_SHOWN]]
    shown = _shortened(names, view.removed)
    return (
        f"reading the dataset made files ({shown}), as a cache is. So each trial has a private"
        " copy of the folder, where it begins without them and reads the sources again. What it"
        " writes there is gone with the trial"
    )


def _listed(paths: Sequence[str]) -> str:
    return _shortened(["/".join(path.split("/")[-2:]) for path in paths[:_SHOWN]], paths)


def _shortened(names: Sequence[str], every: Sequence[str]) -> str:
    return printable(", ".join([*names, *(["..."] if len(every) > _SHOWN else [])]))
