"""Hypothesis strategies: faults, schedules of them, and loaders.

Pass all arguments by keyword. An invalid one raises Hypothesis' ``InvalidArgument``. These
arguments mean the same in all strategies:

*files*
    The files to inject faults into: a glob, or several. With one glob per file, a schedule can
    damage a single file.
*kinds*
    The fault classes to choose from; by default ``DEFAULT_KINDS``.
*max_workers*
    The maximum number of workers of the loader.

Examples shrink towards fewer faults, the first file, its first operation, one worker, and a
permanent fault. To draw one fault yourself, use ``st.builds(ReadError, path=st.just("*.jpg"))``:
all faults are plain dataclasses, which reject invalid values.
"""

from __future__ import annotations

import errno
import itertools
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import replace
from signal import Signals
from typing import Any, TypeAlias

from hypothesis import strategies as st
from hypothesis.errors import InvalidArgument

from pytest_dataloader_faults import faults as vocabulary
from pytest_dataloader_faults._arguments import COUNT, FLAG, ints
from pytest_dataloader_faults.faults import KINDS, Fault
from pytest_dataloader_faults.faults.base import default_path
from pytest_dataloader_faults.strategies import choices
from pytest_dataloader_faults.strategies.choices import Files

__all__ = ("fault_schedules", "faults", "loader_options")


Kinds = Iterable[type[Fault]]
Domains: TypeAlias = Mapping[str, tuple[Hashable, ...]]
Transient: TypeAlias = vocabulary.OpenError | vocabulary.ReadError

_FIRST: tuple[type[Fault], ...] = (
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
"""The kinds that examples shrink to, the simplest first."""
DEFAULT_KINDS: tuple[type[Fault], ...] = (
    *_FIRST,
    vocabulary.WriteError,
    vocabulary.ShortWrite,
    vocabulary.ConnectError,
    vocabulary.ConnectionReset,
    vocabulary.HttpError,
)
"""The faults that a healthy dataset survives, or fails from cleanly, with any loader."""

_FEW = (1, 2, 3)
"""Values of *times* for faults that take time whenever they fire."""
_TIMES = (None, 1, 1, None, 1, 1, 2, 3)
"""For others, permanent or transient: mostly once, which a second attempt survives."""
_SHORT: Domains = {"max_bytes": tuple(range(1, 17)), "times": _FEW}
_AFTER: Domains = {"after": (0, 256, 1024), "times": _TIMES}
_DRAWN: Mapping[type[Fault], Mapping[str, tuple[Any, ...]]] = {
    vocabulary.OpenError: {
        "errno": (errno.EIO, errno.ENOENT, errno.EMFILE, errno.ESTALE),
        "times": _TIMES,
    },
    # Not EINTR and EAGAIN, which request a retry: if permanent, they cause an endless loop.
    vocabulary.ReadError: {"errno": (errno.EIO, errno.ESTALE), "times": _TIMES},
    vocabulary.ShortRead: _SHORT,
    vocabulary.ShortWrite: _SHORT,
    vocabulary.TruncatedFile: {"keep": (0.5, 0.25, 0.75, *range(65))},
    vocabulary.CorruptedFile: {"flips": tuple(range(1, 9)), "seed": tuple(range(8))},
    vocabulary.ClosedDescriptor: {"times": _TIMES},
    vocabulary.SlowRead: {"seconds": (0.05,), "times": _FEW},
    vocabulary.WriteError: {"errno": (errno.ENOSPC, errno.EIO, errno.EDQUOT), "times": _TIMES},
    vocabulary.LockError: {"errno": (errno.EAGAIN, errno.ENOLCK), "times": _TIMES},
    vocabulary.ConnectError: {
        "errno": (errno.ECONNREFUSED, errno.ETIMEDOUT, errno.EHOSTUNREACH),
        "times": _TIMES,
    },
    vocabulary.ConnectionReset: _AFTER,
    vocabulary.ConnectionClosed: _AFTER,
    vocabulary.HttpError: {"status": (503, 404, 429, 403, 500), "times": _TIMES},
    vocabulary.ListingOrder: {"order": ("reversed", "random")},
    vocabulary.ListingError: {"errno": (errno.EIO, errno.ESTALE), "times": _TIMES},
    vocabulary.StrayEntry: {"name": (".DS_Store", "*.part")},
    vocabulary.SharedMemoryExhaustion: {"times": (None, *_FEW)},
    vocabulary.MemoryExhaustion: {"times": (None, *_FEW)},
    vocabulary.ThreadExhaustion: {"times": _TIMES},
    vocabulary.WorkerKilled: {
        "signal": tuple(int(Signals[f"SIG{name}"]) for name in "KILL SEGV BUS TERM ABRT".split())
    },
    vocabulary.WorkerExited: {"code": (1, 2, 255)},  # Of 0, torch notices only after 5 s.
}
"""The values of each argument that is drawn, the simplest first."""
TRANSIENT_ERRORS: tuple[Transient, ...] = tuple(
    kind(errno=number, times=1)
    for kind in (vocabulary.OpenError, vocabulary.ReadError)
    for number in _DRAWN[kind]["errno"]
)
"""Transient errors, one for each class and errno."""
_NTH = 4
"""The highest *nth* of a fault in operations that are not counted, such as those of torch."""
_EARLY = 4
"""The number of first files that are likelier than others: effects show in later samples."""
_OFTEN = {
    vocabulary.OpenError: 8,
    vocabulary.ReadError: 3,
    vocabulary.ShortRead: 1,
    vocabulary.TruncatedFile: 3,
    vocabulary.WorkerKilled: 3,
}
"""How much likelier some kinds are, because they have more variants and find more bugs."""


@st.composite
def faults(
    draw: st.DrawFn,
    *,
    files: Files = None,
    kinds: Kinds = DEFAULT_KINDS,
    max_workers: int = 2,
) -> Fault:
    """Draw a fault from *kinds*, which are fault classes, that can occur in *files*."""
    return draw(_fault_strategy(files, kinds, max_workers))


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
    """Draw a tuple of faults, for ``run_trial(make_dataset, *schedule)``.

    Args:
        files: A glob, or several, of the files to inject faults into.
        min_faults: The minimum number of faults in a schedule; 0 allows an empty one.
        max_faults: The maximum number of faults in a schedule.
        kinds: Fault classes to choose from; by default ``DEFAULT_KINDS``.
        max_workers: The maximum number of workers of the loader.

    """
    choices.require(ints(0), min_faults=min_faults)
    choices.require(ints(max(1, min_faults)), max_faults=max_faults)
    data = choices.data_files(files)
    if counts_by_path := {**data.count("opens"), **data.count("reads")}:
        paths = [*counts_by_path]
        data = replace(data, focus=draw(st.sampled_from([*paths, *paths[:_EARLY]])))
    any_fault = _fault_strategy(data, kinds, max_workers)
    min_size, max_size = draw(st.sampled_from(_sizes(data, min_faults, max_faults)))
    return tuple(draw(st.lists(any_fault, min_size=min_size, max_size=max_size)))


def _sizes(files: choices.DataFiles, min_faults: int, max_faults: int) -> list[tuple[int, int]]:
    """The minimum and maximum number of faults of a schedule, simplest first.

    After an error that ends the epoch, further faults do not fire. So several faults are worth a
    trial if the dataset tolerates some errors, but rarely if it tolerates none.
    """
    if files.tolerated_errors is None:
        return [(min_faults, max_faults)]
    if files.tolerated_errors:
        several = max(min_faults, min(2, max_faults)), max_faults
        return [(min_faults, max_faults), several, several]
    return [*[(min_faults, max(1, min_faults))] * 3, (min_faults, max_faults)]


def _fault_strategy(files: Files, kinds: Kinds, max_workers: int) -> st.SearchStrategy[Fault]:
    chosen: list[type[Fault]] = choices.require_some(list(KINDS.values()), kinds=kinds)
    choices.require(COUNT, max_workers=max_workers)
    data = choices.data_files(files)
    possible = [kind for kind in chosen if _can_occur(kind, data)]
    if not possible:
        message = f"kinds={chosen!r} must have a fault that can occur in files={files!r}"
        raise InvalidArgument(message)
    over = [error for error in data.tolerated_errors or () if type(error) in possible]
    likelier = [kind for kind in possible if kind not in map(type, over)]
    sorts = [*possible, *(kind for kind in likelier for _ in range(_OFTEN.get(kind, 0)))]
    # A tolerated error is as likely as all other faults, because a second fault can fire after it.
    repeated = itertools.islice(itertools.cycle(over), len(sorts))
    return _sort_strategy(data, (*sorts, *repeated), max_workers)


@st.composite
def _sort_strategy(
    draw: st.DrawFn,
    files: choices.DataFiles,
    sorts: tuple[type[Fault] | Transient, ...],
    max_workers: int,
) -> Fault:
    """One of *sorts*: a kind of fault, or an error that the dataset tolerates.

    Not ``st.one_of``, which would need all these strategies to be created.
    """
    sort = draw(st.sampled_from(sorts))
    if isinstance(sort, type):
        return draw(_kind_strategy(sort, files, max_workers))
    # In the first epoch, so that its consequences show later.
    drawn: Domains = {"errno": (sort.errno,), "times": (sort.times,)}
    return draw(_operation_fault(type(sort), drawn, replace(files, epochs=1), max_workers))


def _can_occur(kind: type[Fault], files: choices.DataFiles) -> bool:
    return not kind.operation or bool(choices.count_operations(files, kind))


def _kind_strategy(
    kind: type[Any], files: choices.DataFiles, max_workers: int
) -> st.SearchStrategy[Fault]:
    drawn = _DRAWN.get(kind, {})
    if default_path(kind) is not None:
        return _operation_fault(kind, drawn, files, max_workers)
    if hasattr(kind, "at"):
        return _batch_fault(kind, files, max_workers)
    if kind is vocabulary.DescriptorExhaustion:
        # With a few descriptors left, a dataset may read its samples, and torch then lacks one to
        # pass the batch: the loader waits forever, regardless of the dataset.
        workers = st.sampled_from((None, *_single_workers(max_workers)))
        return st.builds(vocabulary.DescriptorExhaustion, workers=workers)
    count = sum(choices.count_operations(files, kind).values()) if kind.operation else _NTH
    arguments = {name: st.sampled_from(values) for name, values in drawn.items()}
    return st.builds(kind, nth=st.integers(1, count), **arguments)


@st.composite
def _operation_fault(
    draw: st.DrawFn, kind: type[Any], drawn: Domains, files: choices.DataFiles, max_workers: int
) -> Fault:
    target = draw(choices.operations(files, kind))
    nth = {"nth": draw(choices.nth_of(target))} if hasattr(kind, "nth") else {}
    single = _single_workers(max_workers)
    workers = (*[None] * 2 * len(single), *single) or (None,)  # All workers, mostly.
    fault: Fault = kind(
        path=target.path, **nth, **draw(choices.combinations(**drawn, workers=workers))
    )
    return fault


def _single_workers(max_workers: int) -> tuple[tuple[int, ...], ...]:
    """Each worker alone, where there can be several."""
    return tuple((worker,) for worker in range(max_workers)) if max_workers > 1 else ()


@st.composite
def _batch_fault(
    draw: st.DrawFn, kind: type[Any], files: choices.DataFiles, max_workers: int
) -> Fault:
    """In worker 0 or another, more often at its second batch, because the first may leave state."""
    last_batch = max(1, files.batches * files.epochs)
    at = draw(st.sampled_from([*range(1, last_batch + 1), min(2, last_batch)]))
    domains = {**_DRAWN.get(kind, {})}
    if hasattr(kind, "worker"):
        domains["worker"] = (*range(max_workers), None) if max_workers > 1 else (0,)
    fault: Fault = kind(at=at, **draw(choices.combinations(**domains)))
    return fault


_LONG_LIVED = ("persistent_workers",) * 2
"""Likelier than not, because a worker of several epochs can keep more state."""


@st.composite
def loader_options(
    draw: st.DrawFn,
    *,
    min_workers: int = 1,
    max_workers: int = 2,
    max_batch_size: int = 8,
    start_methods: Iterable[str] | None = None,
    shuffle: bool = True,
) -> dict[str, Any]:
    """Draw options of a ``DataLoader``, for ``run_trial(..., loader=options)``.

    Args:
        min_workers, max_workers: The limits of ``num_workers``; worker faults need at least 1.
        max_batch_size: The maximum of ``batch_size``.
        start_methods: Values of ``multiprocessing_context`` for loaders with workers: ``"fork"``,
            ``"spawn"``, ``"forkserver"``. With None, torch uses the default of multiprocessing.
            Trials with ``"spawn"`` take seconds each; ``"spawn"`` and ``"forkserver"`` need a
            picklable dataset.
        shuffle: Whether samples may be shuffled; the trial's seed determines the order. Streams
            cannot be shuffled.

    """
    choices.require(ints(0), min_workers=min_workers)
    choices.require(ints(max(1, min_workers)), max_workers=max_workers)
    choices.require(COUNT, max_batch_size=max_batch_size)
    methods: list[Any] = [None]
    if start_methods is not None:
        methods = choices.require_some(("fork", "spawn", "forkserver"), start_methods=start_methods)
    choices.require(FLAG, shuffle=shuffle)
    workers = draw(st.sampled_from(range(min_workers, max_workers + 1)))
    options: dict[str, Any] = {"num_workers": workers}
    usual = min(4, max_batch_size)  # What trials have by default; the others shrink to it.
    sizes = [*range(usual, max_batch_size + 1), *range(1, usual)]
    options["batch_size"] = draw(st.sampled_from(sizes))
    # Names instead of bools, which Hypothesis would copy from option to option.
    if shuffle and draw(st.sampled_from([None, "shuffle"])):
        options["shuffle"] = True
    if workers:
        if draw(st.sampled_from([None, *_LONG_LIVED])):
            options["persistent_workers"] = True
        if prefetch := draw(st.sampled_from([None, *range(1, 5)])):
            options["prefetch_factor"] = prefetch
        if method := draw(st.sampled_from(methods)):
            options["multiprocessing_context"] = method
    return options
