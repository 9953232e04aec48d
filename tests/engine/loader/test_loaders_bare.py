"""With the engine armed and no fault due, every kind of loader delivers what it delivers bare."""

import functools
import os
import random
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    RandomSampler,
    SequentialSampler,
    get_worker_info,
)

from pytest_dataloader_faults import inject, run_trial
from pytest_dataloader_faults._trial.passes import SampleComparer
from pytest_dataloader_faults.faults import (
    ClosedDescriptor,
    OpenError,
    ReadError,
    TruncatedFile,
    WorkerKilled,
)
from support.datasets import COUNT, Records, RecordStream, joined

NEVER = 1 << 30


class Drawing(Dataset[Any]):
    """Each sample is drawn from the random numbers of its worker, of all three kinds."""

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> Any:
        return torch.rand(2), random.random(), np.random.rand()  # noqa: NPY002  # torch seeds it


class FilterCount(Dataset[Any]):
    """What its worker's init function has kept: the worker, whether it ran here, the filters."""

    def __init__(self) -> None:
        self.kept: list[tuple[int, int, int]] = []

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> Any:
        ((worker, pid, filters),) = self.kept
        return worker, pid == os.getpid(), filters


def keep_filter_count(worker: int) -> None:
    info = get_worker_info()
    assert info is not None
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    (filters,) = re.findall(r"Seccomp_filters:\s*(\d+)", status)
    info.dataset.kept.append((worker, os.getpid(), int(filters)))


FOLLOWED = (
    OpenError("*.rec", nth=NEVER),
    ReadError("*.rec", nth=NEVER),
    TruncatedFile("*.rec", keep=NEVER),
    ClosedDescriptor("*.rec", nth=NEVER),
    WorkerKilled(at=NEVER),
)
"""Every file is looked at, every read of it is handed over, and nothing is due."""

LOADERS = {
    "persistent, prefetch 4": {"persistent_workers": True, "prefetch_factor": 4},
    "no batches": {"batch_size": None},
    "collate_fn": {"collate_fn": joined},
    "drop_last": {"batch_size": 5, "drop_last": True},
}
ORDERED = {
    "shuffle": {"shuffle": True},
    "batch_sampler": {
        "batch_size": 1,
        "batch_sampler": BatchSampler(SequentialSampler(range(7)), 3, drop_last=False),
    },
}


def to_plain(batch):
    if isinstance(batch, torch.Tensor):
        return str(batch.dtype), batch.tolist()
    if isinstance(batch, (list, tuple)):
        return [to_plain(each) for each in batch]
    return batch


def epochs(loader, count=2):
    passes = [[to_plain(batch) for batch in loader] for _ in range(count)]
    if loader._iterator is not None:  # Persistent workers would wait for the garbage collector.
        loader._iterator._shutdown_workers()
    return passes


def run_bare_and_armed(makes, passes=epochs):
    """What *passes* gives of each loader without the engine, and of an equal one with it."""
    bare = _seeded(makes, passes)
    with inject(*FOLLOWED, require_fired=False) as injection:
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


def _once_or_twice(loader):
    is_random = isinstance(loader.sampler, RandomSampler)
    return epochs(loader, 1 + (loader.persistent_workers or is_random))


def _leave_early(loader):
    return to_plain(next(iter(loader))), epochs(loader)


def _with_random_states(loader):
    """And where the random numbers of this process stand then."""
    passes, (_, keys, place, *_) = epochs(loader), np.random.get_state()  # noqa: NPY002
    return passes, torch.get_rng_state().tolist(), random.getstate(), keys.tolist(), place


def _with_generator_state(loader):
    return epochs(loader), loader.generator.get_state().tolist()


def _seeded_generator():
    return {"shuffle": True, "generator": torch.Generator().manual_seed(7)}


MOST = [*LOADERS.values()]
PERSISTENT = {"persistent_workers": True}
CASES = [
    ("map", Records, [*MOST, *ORDERED.values()], _once_or_twice),
    ("iterable", RecordStream, MOST[:2], _once_or_twice),
    ("map, left early", Records, [{}], _leave_early),
    ("iterable, left early", RecordStream, [PERSISTENT], _leave_early),
    ("random numbers of this process", Records, [{}, PERSISTENT], _with_random_states),
    ("random numbers of workers", lambda _: Drawing(), [{}], epochs),
]
"""Datasets, the options of their loaders, and what is taken of each."""


@pytest.mark.parametrize(("name", "make", "loaders", "passes"), CASES)
def test_a_loader_delivers_what_it_delivers_bare(records, name, make, loaders, passes):
    makes = [functools.partial(loader_of, make(records), **options) for options in loaders]
    bare, armed = run_bare_and_armed(makes, passes)
    assert all(map(all, bare)), name
    assert bare == armed, name


def test_a_generator_is_used_as_ever(records):
    makes = [
        lambda size=size: loader_of(Records(records), batch_size=size, **_seeded_generator())
        for size in (4, None)
    ]
    bare, armed = run_bare_and_armed(makes, _with_generator_state)
    assert all(passes[0] != passes[1] for passes, _ in bare)
    assert bare == armed


def test_a_worker_init_function_runs_after_ours():
    options = {"num_workers": 2, "batch_size": None}
    (bare,), (armed,) = run_bare_and_armed(
        [lambda: loader_of(FilterCount(), worker_init_fn=keep_filter_count, **options)],
        lambda loader: epochs(loader, 1)[0],
    )
    expected = [(worker, True, count + 1) for worker, _, count in map(tuple, bare)]
    assert expected == [tuple(each) for each in armed]
    assert [number % 2 for number in range(4)] == [worker for worker, *_ in expected]


@pytest.mark.parametrize(
    ("kind", "options"), [(RecordStream, {"batch_size": None}), (Records, {"collate_fn": joined})]
)
def test_no_workers_in_a_trial(records, kind, options):
    options = {"num_workers": 0, "batch_size": 4, **options}
    loader = DataLoader(kind(records), **options)
    comparer = SampleComparer(loader=loader)
    bare = [comparer.record_batch(batch, None).digest for batch in loader]
    outcome = run_trial(
        lambda: kind(records), ReadError("*.rec", nth=NEVER), loader=options, epochs=2
    )
    assert [bare, bare] == [
        [each.digest for each in loader_pass.delivered] for loader_pass in outcome.epochs
    ]
    assert outcome.faults[0].matched >= 2 * COUNT
    assert {each.pid for each in outcome.workers}.isdisjoint({os.getpid()})
