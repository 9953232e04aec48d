"""With the engine armed and no fault due, every kind of loader delivers what it delivers bare."""

import functools
import itertools
import multiprocessing
import os
import random
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, SequentialSampler

from pytest_dataloader_faults import inject, run_trial
from pytest_dataloader_faults._trial.samples.comparer import SampleComparer, delivery
from pytest_dataloader_faults.faults import (
    ClosedDescriptor,
    DescriptorExhaustion,
    OpenError,
    ReadError,
    TruncatedFile,
    WorkerKilled,
)
from support.datasets import COUNT, Records, RecordStream, joined
from support.loaders import Drawing, FilterCount, keep_filter_count
from support.rows import slow

NEVER = 1 << 30
FOLLOWED = (
    OpenError("*.rec", nth=NEVER),
    ReadError("*.rec", nth=NEVER),
    TruncatedFile("*.rec", keep=NEVER),
    ClosedDescriptor("*.rec", nth=NEVER),
    WorkerKilled(at=NEVER),
)
"""Every file is looked at, every read of it is handed over, and nothing is due."""
IDLE = (ReadError("*.nothing"), TruncatedFile("*.nothing"), DescriptorExhaustion(headroom=500))
"""Faults of other files, and a limit that is far."""

LOADERS = {
    "plain": {},
    "one worker": {"num_workers": 1},
    "more workers than batches": {"batch_size": COUNT},
    "prefetch 1": {"prefetch_factor": 1},
    "prefetch 4": {"prefetch_factor": 4},
    "timeout": {"timeout": 30},
    "persistent": {"persistent_workers": True},
    "persistent, prefetch 4": {"persistent_workers": True, "prefetch_factor": 4},
    "collate_fn": {"collate_fn": joined},
    "no batches": {"batch_size": None},
    "short last batch": {"batch_size": 5},
    "drop_last": {"batch_size": 5, "drop_last": True},
}
ORDERED = {
    "shuffle": {"shuffle": True},
    "batch_sampler": {
        "batch_size": 1,
        "batch_sampler": BatchSampler(SequentialSampler(range(7)), 3, drop_last=False),
    },
}
KINDS = (Records, RecordStream)
DIFFER_MOST = ("persistent, prefetch 4", "no batches", "collate_fn", "drop_last")


def to_plain(batch):
    """*batch* as something that can be compared."""
    if isinstance(batch, torch.Tensor):
        return str(batch.dtype), batch.tolist()
    if isinstance(batch, (list, tuple)):
        return [to_plain(each) for each in batch]
    return batch


def epochs(loader, count=2):
    """What comes in each of *count* passes."""
    passes = [[to_plain(batch) for batch in loader] for _ in range(count)]
    _stop_workers(loader)
    return passes


def _stop_workers(loader):
    """End persistent workers, which would be left to the garbage collector."""
    if loader._iterator is not None:
        loader._iterator._shutdown_workers()


def run_bare_and_armed(makes, passes=epochs, schedule=FOLLOWED):
    """What *passes* gives of each loader without the engine, and of an equal one with it."""
    bare = _seeded(makes, passes)
    with inject(*schedule, require_fired=False) as injection:
        armed = _seeded(makes, passes)
    assert (injection.fired, injection.errors) == (0, [])
    assert injection.workers
    return bare, armed


def _seeded(makes, passes):
    gave = []
    for make in makes:
        torch.manual_seed(1)
        gave.append(passes(make()))
    return gave


def loader_of(dataset, **options):
    """A loader of two workers and batches of four, where *options* do not say otherwise."""
    return DataLoader(dataset, **{"num_workers": 2, "batch_size": 4, **options})


def loaders_of(kinds, folder, *all_options):
    """What makes a loader of each kind of dataset with each of these options."""
    return [
        functools.partial(loader_of, kind(folder), **options)
        for kind, options in itertools.product(kinds, all_options)
    ]


@pytest.mark.parametrize(
    ("kind", "loaders"),
    [
        (Records, {name: LOADERS[name] for name in DIFFER_MOST} | ORDERED),
        (RecordStream, {name: LOADERS[name] for name in DIFFER_MOST[:2]}),
        slow(Records, LOADERS),
        slow(RecordStream, LOADERS),
    ],
    ids=["map", "iterable", "map-all", "iterable-all"],
)
def test_the_same_batches_come(records, kind, loaders):
    bare, armed = run_bare_and_armed(loaders_of([kind], records, *loaders.values()), _epochs)
    assert all(map(all, bare))
    assert dict(zip(loaders, bare, strict=True)) == dict(zip(loaders, armed, strict=True))


def _epochs(loader):
    """Two if the second one may differ from the first."""
    is_random = isinstance(loader.sampler, RandomSampler)
    return epochs(loader, 1 + (loader.persistent_workers or is_random))


def test_whatever_is_armed(records):
    bare, armed = run_bare_and_armed(loaders_of(KINDS, records, {}), schedule=IDLE)
    assert bare == armed


def test_each_file_is_followed_in_each_configuration(records):
    with inject(*FOLLOWED, require_fired=False) as injection:
        epochs(loader_of(Records(records)), 1)
    assert [True] * 4 == [each.matched >= COUNT for each in injection.faults[:4]]


@pytest.mark.slow
@pytest.mark.parametrize("method", ["spawn", "forkserver"])
@pytest.mark.parametrize(("kind", "persistent"), [(Records, False), (RecordStream, True)])
def test_other_start_methods(records, method, kind, persistent):
    options = {
        "num_workers": 1,
        "persistent_workers": persistent,
        "multiprocessing_context": multiprocessing.get_context(method),
    }
    bare, armed = run_bare_and_armed(
        loaders_of([kind], records, options), lambda loader: epochs(loader, 1 + persistent)
    )
    assert bare == armed


def test_a_loop_that_is_left_early(records):
    def leave_early(loader):
        first_batch = to_plain(next(iter(loader)))
        return first_batch, epochs(loader)

    makes = loaders_of([Records], records, {})
    makes += loaders_of([RecordStream], records, {"persistent_workers": True})
    bare, armed = run_bare_and_armed(makes, leave_early)
    assert bare == armed


def test_a_generator_is_used_as_ever(records):
    def read_with_generator(loader):
        return epochs(loader), loader.generator.get_state().tolist()

    def make(**options):
        generator = torch.Generator().manual_seed(7)
        return loader_of(Records(records), shuffle=True, generator=generator, **options)

    makes = [make, lambda: make(batch_size=None)]
    bare, armed = run_bare_and_armed(makes, read_with_generator)
    assert all(passes[0] != passes[1] for passes, _ in bare)
    assert bare == armed


def _random_states():
    """Where the random numbers of this process stand."""
    _, keys, place, *_ = np.random.get_state()  # noqa: NPY002  # the one that users seed
    return torch.get_rng_state().tolist(), random.getstate(), keys.tolist(), place


def test_this_process_keeps_its_random_numbers(records):
    bare, armed = run_bare_and_armed(
        loaders_of([Records], records, {}, {"persistent_workers": True}),
        lambda loader: (epochs(loader), _random_states()),
    )
    assert bare == armed


@pytest.mark.parametrize(("method", "workers"), [("fork", 2), slow("spawn", 1)])
def test_workers_draw_the_same_random_numbers(method, workers):
    options = {"multiprocessing_context": method, "num_workers": workers}
    bare, armed = run_bare_and_armed(
        [lambda: loader_of(Drawing(), **options)], lambda loader: epochs(loader, 1)
    )
    assert bare == armed


@pytest.mark.parametrize(("method", "workers"), [("fork", 2), slow("spawn", 1)])
def test_a_worker_init_function_runs_after_ours(method, workers):
    options = {"multiprocessing_context": method, "num_workers": workers, "batch_size": None}
    (bare,), (armed,) = run_bare_and_armed(
        [lambda: loader_of(FilterCount(), worker_init_fn=keep_filter_count, **options)],
        lambda loader: epochs(loader, 1)[0],
    )
    expected = [(worker, True, count + 1) for worker, _, count in map(tuple, bare)]
    assert expected == [tuple(each) for each in armed]
    assert [number % workers for number in range(4)] == [worker for worker, *_ in expected]


def test_a_fault_that_is_armed_does_not_filter_this_process(records):
    with inject(*FOLLOWED, require_fired=False):
        epochs(loader_of(Records(records)))
        during = _filters()
    assert during == _filters()


def _filters():
    return [
        line
        for line in Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
        if line.startswith("Seccomp")
    ]


@pytest.mark.parametrize(
    ("kind", "options"), [(RecordStream, {"batch_size": None}), (Records, {"collate_fn": joined})]
)
def test_no_workers_in_a_trial(records, kind, options):
    options = {"num_workers": 0, "batch_size": 4, **options}
    loader = DataLoader(kind(records), **options)
    bare = [delivery(batch, None, loader, SampleComparer()).digest for batch in loader]
    outcome = run_trial(
        lambda: kind(records), ReadError("*.rec", nth=NEVER), loader=options, epochs=2
    )
    assert [bare, bare] == [
        [each.digest for each in loader_pass.delivered] for loader_pass in outcome.epochs
    ]
    assert outcome.faults[0].matched >= 2 * COUNT
    assert {each.pid for each in outcome.workers}.isdisjoint({os.getpid()})
