"""Which of many operations fail: by count, by rhythm, by chance, and by place in the file."""

import functools
import itertools
import signal

from pytest_dataloader_faults import inject
from pytest_dataloader_faults.faults import (
    ClosedDescriptor,
    LockError,
    OpenError,
    ReadError,
    ShortRead,
    ShortWrite,
    SlowRead,
    WriteError,
)
from support.attempts import attempt, epoch_of
from support.contracts.locks import AT_ONCE
from support.contracts.offsets import CONTENT, PAGE, PAGES, touch_pages
from support.contracts.writes import WRITING
from support.datasets import COUNT, write_records
from support.epochs import alone, epoch
from support.tries import WAYS, Tries

KINDS = {
    "open": (OpenError, WAYS["read"]),
    "read": (ReadError, WAYS["read"]),
    "short read": (functools.partial(ShortRead, max_bytes=9), WAYS["read"]),
    "closed": (ClosedDescriptor, WAYS["read"]),
    "slow": (functools.partial(SlowRead, seconds=0.001), WAYS["read"]),
    "write": (WriteError, WRITING["write"]),
    "short write": (functools.partial(ShortWrite, max_bytes=9), WRITING["write"]),
    "lock": (LockError, AT_ONCE["F_SETLK"]),
}
RHYTHMS = [
    ({"nth": 15}, [15, 16]),
    ({"nth": 3, "times": 2}, [3, 4]),
    ({"every": 5}, [1, 6, 11, 16]),
    ({"nth": 2, "every": 4, "times": 3}, [2, 6, 10]),
]


def _hits_by_fault(folder, cells, **options):
    """For each kind and its triggers, of sixteen files of its own, the numbers of those it befell.

    All in one worker; *options* are of ``inject``.
    """
    folders = [folder / str(number) for number in range(len(cells))]
    paths = [
        sorted(map(str, (each if each.exists() else write_records(each)).iterdir()))
        for each in folders
    ]
    faults = [
        KINDS[kind][0](f"{each}/*.rec", **triggers)
        for each, (kind, triggers) in zip(folders, cells, strict=True)
    ]
    calls = [
        functools.partial(KINDS[kind][1], path)
        for (kind, _), each in zip(cells, paths, strict=True)
        for path in each
    ]
    _, injection = attempt(calls, lambda call: call(), *faults, require_fired=False, **options)
    struck = [{each.path for each in facts.firings} for facts in injection.faults]
    return [
        [number for number, path in enumerate(each, 1) if path in of_fault]
        for each, of_fault in zip(paths, struck, strict=True)
    ]


def test_counts_and_rhythm(tmp_path):
    cells = [(kind, triggers) for kind in KINDS for triggers, _ in RHYTHMS]
    hits = dict(
        zip(
            itertools.product(KINDS, range(len(RHYTHMS))),
            _hits_by_fault(tmp_path, cells),
            strict=True,
        )
    )
    assert hits == {(kind, at): RHYTHMS[at][1] for kind, at in hits}


def test_chance_is_the_seeds(tmp_path):
    cells = [(kind, {"probability": 0.8}) for kind in KINDS]
    first, same, other = (_hits_by_fault(tmp_path, cells, seed=seed) for seed in (3, 3, 4))
    assert first == same
    for name, first_draw, other_draw in zip(KINDS, first, other, strict=True):
        assert first_draw != other_draw, name
    assert 0.6 < sum(map(len, first)) / (COUNT * len(KINDS)) < 1


def test_chance_is_of_those_that_the_other_triggers_choose(tmp_path):
    triggers = {"every": 2, "probability": 0.5}
    cells = [("open", {**triggers, "times": times}) for times in (None, 2)]
    cells += [("open", {"probability": 1.0})]
    # Each fault has a stream of its own, so that one of the first place is compared with another.
    (unlimited,), (limited,), (_, _, certain) = (
        _hits_by_fault(tmp_path, each) for each in (cells[:1], cells[1:2], cells)
    )
    assert set(unlimited) < set(range(1, COUNT, 2))
    assert unlimited[:2] == limited
    assert [*range(1, COUNT + 1)] == certain


def test_a_mapping_has_no_page_after_that_place(tmp_path):
    """Before it, reads succeed: see the contract. A place behind the end is never reached."""
    offsets = [0, 1, PAGE, 3 * PAGE]
    paths = [tmp_path / f"{offset}.bin" for offset in (*offsets, PAGES * PAGE)]
    for path in paths:
        path.write_bytes(CONTENT)
    faults = [ReadError(path, offset=int(path.stem)) for path in paths]
    with inject(*faults, require_fired=False) as injection:
        for place, offset in enumerate(offsets):
            touch = functools.partial(touch_pages, range(-(-offset // PAGE), PAGES))
            read, facts = epoch_of(injection, alone(Tries([str(paths[place])], touch)))
            assert ([], {signal.SIGBUS}) == (read.batches, read.signals)
            assert facts[place].fired
        epoch(alone(Tries([str(paths[-1])], WAYS["read"])))
    assert 0 == injection.faults[-1].matched
