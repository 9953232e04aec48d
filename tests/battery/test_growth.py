"""What grows with each epoch is told from what merely settles."""

import ctypes
from dataclasses import replace

import pytest
import torch

from pytest_dataloader_faults._settings import DEADLINE
from pytest_dataloader_faults.battery.checks import CHECKS
from pytest_dataloader_faults.outcomes import Footprint, Pass
from pytest_dataloader_faults.outcomes.leaks import (
    find_growth,
    is_constant,
    judge_growth,
    steady_growth,
)
from pytest_dataloader_faults.outcomes.stages import DONE, Phase, Stage
from support.applicability import refusal_of
from support.datasets import Records
from support.facts import EPOCH_1, ordinary, revised
from support.refusals import missing_parts
from support.results import result_of
from support.rows import slow
from support.specimens import TornCache
from support.waiting import allowed

GROWTH = "persistent-workers"
(_GROWTH_SCENARIO,) = CHECKS[GROWTH].plan(None)
_malloc, _memset = ctypes.CDLL(None).malloc, ctypes.CDLL(None).memset
_malloc.restype, _malloc.argtypes = ctypes.c_void_p, (ctypes.c_size_t,)
_memset.argtypes = (ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t)


def _check(make_dataset, result=result_of, **options):
    """The result, with time for as many epochs on a busy machine as on an idle one."""
    return result(make_dataset, GROWTH, deadline=allowed(DEADLINE), **options)


class Cached(Records):
    """Keeps each sample once, and megabytes of them."""

    def __init__(self, folder):
        super().__init__(folder)
        self.cache = {}

    def __getitem__(self, index):
        if index not in self.cache:
            self.cache[index] = (super().__getitem__(index), b"x" * (1 << 20), open(self.paths[0]))
        return self.cache[index][0]


class Views(Records):
    """Gives a part of a tensor, and so ships all of it."""

    def __getitem__(self, index):
        sample, _ = super().__getitem__(index)
        return torch.cat([sample, torch.zeros(1 << 20, dtype=torch.uint8)])[: len(sample)]


@pytest.mark.parametrize("healthy", [Cached, slow(Views)])
def test_what_settles_is_no_growth(healthy, records):
    result = _check(lambda: healthy(records), loader={"shuffle": True})

    assert result.passed, result.explanation
    processes = {each.process for each in result.outcome.footprints}
    assert processes == {"loader", "worker 0", "worker 1"}


def _grown(epochs):
    """A trial of so many epochs, each with one more thread."""
    single_pass = Pass(EPOCH_1, complete=True)
    prints = [Footprint(epoch, "worker 0", 0, 0, epoch) for epoch in range(1, epochs + 1)]
    return revised(
        ordinary(single_pass), epochs=(single_pass,) * epochs, phase=DONE, footprints=tuple(prints)
    )


@pytest.mark.parametrize(("epochs", "is_sure"), [(8, False), (31, False), (32, True)])
def test_growth_that_could_not_be_confirmed_is_no_leak(epochs, is_sure):
    outcome = _grown(epochs)
    refusal = refusal_of(_GROWTH_SCENARIO.require_effect, None, outcome)

    assert (judge_growth(outcome) is not None) == is_sure
    assert (refusal is None) == is_sure
    if refusal:
        assert missing_parts(refusal.full_reason, "1 more thread in worker 0", "32 epochs") == []


@pytest.mark.parametrize(
    ("epochs", "changes", "says"),
    [
        (7, {}, "only 7 epochs fit into half of the deadline, and growth shows after 8 epochs"),
        (7, {"phase": Phase(Stage.EPOCH, 7)}, None),
        (8, {}, None),
        (8, {"footprints": ()}, "only 0 epochs fit into half of the deadline"),
    ],
)
def test_few_epochs_show_nothing_where_time_ended_them(epochs, changes, says):
    """What ended them otherwise has a verdict of its own; and eight without growth are enough."""
    flat = tuple(Footprint(epoch, "worker 0", 0, 0, 1) for epoch in range(1, epochs + 1))
    outcome = replace(_grown(epochs), **{"footprints": flat, **changes})
    refusal = refusal_of(_GROWTH_SCENARIO.require_effect, None, outcome)

    assert (refusal is None) == (says is None)
    assert says is None or refusal.reason.startswith(says)


@pytest.mark.parametrize(
    ("values", "rate"),
    [
        ([5] * 12, 0),
        (range(7), 0),
        (range(8), 1),
        (range(0, 80, 2), 2),
        (range(40, 0, -1), 0),
        ([0, 8, 12, 14, 15, 16, 16, 16], 0),
        ([*range(0, 90, 10), *[90] * 20], 0),
        ([0] * 12 + [50] * 12, 0),
        ([*[0] * 8, 0, 50, 50, 50, 50, 100, 100, 100], 0),
        ([number + 30 * (number % 3 == 0) for number in range(24)], 1),
        ([0] * 24 + [1] * 8 + [20] * 8 + [40] * 8, 0),
        ([0] * 24 + [8] * 8 + [33] * 8 + [54] * 8, 0),
        ([0] * 24 + [9] * 8 + [33] * 8 + [54] * 8, 2.25),
    ],
    ids=[
        *("flat", "short", "least", "steady", "less", "bound", "late", "once", "jumps", "noise"),
        *("stops", "below half", "half"),
    ],
)
def test_growth_is_steady(values, rate):
    assert steady_growth(list(values)) == pytest.approx(rate, abs=0.5)


@pytest.mark.parametrize(
    ("kib", "threads", "is_enough"),
    [
        ([0] * 9, [3] * 9, False),
        ([0] * 10, [3] * 10, True),
        ([0, 900, 2000, 3010, *([3002] * 6)], [3] * 10, True),
        ([0] * 9 + [76], [3] * 10, True),
        ([0] * 9 + [77], [3] * 10, False),
        (range(0, 64 * 10, 64), [3] * 10, False),
        ([0] * 10, [3] * 9 + [4], False),
        ([0] * 10, [1, 2, 2] + [3] * 7, True),
    ],
    ids="few constant settles noise burst leak thread threads".split(),
)
def test_few_epochs_are_enough_if_nothing_changes(kib, threads, is_enough):
    values = enumerate(zip(kib, threads, strict=True), start=1)
    footprints = [Footprint(n, "worker 0", memory << 10, 9, count) for n, (memory, count) in values]
    assert is_constant(footprints) == is_enough
    assert not (is_enough and find_growth(footprints))


def test_cache_on_the_disk_is_no_leftover(records):
    result = result_of(lambda: TornCache(records), "two-epochs")

    assert result.passed, result.explanation
    assert any(each.leftover_files for each in result.outcome.workers)
