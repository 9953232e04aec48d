"""Which samples a loader draws in one epoch [in the trial].

A worker copies only what it reads: a sampler of 2000 samples leaves the rest of a large dataset
alone, and may leave samples out because they cannot be read. A sampler may change when it is
iterated, so a child does that.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Any

from torch.utils.data import (
    BatchSampler,
    DataLoader,
    DistributedSampler,
    RandomSampler,
    SequentialSampler,
)

from pytest_dataloader_faults._engine.system.children import run_in_child
from pytest_dataloader_faults._trial.loaders import length_of
from pytest_dataloader_faults._trial.samples.draws import Draw

_MOST_TIMES = 4
"""An endless sampler is iterated until it has drawn this many times the samples there are."""
_TYPE = "q"


def indices_of_epoch(loader: DataLoader[Any], sampler: Any, seconds: float) -> Sequence[int]:
    """The samples that *sampler* has *loader* draw in an epoch, each once, by their indices.

    Empty if they are unknown: not all are numbers below the length of the dataset, or the sampler
    fails, or takes longer than *seconds*.
    """
    length = length_of(loader.dataset) or 0
    count = _count_from_zero(sampler, stays=loader.persistent_workers)
    if count is not None:
        return range(min(count, length))
    indices = array(_TYPE)
    indices.frombytes(run_in_child(lambda: _sort_draws(loader, sampler, length), seconds))
    return indices


def _count_from_zero(sampler: Any, *, stays: bool) -> int | None:
    """How many samples, from the first one on, torch's own *sampler* draws; None if it is another.

    *stays*: whether workers are persistent, and so read in time what other epochs draw at random.
    """
    inner = sampler.sampler if type(sampler) is BatchSampler else sampler
    if type(inner) is SequentialSampler:
        return len(inner.data_source)
    if type(inner) is RandomSampler:
        count = len(inner.data_source)
        is_whole = not inner.replacement and inner.num_samples >= count
        return count if is_whole or stays else None
    if type(inner) is DistributedSampler and inner.shuffle and stays:
        return len(inner.dataset)  # type: ignore[arg-type]
    return None


def _sort_draws(loader: DataLoader[Any], sampler: Any, length: int) -> bytes:
    """The different indices that *sampler* draws; b"" if one is no number below *length*."""
    batched, indices, count = bool(loader._auto_collation), set[Any](), 0
    for drawn in sampler:
        names = Draw.of(drawn, loader.dataset, batched=batched).names
        if not all(type(name) is int and 0 <= name < length for name in names):
            return b""
        count += len(names)
        indices.update(names)
        if count >= _MOST_TIMES * length:
            break
    return array(_TYPE, sorted(indices)).tobytes()
