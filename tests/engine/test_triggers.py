"""Which of many operations fail: by count, by rhythm, by chance, and by place in the file."""

import functools
import itertools
import mmap
import os
import shutil
import signal

import pytest

from pytest_dataloader_faults import inject
from pytest_dataloader_faults.faults import (
    ClosedDescriptor,
    OpenError,
    ReadError,
    ShortRead,
    SlowRead,
)
from support.attempts import Case, attempt, attempt_each, epoch_of
from support.datasets import COUNT, write_records
from support.epochs import alone, epoch
from support.tries import WAYS, Tries

KINDS = {
    "open": OpenError,
    "read": ReadError,
    "short": lambda path, **triggers: ShortRead(path, 9, **triggers),
    "closed": ClosedDescriptor,
    "slow": lambda path, **triggers: SlowRead(path, 0.001, **triggers),
}
PAGE = mmap.PAGESIZE
PAGES = 4
CONTENT = b"".join(bytes([number]) * PAGE for number in range(PAGES))
"""Page *n* holds *n* only."""


def _hits(paths, fault):
    """For each file, in the order they are read, whether the fault befell it."""
    with inject(fault, require_fired=False) as injection:
        return _hits_of_epoch(injection, paths)


def _hits_of_epoch(injection, paths, workers=1):
    loader = alone(Tries(paths, WAYS["read"]), num_workers=workers)
    read, (facts,) = epoch_of(injection, loader)
    assert [*range(len(paths))] == [each.index for each in read.batches]
    struck = {each.path for each in facts.firings}
    return [path in struck for path in paths]


def _hit_numbers(struck):
    return [number for number, each in enumerate(struck, 1) if each]


RHYTHMS = [
    ({"nth": 15}, [15, 16]),
    ({"nth": 3, "times": 2}, [3, 4]),
    ({"every": 5}, [1, 6, 11, 16]),
    ({"nth": 2, "every": 4, "times": 3}, [2, 6, 10]),
]


def _hits_by_fault(folder, makes, **options):
    """For each fault, of sixteen files of its own, whether it befell them. All in one worker."""
    folders = [folder / str(number) for number in range(len(makes))]
    paths = [str(path) for each in folders for path in _sixteen_paths(each)]
    faults = [make(f"{each}/*.rec") for make, each in zip(makes, folders, strict=True)]
    with inject(*faults, require_fired=False, **options) as injection:
        read = epoch(alone(Tries(paths, WAYS["read"])))
    assert len(read.batches) == len(paths)
    struck = [{each.path for each in facts.firings} for facts in injection.faults]
    return [
        [path in struck[number] for path in map(str, _sixteen_paths(each))]
        for number, each in enumerate(folders)
    ]


def _sixteen_paths(folder):
    return sorted((folder if folder.exists() else write_records(folder)).iterdir())


def test_counts_and_rhythm(tmp_path):
    cells = list(itertools.product(KINDS, RHYTHMS))
    makes = [functools.partial(KINDS[kind], **triggers) for kind, (triggers, _) in cells]
    hits = _hits_by_fault(tmp_path, makes)
    for (kind, (triggers, expected)), struck in zip(cells, hits, strict=True):
        assert (kind, triggers, expected) == (kind, triggers, _hit_numbers(struck))


def test_chance_is_the_seeds(tmp_path):
    makes = [functools.partial(kind, probability=0.5) for kind in KINDS.values()]
    first, same, other = (_hits_by_fault(tmp_path, makes, seed=seed) for seed in (3, 3, 4))
    assert first == same
    for name, first_draw, other_draw in zip(KINDS, first, other, strict=True):
        assert first_draw != other_draw, name
        assert 0 < sum(first_draw) < COUNT, name


def test_chance_is_each_workers_own(paths):
    with inject(OpenError("*.rec", probability=0.5)) as injection:
        of_two, of_two_again, of_one = (
            _hits_of_epoch(injection, paths, workers) for workers in (2, 2, 1)
        )
    first_worker, second_worker = of_two[::2], of_two[1::2]
    assert first_worker != second_worker
    assert of_two == of_two_again
    assert first_worker == of_one[: len(first_worker)]


def test_chance_is_of_those_that_the_other_triggers_choose(paths):
    unlimited, limited = (
        _hit_numbers(_hits(paths, OpenError("*.rec", every=2, probability=0.5, times=times)))
        for times in (None, 2)
    )
    assert set(unlimited) < set(range(1, COUNT, 2))
    assert unlimited[:2] == limited
    assert len(limited) == 2


def test_each_fault_has_a_stream_of_its_own(paths):
    faults = [SlowRead("*.rec", 0.001, probability=0.5) for _ in range(2)]
    with inject(*faults) as injection:
        epoch(alone(Tries(paths, WAYS["read"])))
    first_paths, second_paths = (
        {each.path for each in facts.firings} for facts in injection.faults
    )
    assert first_paths != second_paths


def test_certainty_draws_nothing(paths):
    assert [True] * COUNT == _hits(paths, OpenError("*.rec", probability=1.0))


# The place in the file.


@pytest.fixture(name="pages")
def _pages(tmp_path):
    """A file of 4 pages; page *n* holds *n* only."""
    path = tmp_path / "pages.bin"
    path.write_bytes(CONTENT)
    return str(path)


def _read_pages(call):
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


def test_reads_fail_from_a_place_on(tmp_path):
    cells = list(itertools.product(CALLS, [0, 1, PAGE - 1, PAGE, 2 * PAGE + 1]))
    cases = {
        (call, offset): Case(
            _read_pages(CALLS[call]), functools.partial(ReadError, offset=offset), CONTENT
        )
        for call, offset in cells
    }
    results, _ = attempt_each(cases, tmp_path)
    for (call, offset), (_, gave, facts) in results.items():
        right = offset // PAGE
        assert [*range(right), *["errno 5"] * (PAGES - right)] == gave, call
        assert (PAGES - right,) * 2 == (facts.matched, facts.fired), call


def test_a_place_behind_the_end(pages):
    (gave,), injection = attempt(
        [pages], WAYS["read"], ReadError("*.bin", offset=PAGES * PAGE), require_fired=False
    )
    assert (PAGES * PAGE, 0) == (len(gave), injection.matched)


def _touch_page(path_and_page):
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
        read = epoch(alone(Tries(sources, _touch_page)))
    assert [number for _, number in sources] == [each.gave for each in read.batches]
    assert [{"mmap"}] * len(offsets) == [
        {e.call for e in facts.firings} for facts in injection.faults
    ]


def test_a_mapping_has_no_page_after_that_place(pages, tmp_path):
    offsets = [0, 1, PAGE, 3 * PAGE]
    with inject(*(ReadError(f"*/{offset}.bin", offset=offset) for offset in offsets)) as injection:
        for place, offset in enumerate(offsets):
            source = shutil.copy(pages, tmp_path / f"{offset}.bin"), -(-offset // PAGE)
            read, facts = epoch_of(injection, alone(Tries([source], _touch_page)))
            assert ([], {signal.SIGBUS}) == (read.batches, read.signals)
            assert facts[place].fired
