"""One pass over a loader: what is drawn, what comes, how its workers end [in the trial]."""

from __future__ import annotations

import contextlib
import traceback
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from torch.utils.data.dataloader import _BaseDataLoaderIter

from pytest_dataloader_faults._engine.loader.client import EndedWorkers
from pytest_dataloader_faults._trial.samples.comparer import SampleComparer, SampleFingerprint
from pytest_dataloader_faults._trial.samples.fingerprint import digest
from pytest_dataloader_faults.exceptions import InjectionError
from pytest_dataloader_faults.outcomes import Delivery, Raised, WorkerDeath
from pytest_dataloader_faults.outcomes._text import shortened

if TYPE_CHECKING:
    from torch.utils.data import DataLoader


_EXIT_PATIENCE = 5.0
"""Seconds between the last descriptor that a process closes and its end: it may dump core."""


def deaths(iterator: Any, ended: EndedWorkers) -> list[WorkerDeath]:
    """How those workers of *iterator* died that were not at the end of their stream.

    The supervisor notices an end when the kernel closes the worker's descriptors, which is before
    the loader's process can wait for it. A worker that died unarmed is not known to it.
    """
    found = []
    for place, worker in enumerate(getattr(iterator, "_workers", ())):
        is_early = place in ended.early
        if is_early:
            worker.join(_EXIT_PATIENCE)
        if place not in ended.in_time and (worker.exitcode or (is_early and worker.exitcode == 0)):
            found.append(WorkerDeath(place, worker.pid, worker.exitcode))
    return found


def end_workers(iterator: Any) -> None:
    """End the workers of *iterator* now; the garbage collector may take 5 s for each."""
    if hasattr(iterator, "_shutdown_workers"):
        iterator._shutdown_workers()


def impatient(loader: DataLoader[Any], seconds: float) -> Any:
    """An iterator that waits *seconds* for a batch, if *loader*'s own would wait longer."""
    own = loader.timeout
    loader.timeout = min(own or seconds, seconds)
    try:
        return iter(loader)
    finally:
        loader.timeout = own


def are_alive(iterator: Any) -> bool:
    """Whether all workers of *iterator* are."""
    workers = getattr(iterator, "_workers", ())
    return bool(workers) and all(each.is_alive() for each in workers)


@contextlib.contextmanager
def recorded() -> Iterator[list[Any]]:
    """Every index list that an iterator draws from its sampler in this scope."""
    drawn: list[Any] = []
    original = _BaseDataLoaderIter._next_index

    def recording(self: Any) -> Any:
        drawn.append(original(self))  # type: ignore[no-untyped-call]
        return drawn[-1]

    _BaseDataLoaderIter._next_index = recording  # type: ignore[method-assign]
    try:
        yield drawn
    finally:
        _BaseDataLoaderIter._next_index = original  # type: ignore[method-assign]


def places(iterator: Any) -> Callable[[int], int]:
    """For the n-th batch that came: which of those asked for it is.

    With ``in_order=False`` batches come as they are ready; torch knows the number of each.
    """
    if getattr(iterator, "_in_order", True):
        return lambda number: number
    last: list[int] = []
    original = iterator._get_data

    def noting() -> Any:
        place, data = original()
        last[:] = [place]
        return place, data

    iterator._get_data = noting
    return lambda _number: last[0]


def delivery(
    batch: Any, indices: tuple[Any, ...] | None, loader: DataLoader[Any], teller: SampleComparer
) -> Delivery:
    """What came, told apart as far as it can be."""
    rows = _rows(batch, indices, loader, teller)
    names = None if rows is None else tuple(row.digest for row in rows)
    whole = teller.digest(batch, indices) if rows is None else digest(batch)
    parts = tuple(row.leaves for row in rows or () if row.leaves)
    return Delivery(indices, names, whole, parts)


def _rows(
    batch: Any, indices: tuple[Any, ...] | None, loader: DataLoader[Any], teller: SampleComparer
) -> tuple[SampleFingerprint, ...] | None:
    """The samples in *batch*. Its size is in the batch: it may be the last, or samples may lack."""
    if not loader._auto_collation:
        return (teller.row(batch, *(indices or ())[:1]),)
    if batch is None or (isinstance(batch, (list, tuple, dict)) and not batch):
        return ()
    if indices is None:
        sizes = range(loader.batch_size or 1, 0, -1)
        return next((rows for size in sizes if (rows := teller.rows(batch, size))), None)
    if rows := teller.rows(batch, len(indices), indices):
        return rows
    sizes = range(len(indices) - 1, 0, -1)
    return next((rows for size in sizes if (rows := teller.rows(batch, size))), None)


def raised_by(error: BaseException) -> Raised:
    """*error* as a finding about the dataset; one of the harness's own is raised again."""
    if isinstance(error, InjectionError):
        raise error
    text = "".join(traceback.format_exception(error))
    return Raised(type(error).__name__, shortened(str(error)), shortened(text))
