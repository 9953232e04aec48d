"""The known bugs of datasets under loaders, by number and name: what the battery is measured by.

They are in entries.txt. The letter is the family: A handles shared over fork, B pickling, C
exceptions on their way out of the worker, D descriptors, E memory and shared memory, F death of
workers, G errors swallowed, H iterable datasets and the counting of epochs, I random numbers and
state, J caches, K hangs, L pinned memory, M truncation that nobody notices, N servers, O several
ranks, P saved states, Q file locks, R threads and processes, S listings of folders.

What is torch's own, or not a dataset's, has a sentence below it, and in brackets the test, below
``tests``, that shows how the harness takes it. What cannot be shown has its excuse.
"""

from pathlib import Path

_EXCUSED = "    excused: "


def _read() -> tuple[dict[str, str], ...]:
    names: dict[str, str] = {}
    behaviours: dict[str, str] = {}
    excused: dict[str, str] = {}
    entry = ""
    for line in Path(__file__).with_suffix(".txt").read_text(encoding="utf-8").splitlines():
        if line.startswith(_EXCUSED):
            excused[entry] = line.removeprefix(_EXCUSED)
        elif line.startswith(" "):
            behaviours[entry] = f"{behaviours.get(entry, '')} {line.strip()}".strip()
        else:
            entry, name = line.split(" ")
            names[entry] = name
    return names, behaviours, excused


ENTRIES, BEHAVIOURS, EXCUSED = _read()
