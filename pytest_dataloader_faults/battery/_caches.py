"""Files that a dataset makes while it is read: a cache, which hides its sources from faults.

Some facts about what can be seen of a cache. The first reading fills it, which is mostly that of
the reference, before there is any worker; from then on workers read the cache alone. So each file
that the workers of the control read is asked when it was changed last, and that is compared with
the time at which the reference began. The time is ctime, since a program may set mtime to what it
likes. The kernel stamps files a few milliseconds late at most, and never early: what a test wrote
just before is not taken for a cache. The clock of a file server may be ahead, and then it is. So
the text says what was seen, and no verdict depends on it. A cache that an earlier run has filled
cannot be told from any other file.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence

from pytest_dataloader_faults.outcomes import Outcome

_SHOWN = 3


def files_made_since(began: int, control: Outcome) -> tuple[str, ...]:
    """The files that the workers of *control* read and that changed after *began*, in ns."""
    is_python = control.engine == "python"  # It does not see what C reads, but most opens.
    read = {
        path
        for worker in control.workers
        for path, counts in worker.files.items()
        if counts.reads or (is_python and counts.opens)
    }
    return tuple(path for path in sorted(read) if _last_change(path) > began)


def versions_of_files(run: Outcome) -> dict[str, tuple[int, ...] | None]:
    """What changes when a file that the workers of *run* used is changed, or its folder is.

    A folder changes when a file in it is made, removed or renamed. The kernel sets ctime, and no
    program can set it back.
    """
    files = {path for worker in run.workers for path in worker.files}
    return {path: _version(path) for path in sorted(files | set(map(os.path.dirname, files)))}


def _version(path: str) -> tuple[int, ...] | None:
    with contextlib.suppress(OSError):
        found = os.stat(path)
        return (
            found.st_dev,
            found.st_ino,
            found.st_size,
            found.st_mtime_ns,
            found.st_ctime_ns,
        )
    return None


def _last_change(path: str) -> int:
    with contextlib.suppress(OSError):  # It is gone: a temporary file, or one of another trial.
        return os.stat(path).st_ctime_ns
    return 0


def note(made: Sequence[str]) -> str:
    """What to tell of the files that were *made*, and what to do."""
    names = ["/".join(path.split("/")[-2:]) for path in made[:_SHOWN]]
    listed = ", ".join([*names, *(["..."] if len(made) > _SHOWN else [])])
    files, were = ("file", "was") if len(made) == 1 else ("files", "were")
    return (
        f"{len(made)} {files} that the workers read ({listed}) {were} made or changed after the"
        " first reading began, as a cache is. Faults happen to files that are read, and not to the"
        " sources of a cache. To try the dataset without its cache, have make_dataset take a"
        " folder, and put the cache there"
    )
