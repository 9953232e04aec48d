"""Huge pages for a process that forks often [runs in pytest]."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterable, Iterator

from pytest_dataloader_faults._engine.kernel.linux import collapse
from pytest_dataloader_faults._engine.system.proc import PrivateMemory, private_memory

# Some facts about the fork of a process that has loaded torch. It holds 150 MB in 37,000 pages,
# most of them objects of Python. fork(2) copies an entry of the page table for each, and the end of
# the child takes them away again: 6 and 10 ms here, and a trial has seven of them, a scope of
# ``inject`` one and more for its workers: that was most of their time. A huge page holds 512 pages
# in one entry. Python does not request any, and most systems provide them only on request
# (/sys/kernel/mm/transparent_hugepage/enabled). MADV_COLLAPSE (madvise(2), since Linux 6.1) moves
# what a range holds into huge pages, once: later allocations stay as they were, which those who
# measure memory rely on. A child that writes copies one small page, as before. Fork and end then
# take 1.5 and 6 ms. Four fifths of the huge pages are whole after dozens of trials: pytest's
# process mostly waits while its children live.


_HUGE = 1 << 21
_SCOPES_BEFORE = 3
"""Moving memory takes as long as it saves in a dozen trials."""
_MOST = 1 << 28
"""Bytes of one range: a larger one is an array, and would take long to move."""
_scopes = itertools.count(1)


def collapse_after_two_scopes() -> None:
    """Use huge pages from the third trial or scope of this process on, if the kernel has them."""
    if next(_scopes) != _SCOPES_BEFORE:
        return
    with contextlib.suppress(OSError):  # Without /proc forks take longer, and that is all.
        for start, end in list(_full_ranges(private_memory())):
            collapse(start, end - start)


def _full_ranges(memory: Iterable[PrivateMemory]) -> Iterator[tuple[int, int]]:
    """Ranges of whole huge pages in private *memory* that is mostly in use."""
    for begin, end, resident in memory:
        start, stop = -(-begin // _HUGE) * _HUGE, end // _HUGE * _HUGE
        if start < stop and end - begin <= min(_MOST, 2 * resident):
            yield start, stop
