"""Strategies for the faults of workers and of what they share, one per fault."""

from __future__ import annotations

import signal
from collections.abc import Iterable

from hypothesis import strategies as st

from pytest_dataloader_faults import faults
from pytest_dataloader_faults._arguments import COUNT, FLAG, ints
from pytest_dataloader_faults.faults._base import SIGNALS
from pytest_dataloader_faults.strategies import _choices
from pytest_dataloader_faults.strategies._choices import Files, combinations, require

_DEADLY = tuple(int(getattr(signal, f"SIG{name}")) for name in "KILL SEGV BUS TERM ABRT".split())


def _fetches(files: Files, most: int | None) -> st.SearchStrategy[int]:
    """The worker's first batch or a later one, rather the second: the first may leave state."""
    if most is not None:
        require(COUNT, max_at=most)
    known = _choices.data_files(files)
    last = most or max(1, known.batches * known.epochs)
    return st.sampled_from([*range(1, last + 1), min(2, last)])


def _one_or_each(most: int) -> tuple[int | None, ...]:
    """Worker 0, another one, or each of them."""
    require(COUNT, max_workers=most)
    return (*range(most), None) if most > 1 else (0,)


@st.composite
def killed_workers(
    draw: st.DrawFn,
    *,
    files: Files = None,
    signals: Iterable[int] = _DEADLY,
    max_at: int | None = None,
    max_workers: int = 2,
) -> faults.WorkerKilled:
    """``WorkerKilled``: one of *signals* ends a worker as it begins a batch, one of *files*'."""
    chosen = _choices.require_some(sorted(map(int, SIGNALS)), signals=signals)
    at = draw(_fetches(files, max_at))
    how = draw(combinations(signal=tuple(chosen), worker=_one_or_each(max_workers)))
    return faults.WorkerKilled(at=at, **how)


@st.composite
def exited_workers(
    draw: st.DrawFn,
    *,
    files: Files = None,
    codes: Iterable[int] = (1, 2, 255),
    max_at: int | None = None,
    max_workers: int = 2,
) -> faults.WorkerExited:
    """``WorkerExited`` with one of *codes*. If it is 0, torch notices only after 5 s."""
    chosen = _choices.require_some(range(256), codes=codes)
    at = draw(_fetches(files, max_at))
    how = draw(combinations(code=tuple(chosen), worker=_one_or_each(max_workers)))
    return faults.WorkerExited(at=at, **how)


@st.composite
def hung_workers(
    draw: st.DrawFn,
    *,
    files: Files = None,
    hold_gil: bool = False,
    max_at: int | None = None,
    max_workers: int = 2,
) -> faults.WorkerHung:
    """``WorkerHung``: a worker stops answering. Give the loader a ``timeout``.

    With *hold_gil* it may keep the interpreter lock meanwhile.
    """
    require(FLAG, hold_gil=hold_gil)
    at = draw(_fetches(files, max_at))
    ways = (False, True) if hold_gil else (False,)
    how = draw(combinations(hold_gil=ways, worker=_one_or_each(max_workers)))
    return faults.WorkerHung(at=at, **how)


@st.composite
def descriptor_exhaustions(
    draw: st.DrawFn, *, max_headroom: int = 0, max_workers: int = 2
) -> faults.DescriptorExhaustion:
    """``DescriptorExhaustion``: a worker has no descriptor left, or up to *max_headroom*.

    With a few left, a dataset may read its samples, and torch then lacks one to pass the batch. The
    loader waits forever, whatever the dataset does.
    """
    require(ints(0), max_headroom=max_headroom)
    require(COUNT, max_workers=max_workers)
    one = tuple((worker,) for worker in range(max_workers)) if max_workers > 1 else ()
    how = draw(combinations(headroom=tuple(range(max_headroom + 1)), workers=(None, *one)))
    return faults.DescriptorExhaustion(**how)


@st.composite
def pin_memory_thread_deaths(
    draw: st.DrawFn,
    *,
    files: Files = None,
    stages: Iterable[str] = ("take", "pin"),
    max_at: int | None = None,
) -> faults.PinMemoryThreadDeath:
    """``PinMemoryThreadDeath`` at one of *stages*: the thread takes a batch, or pins it.

    Give the loader ``pin_memory=True``, and run it where there is an accelerator.
    """
    chosen = _choices.require_some(["take", "pin"], stages=stages)
    at = draw(_fetches(files, max_at))
    return faults.PinMemoryThreadDeath(at=at, **draw(combinations(stage=tuple(chosen))))


@st.composite
def shared_memory_exhaustions(
    draw: st.DrawFn, *, max_nth: int = 4
) -> faults.SharedMemoryExhaustion:
    """``SharedMemoryExhaustion``: /dev/shm has no room for the tensors of a batch."""
    require(COUNT, max_nth=max_nth)
    nth = draw(st.integers(1, max_nth))
    return faults.SharedMemoryExhaustion(nth=nth, times=draw(st.sampled_from([None, 1, 2, 3])))
