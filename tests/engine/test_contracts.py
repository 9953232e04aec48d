"""Each fault, by each operation that it is about: it fires there, and at no other place or time."""

import contextlib
from errno import EINTR, ENOSYS, errorcode

import pytest

from pytest_dataloader_faults.fake_files import FakeDatasetFs
from pytest_dataloader_faults.faults import LockError, OpenError, ReadError, WriteError
from support.attempts import NEVER, errnos_of_attempts
from support.contracts import AFTER, BARE, FAMILIES, observe
from support.contracts.locks import AT_ONCE
from support.contracts.writes import WRITING
from support.rows import slow
from support.tries import WAYS

pytestmark = pytest.mark.usefixtures("engine")
BY_FORK_SERVER = ("read", "full disk", "allocation", "fake files")
"""Faults of each kind that a worker of another start method prepares for in its own way."""
CELLS = [
    *((family, "fork") for family in FAMILIES),
    *(slow((family, "forkserver")) for family in BY_FORK_SERVER),
]


@pytest.fixture(name="cell", scope="module", params=CELLS, ids="-".join)
def _cell(request, tmp_path_factory):
    family, method = request.param
    root = str(tmp_path_factory.mktemp("rows"))
    with FakeDatasetFs() if family == "fake files" else contextlib.nullcontext():
        return family, observe(family, root, multiprocessing_context=method)


@pytest.fixture(name="check")
def _check(cell):
    """Whether something is true of each row; a test names all rows of which it is not."""
    family, observations = cell

    def check(is_right):
        rows = {name: (FAMILIES[family][name], each) for name, each in observations.items()}
        assert rows
        wrong = [f"{n}: {each}" for n, (row, each) in rows.items() if not is_right(row, each)]
        assert not wrong, "\n".join(wrong)

    return check


def test_a_fault_fires_at_its_operation(check):
    """With the effect that the row says, once or as often as it says, and at a place of its own."""

    def fires(row, each):
        return (
            row.is_met(each.gave["hit"], each.gave[BARE])
            and row.left in (None, each.left["hit"])
            and each.hit.fired in row.fired
            and each.hit.matched >= each.hit.fired
        )

    check(fires)


def test_a_firing_says_where(check):
    def says_where(_row, each):
        glob = each.globs["hit"].partition("*")[0]
        return {(0, True)} == {
            (at.worker, (at.path or "").startswith(glob)) for at in each.hit.firings
        }

    check(says_where)


def test_no_fault_fires_elsewhere(check):
    check(lambda _row, each: _is_as_bare(each, "spared"))


def test_no_fault_fires_before_its_turn(check):
    """But what it would have been about is counted."""

    def waits(_row, each):
        is_counted = getattr(each.later.fault, "nth", 1) == NEVER
        counts = each.later.fired, each.later.matched > 0
        return _is_as_bare(each, "later") and counts in ((0, is_counted), (0, True))

    check(waits)


def test_no_fault_fires_after_its_scope(check):
    check(lambda _row, each: _is_as_bare(each, AFTER))


def _is_as_bare(each, place):
    results = ((each.gave[at], each.left[at]) for at in (place, BARE))
    return "Error" not in str(each.gave[BARE]) and len(set(map(repr, results))) == 1


COUNTERS = {"open": "opens", "read": "reads", "full disk": "writes", "no locks": "locks"}


def test_each_operation_is_counted(cell, check):
    counter = COUNTERS.get(cell[0])
    check(lambda _, each: not counter or any(getattr(count, counter) for count in each.counts))


def test_every_way_reads_the_same_damage(cell):
    family, observations = cell
    if family == "corruption":
        assert len({each.gave["hit"] for each in observations.values()}) == 1


EVERY = frozenset(errorcode)
ERRNOS = [
    *((OpenError, EVERY, WAYS[way]) for way in ("read", "O_CREAT")),
    (OpenError, EVERY - {EINTR}, WAYS["openat2"]),  # By its number: EINTR is not repeated.
    *((ReadError, EVERY, WAYS[way]) for way in ("read", "pread", "readv")),
    (ReadError, EVERY - {ENOSYS}, WAYS["preadv"]),  # The C library then calls pread(2).
    (WriteError, EVERY, WRITING["write"]),
    (LockError, EVERY, AT_ONCE["F_SETLK"]),
]


@pytest.mark.parametrize(("kind", "numbers", "way"), ERRNOS)
def test_every_errno_comes_out_of_a_call(tmp_path, kind, numbers, way):
    met = errnos_of_attempts(tmp_path, kind, numbers, way)
    survived = {number for number, gave in met.items() if gave != number}
    assert survived == numbers & {EINTR}  # Python repeats the call.
