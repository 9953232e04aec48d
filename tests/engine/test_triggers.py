"""Which of many operations fail: by count, by rhythm, by chance, and by place in the file."""

from __future__ import annotations

import functools
import itertools
import mmap
import os
import shutil
import signal
import sys
from pathlib import Path

import pytest

from pytest_dataloader_faults import inject, run_trial
from pytest_dataloader_faults.faults import (
    ClosedDescriptor,
    OpenError,
    ReadError,
    ShortRead,
    SlowRead,
)
from support.datasets import COUNT, Records, write_records
from support.epochs import alone, epoch
from support.tries import WAYS, Tries

TRIGGERED = (
    OpenError,
    ReadError,
    lambda path, **triggers: ShortRead(path, 9, **triggers),
    ClosedDescriptor,
    lambda path, **triggers: SlowRead(path, 0.001, **triggers),
)
NAMES = ["open", "read", "short", "closed", "slow"]
PAGE = mmap.PAGESIZE
PAGES = 4


@pytest.fixture(name="paths")
def _paths(records):
    """Sixteen files."""
    return [str(path) for path in sorted(records.iterdir())]


def _struck(paths, fault, *, seed=0, workers=1):
    """For each file, in the order they are read, whether the fault befell it."""
    with inject(fault, seed=seed, require_fired=False) as injection:
        read = epoch(alone(Tries(paths, WAYS["read"]), num_workers=workers))
    assert [*range(len(paths))] == [each.index for each in read.batches]
    struck = {each.path for each in injection.faults[0].firings}
    return [path in struck for path in paths]


def _numbers(struck):
    return [number for number, each in enumerate(struck, 1) if each]


RHYTHMS = [
    ({"nth": 15}, [15, 16]),
    ({"nth": 3, "times": 2}, [3, 4]),
    ({"every": 5}, [1, 6, 11, 16]),
    ({"nth": 2, "every": 4, "times": 3}, [2, 6, 10]),
]


def _struck_by_each(folder, faults, **options):
    """For each fault, of sixteen files of its own, whether it befell them. All in one worker."""
    made = {name: [str(each) for each in _sixteen(folder / name)] for name in faults}
    armed = [make(f"{folder}/{name}/*.rec") for name, make in faults.items()]
    with inject(*armed, require_fired=False, **options) as injection:
        read = epoch(alone(Tries([path for each in made.values() for path in each], WAYS["read"])))
    assert len(read.batches) == COUNT * len(faults)
    met = [{each.path for each in facts.firings} for facts in injection.faults]
    return {
        name: [path in struck for path in paths]
        for (name, paths), struck in zip(made.items(), met, strict=True)
    }


def _sixteen(folder):
    return sorted((folder if folder.exists() else write_records(folder)).iterdir())


@pytest.fixture(name="rhythms", scope="module")
def _rhythms(tmp_path_factory):
    """What each kind strikes by each of the rhythms, in a scope of that kind."""
    found = {}
    for name, kind in zip(NAMES, TRIGGERED, strict=True):
        faults = {
            str(place): functools.partial(kind, **triggers)
            for place, (triggers, _) in enumerate(RHYTHMS)
        }
        struck = _struck_by_each(tmp_path_factory.mktemp(name), faults)
        found |= {(name, int(place)): each for place, each in struck.items()}
    return found


@pytest.mark.parametrize("kind", NAMES)
@pytest.mark.parametrize("rhythm", range(len(RHYTHMS)), ids=lambda place: str(RHYTHMS[place][0]))
def test_counts_and_rhythm(rhythms, kind, rhythm):
    """From the nth on, each every-th one, so many times."""
    assert RHYTHMS[rhythm][1] == _numbers(rhythms[kind, rhythm])


@pytest.fixture(name="chances", scope="module")
def _chances(tmp_path_factory):
    """What each kind strikes by chance, with three seeds, two of them alike."""
    folder = tmp_path_factory.mktemp("chances")
    faults = {
        name: functools.partial(kind, probability=0.5)
        for name, kind in zip(NAMES, TRIGGERED, strict=True)
    }
    return [_struck_by_each(folder, faults, seed=seed) for seed in (3, 3, 4)]


@pytest.mark.parametrize("kind", NAMES)
def test_chance_is_the_seeds(chances, kind):
    """The same seed twice strikes the same operations; another one strikes others."""
    once, again, other = (each[kind] for each in chances)
    assert once == again
    assert once != other
    assert 0 < sum(once) < COUNT


def test_chance_is_each_workers_own(paths):
    """What one draws has nothing to do with what the other does, or with how many there are."""
    fault = OpenError("*.rec", probability=0.5)
    both = _struck(paths, fault, workers=2)
    first, second = both[::2], both[1::2]
    assert first != second
    assert both == _struck(paths, fault, workers=2)
    assert first == _struck(paths, fault)[: len(first)]


def test_chance_is_of_those_that_the_other_triggers_choose(paths):
    """The rhythm first; then so many times of those that the chance has chosen."""
    whole, twice = (
        _numbers(_struck(paths, OpenError("*.rec", every=2, probability=0.5, times=times)))
        for times in (None, 2)
    )
    assert set(whole) < set(range(1, COUNT, 2))
    assert whole[:2] == twice
    assert len(twice) == 2


def test_each_fault_has_a_stream_of_its_own(paths):
    """Two alike in one schedule do not strike alike."""
    faults = [SlowRead("*.rec", 0.001, probability=0.5) for _ in range(2)]
    with inject(*faults) as injection:
        epoch(alone(Tries(paths, WAYS["read"])))
    first, second = ({each.path for each in facts.firings} for facts in injection.faults)
    assert first != second


def test_certainty_draws_nothing(paths):
    """A probability of 1 is no trigger."""
    assert [True] * COUNT == _struck(paths, OpenError("*.rec", probability=1.0))


# The place in the file.


@pytest.fixture(name="pages")
def _pages(tmp_path):
    """A file of 4 pages; page *n* holds *n* only."""
    path = tmp_path / "pages.bin"
    path.write_bytes(b"".join(bytes([number]) * PAGE for number in range(PAGES)))
    return str(path)


def _reading(call):
    """The first byte of each page, or the errno, by a call for one page at a time."""

    def way(path):
        fd = os.open(path, os.O_RDONLY)
        try:
            return [_first_byte(call, fd, number * PAGE) for number in range(PAGES)]
        finally:
            os.close(fd)

    return way


def _first_byte(call, fd, place):
    try:
        return call(fd, place)[0]
    except OSError as error:
        return f"errno {error.errno}"


def _read(fd, place):
    os.lseek(fd, place, os.SEEK_SET)
    return os.read(fd, PAGE)


def _readv(fd, place):
    os.lseek(fd, place, os.SEEK_SET)
    buffer = bytearray(PAGE)
    os.readv(fd, [buffer])
    return buffer


def _preadv(fd, place):
    buffer = bytearray(PAGE)
    os.preadv(fd, [buffer], place)
    return buffer


CALLS = {"read": _read, "pread": lambda fd, at: os.pread(fd, PAGE, at), "readv": _readv}
CALLS["preadv"] = _preadv


OFFSETS = [0, 1, PAGE - 1, PAGE, 2 * PAGE + 1]


@pytest.fixture(name="from_a_place", scope="module")
def _from_a_place(tmp_path_factory):
    """What each call reads of a file of its own that fails from each place on, and the facts."""
    folder = tmp_path_factory.mktemp("places")
    content = b"".join(bytes([number]) * PAGE for number in range(PAGES))
    cells = list(itertools.product(CALLS, OFFSETS))
    paths = [str(folder / f"{call}-{offset}.bin") for call, offset in cells]
    for path in paths:
        Path(path).write_bytes(content)
    faults = [ReadError(path, offset=at) for path, (_, at) in zip(paths, cells, strict=True)]
    sources = list(zip(paths, (call for call, _ in cells), strict=True))
    with inject(*faults) as injection:
        read = epoch(alone(Tries(sources, lambda one: _reading(CALLS[one[1]])(one[0]))))
    met = zip((each.gave for each in read.batches), injection.faults, strict=True)
    return dict(zip(cells, met, strict=True))


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("offset", OFFSETS)
def test_reads_fail_from_a_place_on(from_a_place, call, offset):
    """Those that touch a byte at or after it; those before are not counted."""
    gave, facts = from_a_place[call, offset]
    right = offset // PAGE
    assert [*range(right), *["errno 5"] * (PAGES - right)] == gave
    assert (PAGES - right,) * 2 == (facts.reached, facts.fired)


def test_a_place_behind_the_end(pages):
    """Nothing is there to be touched, not even by a read that asks for more."""
    with inject(ReadError("*.bin", offset=PAGES * PAGE), require_fired=False) as injection:
        (read,) = epoch(alone(Tries([pages], WAYS["read"]))).batches
    assert (PAGES * PAGE, 0) == (len(read.gave), injection.reached)


def _touched(path_and_page):
    path, page = path_and_page
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as mapping:
        return mapping[page * PAGE]


def test_a_mapping_has_its_pages_up_to_that_place(pages, tmp_path):
    """The one that holds it, too: the kernel knows nothing smaller of a mapping than a page."""
    offsets = [PAGE, PAGE + 1, 2 * PAGE, 3 * PAGE, 3 * PAGE + 1]
    paths = [shutil.copy(pages, tmp_path / f"{offset}.bin") for offset in offsets]
    sources = [
        (path, number)
        for path, offset in zip(paths, offsets, strict=True)
        for number in range(-(-offset // PAGE))
    ]
    with inject(*(ReadError(f"*/{offset}.bin", offset=offset) for offset in offsets)) as injection:
        read = epoch(alone(Tries(sources, _touched)))
    assert [number for _, number in sources] == [each.gave for each in read.batches]
    assert [{"mmap"}] * len(offsets) == [
        {e.call for e in each.firings} for each in injection.faults
    ]


@pytest.mark.parametrize("offset", [0, 1, PAGE, 3 * PAGE])
def test_a_mapping_has_no_page_after_that_place(pages, offset):
    """The first one is the death of the worker."""
    source = (pages, -(-offset // PAGE))
    with inject(ReadError("*.bin", offset=offset)):
        read = epoch(alone(Tries([source], _touched)))
    assert [] == read.batches
    assert {signal.SIGBUS} == read.signals


class _InPieces(Records):
    """Reads through a buffer, a few bytes at a time."""

    def __getitem__(self, index):
        with self.paths[index].open("rb") as file:
            return sum(len(piece) for piece in iter(lambda: file.read(100), b""))


def test_a_buffer_decides_how_many_reads_there_are(tmp_path):
    """On Python 3.14 a file of 40 kB is one read, and one that finds its end."""
    path = tmp_path / "one.rec"
    path.write_bytes(b"x" * 40_000)
    outcome = run_trial(
        lambda: _InPieces(tmp_path),
        ReadError("*.rec", nth=100),
        loader={"num_workers": 1, "batch_size": 1},
    )
    buffer = 1 << 17 if sys.version_info >= (3, 14) else path.stat().st_blksize
    (worker,) = outcome.workers
    assert worker.files[str(path)].reads == -(-40_000 // buffer) + 1
