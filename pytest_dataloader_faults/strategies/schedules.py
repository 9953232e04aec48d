"""Strategies for any fault, for schedules of several, and for the loader and samples of a trial."""

from __future__ import annotations

import errno
import itertools
import signal
from collections.abc import Hashable, Iterable
from dataclasses import replace
from typing import Any, NamedTuple, TypeAlias

from hypothesis import strategies as st
from hypothesis.errors import InvalidArgument

from pytest_dataloader_faults import faults as vocabulary
from pytest_dataloader_faults._arguments import COUNT, FLAG, Rule, ints, is_number
from pytest_dataloader_faults.battery.survey import DataFiles, Survey
from pytest_dataloader_faults.faults import KINDS, Fault
from pytest_dataloader_faults.strategies._choices import (
    Files,
    combinations,
    counts,
    data_files,
    nth_of,
    operations,
    require,
    require_some,
)

Kinds = Iterable[type[Fault]]
Domains: TypeAlias = dict[str, tuple[Hashable, ...]]
Transient: TypeAlias = vocabulary.OpenError | vocabulary.ReadError

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

_FEW = (1, 2, 3)
"""Times, for what costs time whenever it happens."""
_TIMES = (None, 1, 1, None, 1, 1, *_FEW[1:])
"""Every time, or for a moment: mostly once, which is what a second attempt copes with."""
_OPEN_ERRNOS = (errno.EIO, errno.ENOENT, errno.EMFILE, errno.ESTALE)
_READ_ERRNOS = (errno.EIO, errno.ESTALE)
"""Not EINTR and EAGAIN, which ask for another try: every time they are an endless loop."""
TRANSIENT_ERRORS: tuple[Transient, ...] = (
    *(vocabulary.OpenError(errno=number, times=1) for number in _OPEN_ERRNOS),
    *(vocabulary.ReadError(errno=number, times=1) for number in _READ_ERRNOS),
)
"""Transient errors, one of each sort."""

_CONNECT_ERRNOS = (errno.ECONNREFUSED, errno.ETIMEDOUT, errno.EHOSTUNREACH)
_WRITE_ERRNOS = (errno.ENOSPC, errno.EIO, errno.EDQUOT)
_BYTES = tuple(range(1, 17))
"""More in a call would only be slow."""
_ANSWERED: Domains = {"after": (0, 256, 1024), "times": _TIMES}
_DEADLY = tuple(int(getattr(signal, f"SIG{name}")) for name in "KILL SEGV BUS TERM ABRT".split())


class _Operation(NamedTuple):
    """What workers do to the file, or the connection, that a fault hits, and the other fields."""

    verb: str
    fields: Domains


_OF_OPERATIONS: dict[type[Fault], _Operation] = {
    vocabulary.OpenError: _Operation("open", {"errno": _OPEN_ERRNOS, "times": _TIMES}),
    vocabulary.ReadError: _Operation("read", {"errno": _READ_ERRNOS, "times": _TIMES}),
    vocabulary.ShortRead: _Operation("read", {"max_bytes": _BYTES, "times": _FEW}),
    vocabulary.TruncatedFile: _Operation("read", {"keep": (0.5, 0.25, 0.75, *range(65))}),
    vocabulary.CorruptedFile: _Operation(
        "read", {"flips": tuple(range(1, 9)), "seed": tuple(range(8))}
    ),
    vocabulary.ClosedDescriptor: _Operation("keep", {"times": _TIMES}),
    vocabulary.SlowRead: _Operation("read", {"seconds": (0.05,), "times": _FEW}),
    vocabulary.HungRead: _Operation("read", {}),
    vocabulary.WriteError: _Operation("write", {"errno": _WRITE_ERRNOS, "times": _TIMES}),
    vocabulary.ShortWrite: _Operation("write", {"max_bytes": _BYTES, "times": _FEW}),
    vocabulary.ConnectError: _Operation("connect to", {"errno": _CONNECT_ERRNOS, "times": _TIMES}),
    vocabulary.ConnectionReset: _Operation("connect to", _ANSWERED),
    vocabulary.ConnectionClosed: _Operation("connect to", _ANSWERED),
}
_OF_BATCHES: dict[type[Fault], Domains] = {
    vocabulary.WorkerKilled: {"signal": _DEADLY},
    vocabulary.WorkerExited: {"code": (1, 2, 255)},  # Of 0, torch notices only after 5 s.
    vocabulary.WorkerHung: {},
    vocabulary.PinMemoryThreadDeath: {"stage": ("take", "pin")},
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
        return draw(_of_kind(sort, files, max_workers))
    # In the first epoch, so that its consequences show later.
    like = _Operation(
        _OF_OPERATIONS[type(sort)].verb, {"errno": (sort.errno,), "times": (sort.times,)}
    )
    return draw(_of_operation(type(sort), like, replace(files, epochs=1), max_workers))


def _can_happen(kind: type[Fault], files: DataFiles) -> bool:
    if kind is vocabulary.DescriptorExhaustion:
        return bool(files.opens)
    of_operation = _OF_OPERATIONS.get(kind)
    return of_operation is None or bool(counts(files, of_operation.verb))


def _of_kind(kind: type[Fault], files: DataFiles, max_workers: int) -> st.SearchStrategy[Fault]:
    if kind in _OF_OPERATIONS:
        return _of_operation(kind, _OF_OPERATIONS[kind], files, max_workers)
    if kind in _OF_BATCHES:
        return _of_batch(kind, files, max_workers)
    if kind is vocabulary.DescriptorExhaustion:
        # With a few descriptors left, a dataset may read its samples, and torch then lacks one to
        # pass the batch: the loader waits forever, whatever the dataset does.
        workers = st.sampled_from((None, *_single(max_workers)))
        return st.builds(vocabulary.DescriptorExhaustion, workers=workers)
    if kind is vocabulary.SharedMemoryExhaustion:
        times = st.sampled_from([None, *_FEW])
        return st.builds(kind, nth=st.integers(1, 4), times=times)
    raise NotImplementedError(f"nothing here says how to draw {kind.__name__}")


@st.composite
def _of_operation(
    draw: st.DrawFn, kind: type[Any], of: _Operation, files: DataFiles, max_workers: int
) -> Fault:
    target = draw(operations(files, of.verb))
    nth = {"nth": draw(nth_of(target))} if hasattr(kind, "nth") else {}
    single = _single(max_workers)
    workers = (*[None] * 2 * len(single), *single) or (None,)  # All workers, mostly.
    fault: Fault = kind(path=target.path, **nth, **draw(combinations(**of.fields, workers=workers)))
    return fault


def _single(most: int) -> tuple[tuple[int, ...], ...]:
    """Each worker alone, where there can be several."""
    return tuple((worker,) for worker in range(most)) if most > 1 else ()


@st.composite
def _of_batch(draw: st.DrawFn, kind: type[Any], files: DataFiles, max_workers: int) -> Fault:
    """In worker 0 or another, rather at its second batch: the first may leave state."""
    last = max(1, files.batches * files.epochs)
    at = draw(st.sampled_from([*range(1, last + 1), min(2, last)]))
    domains = {**_OF_BATCHES[kind]}
    if hasattr(kind, "worker"):
        domains["worker"] = (*range(max_workers), None) if max_workers > 1 else (0,)
    fault: Fault = kind(at=at, **draw(combinations(**domains)))
    return fault


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
