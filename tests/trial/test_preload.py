"""What a trial needs is read and imported once, and forks are cheap by huge pages."""

import linecache
import re
import subprocess
import sys
import traceback
from pathlib import Path

import pytest

from pytest_dataloader_faults import run_trial
from pytest_dataloader_faults._engine.loader.huge_pages import _full_ranges
from pytest_dataloader_faults._engine.system.proc import parse_private_memory
from pytest_dataloader_faults._trial.child import preload
from support.datasets import Records

_WHOLE = 4
"""So much linecache knows of a file that it has read."""


class KnowsItsModules(Records):
    """Refuses to make a sample if a module is loaded that pytest's process does not have."""

    known = frozenset()

    def __getitem__(self, index):
        if new := sorted(sys.modules.keys() - self.known):
            message = f"imported in the trial: {new}"
            raise RuntimeError(message)
        return super().__getitem__(index)


class KnowsItsSources(Records):
    """Refuses to make a sample where linecache would have to read a file for the stack."""

    def __getitem__(self, index):
        running = {frame.f_code.co_filename for frame, _ in traceback.walk_stack(None)}
        unread = {path for path in running if len(linecache.cache.get(path, ())) != _WHOLE}
        if unread := sorted(path for path in unread if not path.startswith("<")):
            message = f"not read: {unread}"
            raise RuntimeError(message)
        return super().__getitem__(index)


@pytest.mark.parametrize("dataset", [KnowsItsModules, KnowsItsSources])
def test_nothing_is_done_again(dataset, records, monkeypatch):
    loader = {"num_workers": 2, "batch_size": 4}
    preload()
    monkeypatch.setattr(KnowsItsModules, "known", frozenset(sys.modules))
    outcome = run_trial(lambda: dataset(records), loader=loader)

    assert outcome.exception is None, outcome.exception.message
    assert len(outcome.delivered) == 4


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
from pytest_dataloader_faults._engine.loader.huge_pages import collapse_after_two_scopes

before = huge()
collapse_after_two_scopes()
collapse_after_two_scopes()
first = huge()
collapse_after_two_scopes()
assert held == [b"%064d" % n for n in range(200_000)]
print(before, first, huge())
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
def test_the_third_scope_moves_memory_and_keeps_what_is_in_it() -> None:
    pages_at_start, pages_after_one, pages_at_end = _huge_pages(COLLAPSE)
    assert pages_at_start == pages_after_one
    assert pages_at_end > pages_after_one or not _has_collapse(), "no page was moved"


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
