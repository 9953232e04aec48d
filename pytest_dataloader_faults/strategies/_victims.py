"""Which file a fault is about, and which of its operations."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

from hypothesis import strategies as st
from hypothesis.errors import InvalidArgument

from pytest_dataloader_faults._victims import Files as Globs
from pytest_dataloader_faults._victims import globs_of
from pytest_dataloader_faults.exceptions import InvalidArgumentError
from pytest_dataloader_faults.strategies._arguments import require_count
from pytest_dataloader_faults.surveys import DataFiles, Survey

Files: TypeAlias = DataFiles | Survey | Globs | None
"""What strategies take as ``files``."""

Path: TypeAlias = str | tuple[str, ...]
_NTH = 4


@dataclass(frozen=True)
class Victim:
    """A file, or all of them, and the last of its operations that can be meant."""

    path: Path
    operations: int


def nth_of(victim: Victim) -> st.SearchStrategy[int]:
    """Which of its operations: as often the first one as any other, since most bugs are there.

    In turn, so that a place in the list means the same if there are more operations.
    """
    later = range(2, victim.operations + 1)
    return st.sampled_from([1, *(nth for each in later for nth in (each, 1))])


def data_files(files: Files) -> DataFiles:
    """*files* as what is known of them; of globs that is little."""
    if isinstance(files, Survey):
        return files.files
    if isinstance(files, DataFiles):
        return files
    try:
        globs = globs_of(files)
    except InvalidArgumentError as error:
        raise InvalidArgument(str(error)) from error
    counts = dict.fromkeys(globs, _NTH)
    return DataFiles(opens=counts, reads=counts, every=globs[0] if len(globs) == 1 else globs)


def opened(files: Files, most: int | None = None) -> st.SearchStrategy[Victim]:
    """One of the files that are opened, or all; the first one first."""
    known = data_files(files)
    return _victims(known, known.opens, most, "open")


def read(files: Files, most: int | None = None) -> st.SearchStrategy[Victim]:
    """One of the files that are read, or all; the first one first."""
    known = data_files(files)
    return _victims(known, known.reads, most, "read")


def held(files: Files, most: int | None = None) -> st.SearchStrategy[Victim]:
    """One of the files whose descriptors workers read by, opened there or inherited, or all."""
    known = data_files(files)
    counts = {path: max(1, known.opens.get(path, 0)) for path in known.reads}
    return _victims(known, counts, most, "read")


def _victims(
    known: DataFiles, counts: Mapping[str, int], most: int | None, verb: str
) -> st.SearchStrategy[Victim]:
    if most is not None:
        require_count(max_nth=most)
    if not counts:
        message = f"files={known!r} must have a file that workers {verb}; this dataset has none"
        raise InvalidArgument(message)
    each = [Victim(path, most or count) for path, count in counts.items()]
    every = Victim(known.every, most or sum(counts.values()))
    # As often all of them as one. In one list: a choice of two strategies, one of which makes a
    # choice of its own, would shrink to the other one.
    return st.sampled_from([*each, *([every] * len(each))] if len(each) > 1 else each)
