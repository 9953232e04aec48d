"""Strategies for the loader of a trial, and for the samples that it asks for."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from hypothesis import strategies as st

from pytest_dataloader_faults._arguments import COUNT, FLAG, Rule, ints, is_number
from pytest_dataloader_faults.battery._survey import DataFiles, Survey
from pytest_dataloader_faults.strategies._choices import data_files, require, require_some

_TIMEOUT = Rule(lambda value: is_number(value) and value >= 0, "0 or more seconds")
_LONG_LIVED = ("persistent_workers",) * 2
"""Rather so than not: a worker of several epochs can keep more state."""


@st.composite
def loader_options(
    draw: st.DrawFn,
    *,
    min_workers: int = 1,
    max_workers: int = 2,
    max_batch_size: int = 8,
    start_methods: Iterable[str] | None = None,
    shuffle: bool = True,
    in_order: bool = True,
    timeout: float = 0,
) -> dict[str, Any]:
    """Options of a ``DataLoader``, for ``run_trial(..., loader=options)``.

    Args:
        min_workers, max_workers: The fewest and the most; faults of workers need at least one.
        max_batch_size: The largest batch.
        start_methods: The ``multiprocessing_context`` of loaders with workers, one of these:
            ``"fork"``, ``"spawn"``, ``"forkserver"``. None: loaders have none, and torch takes the
            default of multiprocessing. Trials with ``"spawn"`` take seconds each; it and
            ``"forkserver"`` need a dataset that pickles.
        shuffle: Whether samples may be shuffled; in which order, the trial's seed decides. Streams
            cannot be.
        in_order: Whether batches always come in the order in which they were asked for. With False,
            they may also come as they are ready.
        timeout: The loader's ``timeout`` in seconds, in every example.

    """
    require(ints(0), min_workers=min_workers)
    require(ints(max(1, min_workers)), max_workers=max_workers)
    require(COUNT, max_batch_size=max_batch_size)
    methods: list[Any] = [None]
    if start_methods is not None:
        methods = require_some(("fork", "spawn", "forkserver"), start_methods=start_methods)
    require(FLAG, shuffle=shuffle, in_order=in_order)
    require(_TIMEOUT, timeout=timeout)
    workers = draw(st.sampled_from(range(min_workers, max_workers + 1)))
    options: dict[str, Any] = {"num_workers": workers}
    usual = min(4, max_batch_size)  # What trials have by default; the others shrink to it.
    sizes = [*range(usual, max_batch_size + 1), *range(1, usual)]
    options["batch_size"] = draw(st.sampled_from(sizes))
    if shuffle and draw(_maybe("shuffle")):
        options["shuffle"] = True
    if workers:
        options |= draw(_for_workers(methods, may_be_unordered=not in_order))
        options |= {"timeout": timeout} if timeout else {}
    return options


def _maybe(option: str) -> st.SearchStrategy[str | None]:
    """That *option*, or None. Not a bool, which Hypothesis would copy from option to option."""
    return st.sampled_from([None, option])


@st.composite
def _for_workers(draw: st.DrawFn, methods: list[Any], *, may_be_unordered: bool) -> dict[str, Any]:
    """Options that torch refuses for a loader without workers."""
    options: dict[str, Any] = {}
    if draw(st.sampled_from([None, *_LONG_LIVED])):
        options["persistent_workers"] = True
    if prefetch := draw(st.sampled_from([None, *range(1, 5)])):
        options["prefetch_factor"] = prefetch
    if method := draw(st.sampled_from(methods)):
        options["multiprocessing_context"] = method
    if may_be_unordered and draw(_maybe("in_order")):
        options["in_order"] = False
    return options


@st.composite
def dataset_access(
    draw: st.DrawFn,
    *,
    files: DataFiles | Survey | None = None,
    samples: int | None = None,
    max_size: int | None = None,
) -> list[int]:
    """Which samples an epoch asks for, in which order: ``loader={"sampler": access}``.

    Samples may come again, be left out, and come in any order. For map-style datasets.

    Args:
        files: A survey of the dataset, which knows how many samples there are.
        samples: Their number, if there is no survey.
        max_size: How many are asked for at most; by default as many as there are.

    """
    count = data_files(files).samples if samples is None else samples
    require(COUNT, samples=count)
    most = count if max_size is None else max_size
    require(COUNT, max_size=most)
    return draw(st.lists(st.integers(0, count - 1), min_size=1, max_size=most))
