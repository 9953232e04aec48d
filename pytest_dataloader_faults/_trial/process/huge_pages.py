"""Make this process cheap to fork, by huge pages [runs in pytest].

Some facts about the fork of a process that has loaded torch. It holds 150 MB in 37,000 pages, most
of them objects of Python. fork(2) copies an entry of the page table for each, and the end of the
child takes them away again: 6 and 10 ms here, and a trial has seven of them, which was most of its
time. A huge page holds 512 pages in one entry. Python does not ask for any, and most systems give
them only on request (/sys/kernel/mm/transparent_hugepage/enabled). MADV_COLLAPSE (madvise(2), since
Linux 6.1) moves what a range holds into huge pages, once: later allocations stay as they were,
which those who measure memory rely on. A child that writes copies one small page, as before. Fork
and end then take 1.5 and 6 ms. Four fifths of the huge pages are whole after dozens of trials:
pytest's process mostly waits while its children live.
"""

from __future__ import annotations

import contextlib
import itertools
import re
from collections.abc import Iterator

from pytest_dataloader_faults._engine.kernel.linux import collapse

_HUGE = 1 << 21
_TRIALS_BEFORE = 3
"""It takes as long as it saves in a dozen trials."""
_MOST = 1 << 28
"""Bytes of one range: a larger one is an array, and would take long to move."""
_RANGE = re.compile(
    r"^([0-9a-f]+)-([0-9a-f]+) rw-p \S+ \S+ 0 +(?:\[heap\])?\n"
    r"(?:[A-Z]\w+: .*\n)*?Anonymous: +(\d+) kB",
    re.MULTILINE,
)
_trials = itertools.count(1)


def collapse_after_some_trials() -> None:
    """Use huge pages from the third trial of this process on, where the kernel has them."""
    if next(_trials) != _TRIALS_BEFORE:
        return
    with contextlib.suppress(OSError):  # Without /proc forks take longer, and that is all.
        with open("/proc/self/smaps", encoding="utf-8", errors="replace") as file:
            ranges = list(_full_ranges(file.read()))
        for first, end in ranges:
            collapse(first, end - first)


def _full_ranges(maps: str) -> Iterator[tuple[int, int]]:
    """Ranges of whole huge pages in private memory that is mostly in use."""
    for match in _RANGE.finditer(maps):
        begin, end, used = int(match[1], 16), int(match[2], 16), int(match[3]) << 10
        first, last = -(-begin // _HUGE) * _HUGE, end // _HUGE * _HUGE
        if first < last and end - begin <= min(_MOST, 2 * used):
            yield first, last
