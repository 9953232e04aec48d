"""What grows with each epoch or is copied into each worker, and what settles or is shared."""

import ctypes
import functools
import gc
import itertools
import mmap
import os
import signal
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Dataset, DistributedSampler, RandomSampler

from pytest_dataloader_faults import Contract
from pytest_dataloader_faults._engine.system.proc import PAGE, unshared_pages
from pytest_dataloader_faults._settings import DEADLINE
from pytest_dataloader_faults.battery.checks import CHECKS
from pytest_dataloader_faults.battery.checks.memory import (
    BLOCKS,
    FEWEST_SAMPLES,
    KEEPS,
    WorkerMemory,
    block_size,
    growth_of,
    is_enough,
    note,
)
from pytest_dataloader_faults.battery.checks.memory.measure import indices_of_epoch
from pytest_dataloader_faults.outcomes import Footprint, Pass
from pytest_dataloader_faults.outcomes.leaks import (
    find_growth,
    is_constant,
    judge_growth,
    steady_growth,
)
from pytest_dataloader_faults.outcomes.stages import DONE, Phase, Stage
from support.datasets import Records, RecordStream
from support.facts import EPOCH_1, ordinary, revised
from support.judging import refusal_of
from support.refusals import missing_parts
from support.results import failure_of, result_of
from support.rows import rows, slow
from support.waiting import allowed

GROWTH = "persistent-workers"
(_GROWTH_SCENARIO,) = CHECKS[GROWTH].plan(None)


class Cached(Records):
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
    deadline = allowed(DEADLINE)  # For as many epochs on a busy machine as on an idle one.
    loader = {"shuffle": True}
    result = result_of(lambda: healthy(records), GROWTH, deadline=deadline, loader=loader)

    assert result.passed, result.explanation
    processes = {each.process for each in result.outcome.footprints}
    assert processes == {"loader", "worker 0", "worker 1"}


def _grown(epochs):
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


class Caches(Dataset[int]):
    """Each worker keeps what it has decoded: all of it, or as much as *limit* says."""

    def __init__(self, count: int, limit: int | None = None) -> None:
        self.count = count
        self.decode = functools.lru_cache(limit)(lambda index: bytes(2000) + b"%d" % index)

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> int:
        return len(self.decode(index))


MIB = 1 << 20
COUNT = 20_000
"""Samples of 1.4 KiB, 28 MiB in all."""
LIMITED = Contract(worker_memory=16 * MIB)


_check = functools.partial(result_of, check="copy-on-write")
_failure = functools.partial(failure_of, check="copy-on-write")


def test_what_fills_free_memory_is_kept_and_not_copied() -> None:
    """As after a test that had a large dataset: the worker's cache lands in inherited memory."""
    dropped = [bytes(2000) for _ in range(50_000)]
    remaining = dropped[::50]
    del dropped
    result = _failure(functools.partial(Caches, COUNT), contract=LIMITED)

    assert result.verdict == "leaked", result.explanation
    assert result.finding.cause.phrase == KEEPS.phrase
    assert len(remaining) == 1000


@rows(
    ("sampler", "count"),
    [
        (RandomSampler(range(8)), 8),
        (RandomSampler(range(8), num_samples=3), 3),
        (DistributedSampler(range(8), 2, 0), 4),
        (itertools.cycle([5, 3]), 2),
        (["5"], 0),
    ],
    ids=["random", "some", "rank", "endless", "text"],
)
def test_indices_of_an_epoch(sampler: Any, count: int) -> None:
    loader = DataLoader(["x"] * 8, num_workers=1, sampler=sampler)
    indices = list(indices_of_epoch(loader, loader._index_sampler, seconds=60))

    assert len(indices) == count
    assert indices == sorted(set(indices))


def test_streams_and_small_datasets_cost_no_trial(records: Any) -> None:
    for make_dataset in (Records, RecordStream):
        result = _check(lambda make_dataset=make_dataset: make_dataset(records))
        assert not result.applies
        assert result.trials == ()


def test_pages_that_a_process_writes_are_no_longer_shared() -> None:
    count, written = 64, range(10, 20)
    with mmap.mmap(-1, count * PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as memory:
        memory.write(b"x" * count * PAGE)
        start = ctypes.addressof(ctypes.c_char.from_buffer(memory)) // PAGE
        sleeper = os.fork()
        if not sleeper:
            signal.pause()
            os._exit(0)
        try:
            before = unshared_pages("self")
            for page in written:
                memory[page * PAGE] = 1
            after = unshared_pages("self")
        finally:
            os.kill(sleeper, signal.SIGKILL)
            os.waitpid(sleeper, 0)
        gc.collect()  # ctypes has the memory in a cycle.

    pages = {start + page for page in range(count)}
    assert (before & pages, after & pages) == (set(), {start + page for page in written})


# The rules, by numbers.


def _memory(rates: list[int], length: int = 200_000, **fields: Any) -> WorkerMemory:
    """As if each sample of the next block copied so many bytes, after half a megabyte at first."""
    size = block_size(length)
    samples = tuple(size * number for number in range(1, len(rates) + 1))
    unshared = tuple(MIB // 2 + size * total for total in itertools.accumulate(rates))
    memory = WorkerMemory(length, 2, 256 * MIB, samples, unshared, (0,) * len(rates), 1 << 40)
    return replace(memory, **fields)


@rows(
    ("memory", "total"),
    [
        (_memory([1400] * BLOCKS), 1400 * 200_000),
        (_memory([9000] * 4 + [1400] * 12), 1400 * 200_000),
        (_memory([1400] * 8 + [90_000] + [1400] * 7), 1400 * 200_000),
        (_memory([1400] * BLOCKS, shared=MIB), MIB),
        (_memory([1400] * 12 + [0] * 4), None),
        (_memory([50] * BLOCKS), None),
        (_memory([0] * BLOCKS), None),
        (_memory([1400] * 2), None),
        (_memory([]), None),
    ],
    ids=[
        *("steady", "warming up", "one jump", "little is shared"),
        *("full cache", "below the noise", "constant", "too few", "none"),
    ],
)
def test_growth(memory: WorkerMemory, total: float | None) -> None:
    growth = growth_of(memory)

    assert (growth and growth.total) == (None if total is None else pytest.approx(total))


def test_memory_that_is_kept_is_not_limited_by_what_was_shared() -> None:
    memory = _memory([1400] * BLOCKS, shared=MIB)

    kept = replace(memory, allocated=memory.unshared)
    growth, growth_if_persistent = growth_of(kept), growth_of(replace(kept, stays=True))

    assert growth is not None
    assert growth.kept == pytest.approx(1400)
    assert growth.total == pytest.approx(1400 * 100_000), "each of two workers reads half of them"
    assert growth_if_persistent is not None
    assert growth_if_persistent.total == pytest.approx(1400 * 200_000)


def test_the_limit_is_found_among_any_number_of_samples() -> None:
    """Half of the default limit is more than the noise, if enough samples were read."""
    for length in (FEWEST_SAMPLES, 40_000, 1_000_000, 5_000_000):
        rate = 128 * MIB // length + 1
        size = block_size(length)
        blocks = next(n for n in range(BLOCKS + 1) if is_enough(_memory([rate] * n, length)))
        assert blocks * size <= length
        growth = growth_of(_memory([rate] * blocks, length))
        assert growth is not None, length


def test_the_note_begins_at_16_mib() -> None:
    trial = ordinary(Pass(EPOCH_1, complete=True))

    assert note(revised(trial, notes=(_memory([1400] * BLOCKS, shared=16 * MIB),)))
    assert note(revised(trial, notes=(_memory([1400] * BLOCKS, shared=16 * MIB - 1),))) == ""
    assert note(trial) == ""
