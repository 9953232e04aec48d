"""Loaders that torch runs, or refuses: any dataset here with any sampler and any options."""

from __future__ import annotations

import collections
import contextlib
import functools
import itertools
import multiprocessing
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from hypothesis import strategies as st
from torch.utils.data import (
    DataLoader,
    RandomSampler,
    Sampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

from record.odd_datasets import BATCHED_STREAMS, COUNT, MAPS, STREAMS, opens_handles
from support.infinite_loaders import Eager, Lazy
from support.odd_indices import KINDS, AnyIndex, number_of

_BATCHES = 12
"""How many batches are taken of a sampler that may be endless."""


class Drawn(Sampler[Any]):
    """Yields what it was given, and does not have a length."""

    def __init__(self, indices: list[Any]) -> None:
        self.given = indices

    def __iter__(self) -> Iterator[Any]:
        return iter(self.given)


class Lying(Drawn):
    """Has a length of 0 and a batch size that is not a number."""

    batch_size = "four"

    def __len__(self) -> int:
        return 0


class Raising(Drawn):
    """Raises unless it is used for its indices."""

    def __len__(self) -> int:
        raise RuntimeError("not to be asked")

    @property
    def batch_size(self) -> int:
        raise RuntimeError("not to be asked")


class AnyName(Drawn):
    """Has an attribute for every name."""

    def __getattr__(self, name: str) -> Any:
        return self


class Shuffled(Drawn):
    """Draws in a different order each time."""

    def __iter__(self) -> Iterator[Any]:
        return iter([self.given[place] for place in torch.randperm(len(self.given)).tolist()])


class Endless(Drawn):
    """Begins again at its end."""

    def __iter__(self) -> Iterator[Any]:
        return itertools.cycle(self.given)


CONTAINERS: dict[str, Callable[[list[Any]], Any]] = {
    "list": list,
    "tuple": tuple,
    "deque": collections.deque,
    "dict": lambda indices: dict(enumerate(indices)).values(),
    "once": iter,
    "drawn": Drawn,
    "lying": Lying,
    "raising": Raising,
    "any name": AnyName,
    "shuffled": Shuffled,
    "endless": Endless,
}
TORCHS: dict[str, Callable[[], Any]] = {
    "subset": lambda: SubsetRandomSampler(range(COUNT)),
    "weighted": lambda: WeightedRandomSampler([1.0] * COUNT, COUNT),
    "replacement": lambda: RandomSampler(range(COUNT), replacement=True, num_samples=6),
    "array": lambda: np.arange(COUNT),
    "tensor": lambda: torch.arange(COUNT),
    "range": lambda: range(COUNT),
}
BATCHES: dict[str, Callable[[list[Any]], Any]] = {
    "list": list,
    "tuple": tuple,
    "array": np.array,
    "tensor": torch.tensor,
    "set": set,
    "dict": lambda indices: dict.fromkeys(indices, 0),
    "iterator": iter,
    "empty": lambda indices: indices if number_of(indices[0]) else [],
}


class Batch:
    """A batch of its own class."""

    def __init__(self, samples: Any) -> None:
        self.samples = samples


class NoteWorker:
    """A ``worker_init_fn`` that is an object, with an attribute that we use in ours."""

    _then = "not callable"

    def __call__(self, worker: int) -> None:
        torch.manual_seed(worker)


def _seed(offset: int, worker: int) -> None:
    torch.manual_seed(offset + worker)


def _of_pairs(batch: Any) -> Any:
    if len(batch) % 2:
        message = "needs pairs"
        raise AssertionError(message)
    return torch.stack(list(batch)[::2]), torch.stack(list(batch)[1::2])


COLLATES: dict[str, Any] = {
    "pairs": _of_pairs,
    "default": None,
    "list": list,
    "none": lambda _: None,
    "count": len,
    "text": lambda batch: f"{len(batch)} samples, the first {batch[0]}",
    "own class": Batch,
    "first": lambda batch: batch[0],
    "partial": functools.partial(lambda name, batch: {name: torch.stack(list(batch))}, "data"),
}
INITS = {
    "none": None,
    "partial": functools.partial(_seed, 3),
    "object": NoteWorker(),
    "opens": opens_handles,
}
LOADERS: dict[str, type[DataLoader[Any]]] = {"torch": DataLoader, "lazy": Lazy, "eager": Eager}
"""torch's own, and those that keep one iterator."""


class Together(AnyIndex):
    """Takes a whole batch of any kind."""

    def __getitems__(self, indices: Any) -> Any:
        is_list = isinstance(indices, (list, tuple, Iterator, np.ndarray, torch.Tensor))
        return [self[each] for each in (indices if is_list else [indices])]


class Ready(Together):
    """Gives a ready batch."""

    def __getitems__(self, indices: Any) -> Any:
        return torch.stack(super().__getitems__(indices))


ANY = {"any index": AnyIndex, "together": Together, "ready": Ready}
DATASETS: dict[str, Any] = {**MAPS, **STREAMS, **BATCHED_STREAMS, **ANY}


@dataclass(frozen=True)
class OddLoader:
    """How to make a loader.

    Attributes:
        dataset: One of DATASETS.
        sampler: One of TORCHS, or of CONTAINERS; "" for torch's default.
        kinds: The kinds of its indices.
        batches: One of BATCHES, if it is a batch sampler.
        collate: One of COLLATES.
        init: One of INITS.
        options: Options that say what they are.
        loader: One of LOADERS.
    """

    dataset: str
    sampler: str = ""
    kinds: tuple[str, ...] = ("int",)
    batches: str = ""
    collate: str = "default"
    init: str = "none"
    options: dict[str, Any] = field(default_factory=dict)
    loader: str = "torch"

    def __call__(self) -> Any:
        """The loader. Errors are torch's."""
        options = dict(self.options)
        if options.pop("generator"):
            options["generator"] = torch.Generator().manual_seed(7)
        if options.pop("context"):
            options["multiprocessing_context"] = multiprocessing.get_context("fork")
        if self.batches:
            del options["batch_size"], options["drop_last"]
        options |= self._sampler()
        options |= {"collate_fn": COLLATES[self.collate], "worker_init_fn": INITS[self.init]}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Of more workers than processors.
            return LOADERS[self.loader](DATASETS[self.dataset](), **options)

    def _sampler(self) -> dict[str, Any]:
        if not self.sampler:
            return {}
        if self.sampler in TORCHS:
            return {"sampler": TORCHS[self.sampler]()}
        indices = [KINDS[kind](number) for number in range(COUNT) for kind in self.kinds][:COUNT]
        make = CONTAINERS[self.sampler]
        if not self.batches:
            return {"sampler": make(indices)}
        pairs = [indices[place : place + 2] for place in range(0, COUNT, 2)]
        return {"batch_sampler": make([*map(BATCHES[self.batches], pairs)])}

    def plain(self) -> list[Any]:
        loader = self()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            iterator = iter(loader)
            try:
                return list(itertools.islice(iterator, _BATCHES))
            finally:
                with contextlib.suppress(AttributeError):
                    iterator._shutdown_workers()


_HOW = {
    "num_workers": st.integers(1, 3),
    "batch_size": st.sampled_from([None, 1, 3, 4]),
    "drop_last": st.booleans(),
    "prefetch_factor": st.sampled_from([None, 1, 3]),
    "in_order": st.booleans(),
    "persistent_workers": st.booleans(),
    "pin_memory": st.booleans(),
    "timeout": st.sampled_from([60, 90.5]),
    "generator": st.booleans(),
    "context": st.booleans(),
}


@st.composite
def odd_loaders(draw: st.DrawFn) -> OddLoader:
    """Any loader, most of which torch runs."""
    options = draw(st.fixed_dictionaries(_HOW))
    options["drop_last"] = options["drop_last"] and options["batch_size"] is not None
    group = draw(st.sampled_from([MAPS, MAPS, STREAMS, BATCHED_STREAMS, ANY]))
    dataset = draw(st.sampled_from(list(group)))
    # Most streams whose batches hide their samples need a contract.
    collates = ["default"] * 4 * (group is STREAMS) + list(COLLATES)
    if group is BATCHED_STREAMS:  # Whatever makes others of them hides their rows.
        collates, options["batch_size"], options["drop_last"] = ["default"], None, False
    collate, init = draw(st.sampled_from(collates)), draw(st.sampled_from(list(INITS)))
    init = "opens" if dataset == "opened by init" else init
    description: dict[str, Any] = {"collate": collate, "init": init, "options": options}
    if group in (STREAMS, BATCHED_STREAMS):
        return OddLoader(dataset, **description)
    samplers = list(CONTAINERS) if group is ANY else ["", *CONTAINERS, *TORCHS]
    kinds = st.sampled_from(list(KINDS) if group is ANY else ["int", "int", "numpy", "tensor"])
    sampler = draw(st.sampled_from(samplers))
    may_batch = sampler and sampler not in TORCHS
    # A sampler that can be iterated only once would be iterated again and again.
    may_repeat = not may_batch and options["batch_size"] is not None
    return OddLoader(
        dataset,
        sampler=sampler,
        loader=draw(st.sampled_from(list(LOADERS))) if may_repeat else "torch",
        kinds=draw(st.lists(kinds, min_size=1, max_size=3).map(tuple)),
        batches=draw(st.sampled_from(["", *BATCHES])) if may_batch else "",
        **description,
    )
