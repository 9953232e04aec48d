"""Strategies for any fault, and for schedules of several."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from hypothesis import strategies as st
from hypothesis.errors import InvalidArgument

from pytest_dataloader_faults import faults as vocabulary
from pytest_dataloader_faults.faults import KINDS, Fault
from pytest_dataloader_faults.strategies import _of_files, _of_workers
from pytest_dataloader_faults.strategies._arguments import require_count, require_some
from pytest_dataloader_faults.strategies._victims import Files, data_files

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
)
"""Those that a healthy dataset survives, or fails of cleanly, under any loader.

Not ``CorruptedFile``, which only a checksum can tell, not what hangs, which needs a loader with a
``timeout``, not ``SharedMemoryExhaustion``, which torch may answer by waiting for ever, and not
``PinMemoryThreadDeath``, which needs an accelerator.
"""

_MAKERS: dict[type[Fault], Callable[[Files, int], st.SearchStrategy[Fault]]] = {
    vocabulary.OpenError: lambda files, n: _of_files.open_errors(files=files, max_workers=n),
    vocabulary.ReadError: lambda files, n: _of_files.read_errors(files=files, max_workers=n),
    vocabulary.ShortRead: lambda files, n: _of_files.short_reads(files=files, max_workers=n),
    vocabulary.TruncatedFile: lambda f, n: _of_files.truncated_files(files=f, max_workers=n),
    vocabulary.CorruptedFile: lambda f, n: _of_files.corrupted_files(files=f, max_workers=n),
    vocabulary.ClosedDescriptor: lambda f, n: _of_files.closed_descriptors(files=f, max_workers=n),
    vocabulary.SlowRead: lambda files, n: _of_files.slow_reads(files=files, max_workers=n),
    vocabulary.HungRead: lambda files, n: _of_files.hung_reads(files=files, max_workers=n),
    vocabulary.DescriptorExhaustion: lambda _, n: _of_workers.descriptor_exhaustions(max_workers=n),
    vocabulary.SharedMemoryExhaustion: lambda *_: _of_workers.shared_memory_exhaustions(),
    vocabulary.WorkerKilled: lambda f, n: _of_workers.killed_workers(files=f, max_workers=n),
    vocabulary.WorkerExited: lambda f, n: _of_workers.exited_workers(files=f, max_workers=n),
    vocabulary.WorkerHung: lambda f, n: _of_workers.hung_workers(files=f, max_workers=n),
    vocabulary.PinMemoryThreadDeath: lambda f, _: _of_workers.pin_memory_thread_deaths(files=f),
}
_OF_OPENED = {vocabulary.OpenError, vocabulary.DescriptorExhaustion}


def _is_about_files(kind: type[Fault]) -> bool:
    return vocabulary.has_files(kind())


@st.composite
def faults(
    draw: st.DrawFn, *, files: Files = None, kinds: Kinds = DEFAULT_KINDS, max_workers: int = 2
) -> Fault:
    """Any fault of *kinds*, as far as *files* can meet it: fault classes, the simplest first."""
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
        draw: Given by Hypothesis.
        files: What is put at risk: globs or, better, a ``survey`` of the dataset.
        min_faults: The fewest.
        max_faults: The most.
        kinds: Fault classes to choose from.
        max_workers: The most workers that the loader may have.

    """
    require_count(0, min_faults=min_faults)
    require_count(max(1, min_faults), max_faults=max_faults)
    any_fault = _any_of(files, kinds, max_workers)
    many = st.lists(any_fault, min_size=min_faults, max_size=max_faults)
    return tuple(draw(many))


def _any_of(files: Files, kinds: Kinds, max_workers: int) -> st.SearchStrategy[Fault]:
    chosen: list[type[Fault]] = require_some(list(KINDS.values()), kinds=kinds)
    require_count(max_workers=max_workers)
    known = data_files(files)
    possible = [kind for kind in chosen if _can_be_met(kind, known)]
    if not possible:
        message = f"kinds={chosen!r} must have one that these files can meet: files={files!r}"
        raise InvalidArgument(message)
    return st.one_of([_MAKERS[kind](known, max_workers) for kind in possible])


def _can_be_met(kind: type[Fault], files: Any) -> bool:
    if kind in _OF_OPENED:
        return bool(files.opens)
    return bool(files.reads) or not _is_about_files(kind)
