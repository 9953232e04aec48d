"""Strategies for the faults of files, one per fault."""

from __future__ import annotations

import errno
from collections.abc import Callable, Hashable, Iterable
from dataclasses import replace
from functools import partial
from typing import TypeAlias, TypeVar

from hypothesis import strategies as st

from pytest_dataloader_faults import faults
from pytest_dataloader_faults._arguments import COUNT, FLAG, SECONDS, ints
from pytest_dataloader_faults.battery._survey import DataFiles
from pytest_dataloader_faults.faults._files import OPEN_ERRNOS, READ_ERRNOS
from pytest_dataloader_faults.strategies import _choices
from pytest_dataloader_faults.strategies._choices import Files, combinations, operations, require

F = TypeVar("F", bound=faults.Fault)
Transient: TypeAlias = faults.OpenError | faults.ReadError

FEW = (1, 2, 3)
"""Times, for what costs time whenever it happens."""
TIMES = (None, 1, 1, None, 1, 1, *FEW[1:])
"""For good, or for a moment: mostly once, which is what a second attempt copes with."""
_OPEN_ERRNOS = tuple(getattr(errno, name) for name in "EIO ENOENT EMFILE ESTALE".split())
_READ_ERRNOS = tuple(getattr(errno, name) for name in "EIO ESTALE".split())
"""Not EINTR and EAGAIN, which ask for another try: for good they are an endless loop."""
TRANSIENT_ERRORS: tuple[Transient, ...] = (
    *(faults.OpenError(errno=number, times=1) for number in _OPEN_ERRNOS),
    *(faults.ReadError(errno=number, times=1) for number in _READ_ERRNOS),
)
"""Transient errors, one of each sort."""


def _each_or_all(most: int) -> tuple[tuple[int, ...] | None, ...]:
    """All workers, mostly, or one."""
    require(COUNT, max_workers=most)
    return (*[None] * 2 * most, *((worker,) for worker in range(most))) if most > 1 else (None,)


def drawn(
    draw: st.DrawFn,
    make: Callable[..., F],
    targets: st.SearchStrategy[_choices.Target],
    max_workers: int,
    **domains: tuple[Hashable, ...],
) -> F:
    """A fault of one of *targets*, at one of its operations; *domains*: its other arguments."""
    workers = _each_or_all(max_workers)
    target = draw(targets)
    nth = draw(_choices.nth_of(target))
    how = draw(combinations(**domains, workers=workers))
    return make(path=target.path, nth=nth, **how)


@st.composite
def errors_like(
    draw: st.DrawFn, *, error: Transient, files: DataFiles, max_workers: int
) -> Transient:
    """*error* in any file, in the first epoch, so that its consequences show later."""
    early = replace(files, epochs=1)
    targets = operations(early, "open" if isinstance(error, faults.OpenError) else "read")
    make: Callable[..., Transient] = partial(replace, error)
    return drawn(draw, make, targets, max_workers, times=(error.times,))


@st.composite
def open_errors(
    draw: st.DrawFn,
    *,
    files: Files = None,
    errnos: Iterable[int] = _OPEN_ERRNOS,
    max_nth: int | None = None,
    max_workers: int = 2,
) -> faults.OpenError:
    """``OpenError`` with one of *errnos*: opens fail, for good or up to three times."""
    chosen = tuple(_choices.require_some(sorted(OPEN_ERRNOS), errnos=errnos))
    targets = operations(files, "open", max_nth)
    return drawn(draw, faults.OpenError, targets, max_workers, errno=chosen, times=TIMES)


@st.composite
def read_errors(
    draw: st.DrawFn,
    *,
    files: Files = None,
    errnos: Iterable[int] = _READ_ERRNOS,
    max_nth: int | None = None,
    max_workers: int = 2,
) -> faults.ReadError:
    """``ReadError`` with one of *errnos*: reads fail, for good or up to three times."""
    chosen = tuple(_choices.require_some(sorted(READ_ERRNOS), errnos=errnos))
    targets = operations(files, "read", max_nth)
    return drawn(draw, faults.ReadError, targets, max_workers, errno=chosen, times=TIMES)


@st.composite
def short_reads(
    draw: st.DrawFn,
    *,
    files: Files = None,
    max_bytes: int = 16,
    max_nth: int | None = None,
    max_workers: int = 2,
) -> faults.ShortRead:
    """``ShortRead``: up to three reads give at most *max_bytes*. More would only be slow."""
    require(COUNT, max_bytes=max_bytes)
    targets, sizes = operations(files, "read", max_nth), tuple(range(1, max_bytes + 1))
    return drawn(draw, faults.ShortRead, targets, max_workers, max_bytes=sizes, times=FEW)


@st.composite
def truncated_files(
    draw: st.DrawFn, *, files: Files = None, max_bytes: int = 64, max_workers: int = 2
) -> faults.TruncatedFile:
    """``TruncatedFile``: a file ends early, after half of it or after up to *max_bytes*."""
    require(ints(0), max_bytes=max_bytes)
    target = draw(operations(files, "read"))
    kept = (0.5, 0.25, 0.75, *range(max_bytes + 1))
    how = draw(combinations(keep=kept, workers=_each_or_all(max_workers)))
    return faults.TruncatedFile(target.path, **how)


@st.composite
def corrupted_files(
    draw: st.DrawFn, *, files: Files = None, max_flips: int = 8, max_workers: int = 2
) -> faults.CorruptedFile:
    """``CorruptedFile``: up to *max_flips* bytes differ. For datasets that promise to notice."""
    require(COUNT, max_flips=max_flips)
    target = draw(operations(files, "read"))
    flips, workers = tuple(range(1, max_flips + 1)), _each_or_all(max_workers)
    how = draw(combinations(flips=flips, seed=tuple(range(8)), workers=workers))
    return faults.CorruptedFile(target.path, **how)


@st.composite
def closed_descriptors(
    draw: st.DrawFn,
    *,
    files: Files = None,
    reuse: bool = False,
    max_nth: int | None = None,
    max_workers: int = 2,
) -> faults.ClosedDescriptor:
    """``ClosedDescriptor``: the descriptor of a file is closed while the dataset uses it.

    With *reuse* its number may belong to another file by then, which few datasets can notice.
    """
    require(FLAG, reuse=reuse)
    targets, reuses = operations(files, "keep", max_nth), (False, True) if reuse else (False,)
    return drawn(draw, faults.ClosedDescriptor, targets, max_workers, reuse=reuses, times=TIMES)


@st.composite
def slow_reads(
    draw: st.DrawFn,
    *,
    files: Files = None,
    seconds: float = 0.05,
    max_nth: int | None = None,
    max_workers: int = 2,
) -> faults.SlowRead:
    """``SlowRead``: up to three reads come *seconds* late."""
    require(SECONDS, seconds=seconds)
    targets = operations(files, "read", max_nth)
    return drawn(draw, faults.SlowRead, targets, max_workers, seconds=(seconds,), times=FEW)


@st.composite
def hung_reads(
    draw: st.DrawFn, *, files: Files = None, max_nth: int | None = None, max_workers: int = 2
) -> faults.HungRead:
    """``HungRead``: a read never returns. Give the loader a ``timeout``."""
    return drawn(draw, faults.HungRead, operations(files, "read", max_nth), max_workers)
