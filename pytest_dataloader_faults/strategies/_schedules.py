"""Strategies for any fault, and for schedules of several."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

from hypothesis import strategies as st
from hypothesis.errors import InvalidArgument

from pytest_dataloader_faults import faults as vocabulary
from pytest_dataloader_faults._arguments import COUNT, ints
from pytest_dataloader_faults.battery._survey import DataFiles
from pytest_dataloader_faults.faults import KINDS, Fault
from pytest_dataloader_faults.faults._writes import is_of_writing
from pytest_dataloader_faults.strategies import _files, _network, _workers, _writes
from pytest_dataloader_faults.strategies._choices import Files, data_files, require, require_some
from pytest_dataloader_faults.strategies._files import Transient

Kinds = Iterable[type[Fault]]

DEFAULT_KINDS: tuple[type[Fault], ...] = (
    vocabulary.OpenError,
    vocabulary.ReadError,
    vocabulary.ShortRead,
    vocabulary.TruncatedFile,
    vocabulary.WorkerKilled,
    vocabulary.SlowRead,
    vocabulary.ClosedDescriptor,
    vocabulary.DescriptorExhaustion,
    vocabulary.WorkerExited,
    vocabulary.ConnectError,
    vocabulary.ConnectionReset,
    vocabulary.WriteError,
    vocabulary.ShortWrite,
)
"""The kinds that a healthy dataset survives, or fails of cleanly, under any loader.

The others need more. Only a checksum can notice ``CorruptedFile``, and only a reader that knows the
length of an answer ``ConnectionClosed``. Faults that hang need a loader with a ``timeout``. After
``SharedMemoryExhaustion`` torch may wait forever. ``PinMemoryThreadDeath`` needs an accelerator.
"""

_MAKERS: dict[type[Fault], Callable[[Files, int], st.SearchStrategy[Fault]]] = {
    vocabulary.OpenError: lambda files, n: _files.open_errors(files=files, max_workers=n),
    vocabulary.ReadError: lambda files, n: _files.read_errors(files=files, max_workers=n),
    vocabulary.ShortRead: lambda files, n: _files.short_reads(files=files, max_workers=n),
    vocabulary.TruncatedFile: lambda f, n: _files.truncated_files(files=f, max_workers=n),
    vocabulary.CorruptedFile: lambda f, n: _files.corrupted_files(files=f, max_workers=n),
    vocabulary.ClosedDescriptor: lambda f, n: _files.closed_descriptors(files=f, max_workers=n),
    vocabulary.SlowRead: lambda files, n: _files.slow_reads(files=files, max_workers=n),
    vocabulary.HungRead: lambda files, n: _files.hung_reads(files=files, max_workers=n),
    vocabulary.WriteError: lambda files, n: _writes.write_errors(files=files, max_workers=n),
    vocabulary.ShortWrite: lambda files, n: _writes.short_writes(files=files, max_workers=n),
    vocabulary.ConnectError: lambda f, n: _network.connect_errors(files=f, max_workers=n),
    vocabulary.ConnectionReset: lambda f, n: _network.connection_resets(files=f, max_workers=n),
    vocabulary.ConnectionClosed: lambda f, n: _network.closed_connections(files=f, max_workers=n),
    vocabulary.DescriptorExhaustion: lambda _, n: _workers.descriptor_exhaustions(max_workers=n),
    vocabulary.SharedMemoryExhaustion: lambda *_: _workers.shared_memory_exhaustions(),
    vocabulary.PinMemoryThreadDeath: lambda f, _: _workers.pin_memory_thread_deaths(files=f),
    vocabulary.WorkerKilled: lambda f, n: _workers.killed_workers(files=f, max_workers=n),
    vocabulary.WorkerExited: lambda f, n: _workers.exited_workers(files=f, max_workers=n),
    vocabulary.WorkerHung: lambda f, n: _workers.hung_workers(files=f, max_workers=n),
}
_EARLY = 4
"""So many of the first files are likelier than others: the consequences show in later samples."""
_OFTEN = {
    vocabulary.OpenError: 8,
    vocabulary.ReadError: 3,
    vocabulary.ShortRead: 1,
    vocabulary.TruncatedFile: 3,
    vocabulary.WorkerKilled: 3,
}
"""How much likelier some kinds are: they have more variants, and find more bugs."""


@st.composite
def faults(
    draw: st.DrawFn, *, files: Files = None, kinds: Kinds = DEFAULT_KINDS, max_workers: int = 2
) -> Fault:
    """Any fault of *kinds*, fault classes, that can happen to *files*; the simplest first."""
    return draw(_any_of(files, kinds, max_workers))


@st.composite
def fault_schedules(
    draw: st.DrawFn,
    *,
    files: Files = None,
    min_faults: int = 1,
    max_faults: int = 3,
    kinds: Kinds = DEFAULT_KINDS,
    max_workers: int = 2,
) -> tuple[Fault, ...]:
    """A tuple of faults, for ``run_trial(make_dataset, *schedule)``.

    Args:
        files: Globs of the files to put at risk or, better, a ``survey`` of the dataset.
        min_faults: The fewest faults of a schedule; 0 allows an empty one.
        max_faults: The most faults of a schedule.
        kinds: Fault classes to choose from; by default ``DEFAULT_KINDS``.
        max_workers: The most workers that the loader may have.

    """
    require(ints(0), min_faults=min_faults)
    require(ints(max(1, min_faults)), max_faults=max_faults)
    known = data_files(files)
    if every := {**known.opens, **known.reads}:
        named = [*every]
        known = replace(known, focus=draw(st.sampled_from([*named, *named[:_EARLY]])))
    any_fault = _any_of(known, kinds, max_workers)
    least, most = draw(st.sampled_from(_sizes(known, min_faults, max_faults)))
    return tuple(draw(st.lists(any_fault, min_size=least, max_size=most)))


def _sizes(files: DataFiles, least: int, most: int) -> list[tuple[int, int]]:
    """The least and the most faults of a schedule, simplest first.

    After an error that ends the epoch, no further fault happens. So several faults are worth a
    trial where the dataset tolerates some errors, and hardly where it tolerates none.
    """
    if files.tolerated_errors is None:
        return [(least, most)]
    if files.tolerated_errors:
        several = max(least, min(2, most)), most
        return [(least, most), several, several]
    return [*[(least, max(1, least))] * 3, (least, most)]


def _any_of(files: Files, kinds: Kinds, max_workers: int) -> st.SearchStrategy[Fault]:
    chosen: list[type[Fault]] = require_some(list(KINDS.values()), kinds=kinds)
    require(COUNT, max_workers=max_workers)
    known = data_files(files)
    possible = [kind for kind in chosen if _can_happen(kind, known)]
    if not possible:
        message = f"kinds={chosen!r} must have one that can happen to these files: files={files!r}"
        raise InvalidArgument(message)
    over = [error for error in known.tolerated_errors or () if type(error) in possible]
    likelier = [kind for kind in possible if kind not in map(type, over)]
    sorts = [*possible, *(kind for kind in likelier for _ in range(_OFTEN.get(kind, 0)))]
    # A tolerated error is as likely as anything else: after it, a second fault can happen.
    repeated = itertools.islice(itertools.cycle(over), len(sorts))
    return _one_of(known, (*sorts, *repeated), max_workers)


@st.composite
def _one_of(
    draw: st.DrawFn, files: DataFiles, sorts: tuple[type[Fault] | Transient, ...], max_workers: int
) -> Fault:
    """One of *sorts*: a kind of fault, or an error that the dataset tolerates.

    Not ``st.one_of``, for which all these strategies would have to be made.
    """
    sort = draw(st.sampled_from(sorts))
    if isinstance(sort, type):
        return draw(_MAKERS[sort](files, max_workers))
    return draw(_files.errors_like(error=sort, files=files, max_workers=max_workers))


def _can_happen(kind: type[Fault], files: Any) -> bool:
    if kind in {vocabulary.OpenError, vocabulary.DescriptorExhaustion}:
        return bool(files.opens)
    if is_of_writing(kind()):
        return bool(files.writes)
    if vocabulary.has_connections(kind()):
        return bool(files.connections)
    return bool(files.reads) or not vocabulary.has_files(kind())
