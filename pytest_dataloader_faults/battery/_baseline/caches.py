"""Files that a dataset makes while it is read: a cache, which hides its sources from faults.

Some facts about what can be seen of a cache. The first reading fills it, which is mostly that of
the reference, before there is any worker; from then on workers read the cache alone. So each file
that the workers of the control read is asked when it was changed last, and that is compared with
the time at which the baseline began. The time is ctime, since a program may set mtime to what it
likes. The stamps of files are a few milliseconds behind that time, and never ahead: what a test
wrote just before is not taken for a cache. The clock of a file server may be ahead, and then it
is. So the text says what was seen, and no verdict depends on it. A cache that an earlier run has
filled cannot be told from any other file.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence

from pytest_dataloader_faults.outcomes import Outcome
from pytest_dataloader_faults.outcomes.text import printable

_SHOWN = 3
_TAKE_FOLDER = (
    "To try the dataset without its cache, have make_dataset take a folder, and put the cache there"
)


def files_made_since(began: int, control: Outcome) -> tuple[str, ...]:
    """The files that the workers of *control* read and that changed after *began*, in ns."""
    is_python = control.engine == "python"  # It does not see what C reads, but most opens.
    every = (each for worker in control.workers for each in worker.files.items())
    read = {path for path, counts in every if counts.reads or (is_python and counts.opens)}
    return tuple(path for path in sorted(read) if _last_change(path) > began)


def _last_change(path: str) -> int:
    with contextlib.suppress(OSError):  # It is gone: a temporary file, or one of another trial.
        return os.stat(path).st_ctime_ns
    return 0


def note_of(made: Sequence[str]) -> str:
    """What to say about the files that were *made*, and what to do."""
    files, were = ("file", "was") if len(made) == 1 else ("files", "were")
    names = ["/".join(path.split("/")[-2:]) for path in made[:_SHOWN]]
    shown = printable(", ".join([*names, *(["..."] if len(made) > _SHOWN else [])]))
    return (
        f"{len(made)} {files} that the workers read ({shown}) {were} made or changed after the"
        " first reading began, as a cache is. Faults happen to files that are read, and not to the"
        f" sources of a cache. {_TAKE_FOLDER}"
    )
