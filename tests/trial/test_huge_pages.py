"""Huge pages make forks cheap, and change nothing else."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from pytest_dataloader_faults._engine.system.proc import parse_private_memory
from pytest_dataloader_faults._trial.child import _full_ranges

MIB = 1 << 20
MAPS = """\
{begin:x}-{end:x} {kind} 00000000 00:00 {inode} {name}
Size:              20480 kB
Rss:                {used} kB
Anonymous:          {used} kB
VmFlags: rd wr mr mw me ac
"""
HUGE = """
import re

def huge():
    return int(re.search(r"AnonHugePages: +(\\d+)", open("/proc/self/smaps_rollup").read())[1])

held = [b"%064d" % n for n in range(200_000)]
"""
COLLAPSE = """
from pytest_dataloader_faults._trial import child

before = huge()
child.collapse_after_two_trials()
child.collapse_after_two_trials()
first = huge()
child.collapse_after_two_trials()
assert held == [b"%064d" % n for n in range(200_000)]
print(before, first, huge())
"""
PREPARE = """
from pytest_dataloader_faults.battery.checks import CHECKS
from pytest_dataloader_faults.battery.runner import prepare

names = [name for name in CHECKS if name != "pickles"]  # It would start a fork server.
before = huge()
prepare(names[:10])
few = huge()
prepare(names[:11])
print(before, few, huge())
"""
NEEDS_HUGE_PAGES = pytest.mark.skipif(
    not Path("/sys/kernel/mm/transparent_hugepage/enabled").exists(),
    reason="this kernel has no transparent huge pages",
)


def _range(
    begin: int, size: int, resident: int, kind: str = "rw-p", inode: int = 0, name: str = ""
) -> str:
    return MAPS.format(
        begin=begin, end=begin + size, used=resident >> 10, kind=kind, inode=inode, name=name
    )


def test_only_private_memory_that_is_in_use_is_moved() -> None:
    size = 20 * MIB
    maps = (
        _range(0x7F0000100000, size, size, name="[heap]")
        + _range(0x7F1000000000, size, size, kind="rw-s")
        + _range(0x7F2000000000, size, size, inode=7, name="/lib/libc.so")
        + _range(0x7F3000000000, size, MIB)
        + _range(0x7F4000000000, size, size, name="[stack]")
        + _range(0x7F5000000000, 1024 * MIB, 1024 * MIB)
        + _range(0x7F6000000000, size, size)
    )
    heap = (0x7F0000200000, 0x7F0000200000 + 18 * MIB)
    assert list(_full_ranges(parse_private_memory(maps))) == [
        heap,
        (0x7F6000000000, 0x7F6000000000 + size),
    ]


@NEEDS_HUGE_PAGES
def test_the_third_trial_moves_memory_and_keeps_what_is_in_it() -> None:
    pages_at_start, pages_after_one, pages_at_end = _huge_pages(COLLAPSE)
    assert pages_at_start == pages_after_one
    assert pages_at_end > pages_after_one or not _has_collapse(), "no page was moved"


@NEEDS_HUGE_PAGES
def test_more_than_ten_checks_move_memory_before_their_first_trial() -> None:
    pages_at_start, pages_for_few, pages_for_many = _huge_pages(PREPARE)
    assert pages_at_start == pages_for_few
    assert pages_for_many > pages_for_few or not _has_collapse(), "no page was moved"


def _huge_pages(code: str) -> list[int]:
    """The kB of huge pages that *code* prints, in a process of its own."""
    process = subprocess.run(
        [sys.executable, "-c", HUGE + code], capture_output=True, text=True, check=True
    )
    return [int(number) for number in process.stdout.split()]


def _has_collapse() -> bool:
    """Whether this kernel knows MADV_COLLAPSE: Linux 6.1 and later."""
    release = Path("/proc/sys/kernel/osrelease").read_text(encoding="utf-8")
    return tuple(map(int, re.findall(r"\d+", release)[:2])) >= (6, 1)
