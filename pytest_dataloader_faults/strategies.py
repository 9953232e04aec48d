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
import glob
import itertools
import math
from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from signal import Signals
from typing import Any, NamedTuple, TypeAlias

from hypothesis import strategies as st
from hypothesis.errors import InvalidArgument

from pytest_dataloader_faults import faults as vocabulary
from pytest_dataloader_faults._arguments import COUNT, FLAG, ArgumentRule, choose_arguments, ints
from pytest_dataloader_faults._settings import Files as Globs
from pytest_dataloader_faults._settings import parse_globs
from pytest_dataloader_faults.battery.targets import path_of, portable_globs
from pytest_dataloader_faults.battery.workload import Workload
from pytest_dataloader_faults.exceptions import InvalidArgumentError
from pytest_dataloader_faults.faults import KINDS, Fault
from pytest_dataloader_faults.faults.base import Place, default_path
from pytest_dataloader_faults.faults.globs import is_address

__all__ = ("DataFiles", "fault_schedules", "faults", "loader_options")

# Some facts about shrinking. Hypothesis shrinks the sequence of choices that drew an example: it
# makes the sequence shorter, then each choice smaller. One step removes at most five consecutive
# choices, and each step is a trial of a few tenths of a second. So a fault that is drawn by seven
# choices cannot be removed from a list of faults, but one that is drawn by four can be removed in
# one step. Therefore all arguments of a fault, except for its file and its operation, are one
# choice among all their combinations, ordered by how much they differ from the simplest.
#
# Two choices remain: the file that the fault hits, and the operation on it.


Kinds = Iterable[type[Fault]]
Domains: TypeAlias = Mapping[str, tuple[Hashable, ...]]
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
    vocabulary.WriteError,
    vocabulary.ShortWrite,
    vocabulary.ConnectError,
    vocabulary.ConnectionReset,
    vocabulary.HttpError,
)
"""The faults that a healthy dataset survives, or fails from cleanly, with any loader.

Examples shrink to the first of them.
"""

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


Path: TypeAlias = str | tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class DataFiles:
    """What a dataset uses, as globs, in alphabetical order.

    The glob of a file is the end of its path, such as ``"*/03.rec"``, if that matches only one
    file. So a schedule stays valid if the data is in another folder, such as another ``tmp_path``.

    Attributes:
        counts: By operation, as faults name theirs: how often one worker does it in an epoch to
            each file, folder or connection. Mapping a file counts as one read.
        together: By operation, a glob, or globs, for all of these together.
        batches: How many batches one worker makes in an epoch.
        samples: How many samples the dataset has.
        workers: How many workers share the files.
        epochs: How many epochs a worker lives for.
        focus: The only file that single-file faults hit; by default each file.
        tolerated_errors: Transient errors that the dataset survives; None if unknown.
    """

    counts: Mapping[str, Mapping[str, int]]
    together: Mapping[str, Path] = field(default_factory=dict)
    batches: int = 4
    samples: int = 16
    workers: int = 1
    epochs: int = 1
    focus: str | None = None
    tolerated_errors: tuple[Transient, ...] | None = None

    @classmethod
    def of(cls, workload: Workload, samples: int) -> DataFiles:
        """The files of *workload*, for a dataset with this many *samples*."""
        by_path = {each: workload.count_per_file(each) for each in _operations_on()}
        # A dataset may open its files before the workers start: then only reads show them.
        sources = {*by_path["opens"], *by_path["reads"]}
        counts: dict[str, Mapping[str, int]] = {}
        together: dict[str, Path] = {}
        for operation, path_counts in by_path.items():
            paths = sources if operation in ("opens", "reads") else {*path_counts}
            names = {path: glob.escape(path) for path in paths}
            together[operation] = workload.path_of(operation)
            if workload.known_paths.issuperset(paths):
                names, together[operation] = portable_globs(sorted(paths), workload.known_paths)
            counts[operation] = {names[path]: count for path, count in path_counts.items()}
        starts = workload.count_busiest("starts")
        return cls(
            counts={**counts, "starts": {"": starts} if starts else {}},
            together=together,
            batches=max((each.fetches for each in workload.fault_free.workers), default=0) or 1,
            samples=samples,
        )

    @classmethod
    def of_globs(cls, files: Globs | None) -> DataFiles:
        """The files that globs mean; the number of operations is a guess."""
        try:
            globs = parse_globs(files)
        except InvalidArgumentError as error:
            raise InvalidArgument(str(error)) from error
        counts: defaultdict[str, dict[str, int]] = defaultdict(dict)
        for each in globs:
            for operation in _operations_on(each):
                counts[operation][each] = _NTH
        together = {operation: path_of(tuple(paths)) for operation, paths in counts.items()}
        return cls(counts={**counts, "starts": {"": _NTH}}, together=together)

    def for_loader(self, loader: Mapping[str, Any], epochs: int) -> DataFiles:
        """These files, for the workers of a *loader* that runs this many *epochs*."""
        workers = max(1, loader.get("num_workers", 1))
        size = loader.get("batch_size")
        batches = math.ceil(self.samples / size) if size else self.batches
        return replace(
            self,
            batches=math.ceil(batches / workers),
            workers=workers,
            epochs=epochs if loader.get("persistent_workers") else 1,
        )

    def count(self, operation: str) -> Mapping[str, int]:
        """How often one worker does *operation* in an epoch, by glob."""
        return self.counts.get(operation, {})

    def count_for(self, kind: type[Fault]) -> Mapping[str, int]:
        """How often one worker does what faults of *kind* are about in an epoch, by glob."""
        if kind is vocabulary.ClosedDescriptor:  # The descriptor may be inherited.
            opens = self.count("opens")
            return {path: max(1, opens.get(path, 0)) for path in self.count("reads")}
        return self.count(kind.operation)


Files: TypeAlias = DataFiles | Globs | None
"""The argument *files* of strategies."""


def _operations_on(glob: str | None = None) -> tuple[str, ...]:
    """What workers do to paths, named as by ``Fault.operation``; to those of *glob*, as readers."""
    kinds = [each for each in KINDS.values() if each.operation and default_path(each)]
    if glob is not None:
        readers = (each for each in kinds if each.happens_in & Place.OF_READERS)
        kinds = [
            each for each in readers if is_address(str(default_path(each))) == is_address(glob)
        ]
    return tuple(dict.fromkeys(each.operation for each in kinds))


def _require(rule: ArgumentRule, **arguments: Any) -> None:
    """Raise Hypothesis' InvalidArgument for *arguments* that *rule* does not allow."""
    for name, value in arguments.items():
        rule.check(name, value, error=InvalidArgument)


@st.composite
def faults(
    draw: st.DrawFn, *, files: Files = None, kinds: Kinds = DEFAULT_KINDS, max_workers: int = 2
) -> Fault:
    """Draw a fault from *kinds*, which are fault classes, that can occur in *files*."""
    data = files if isinstance(files, DataFiles) else DataFiles.of_globs(files)
    return draw(_fault_strategy(data, kinds, max_workers))


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
    _require(ints(0), min_faults=min_faults)
    _require(ints(max(1, min_faults)), max_faults=max_faults)
    data = files if isinstance(files, DataFiles) else DataFiles.of_globs(files)
    if paths := [*{**data.count("opens"), **data.count("reads")}]:
        data = replace(data, focus=draw(st.sampled_from([*paths, *paths[:_EARLY]])))
    any_fault = _fault_strategy(data, kinds, max_workers)
    # After an error that ends the epoch, further faults do not fire. So several faults are worth a
    # trial if the dataset tolerates some errors, but rarely if it tolerates none.
    sizes = [(min_faults, max_faults)]
    if data.tolerated_errors:
        sizes += [(max(min_faults, min(2, max_faults)), max_faults)] * 2
    elif data.tolerated_errors is not None:
        sizes = [(min_faults, max(1, min_faults))] * 3 + sizes
    min_size, max_size = draw(st.sampled_from(sizes))
    return tuple(draw(st.lists(any_fault, min_size=min_size, max_size=max_size)))


def _fault_strategy(data: DataFiles, kinds: Kinds, max_workers: int) -> st.SearchStrategy[Fault]:
    chosen = choose_arguments(list(KINDS.values()), InvalidArgument, kinds=kinds)
    _require(COUNT, max_workers=max_workers)
    possible = [kind for kind in chosen if not kind.operation or data.count_for(kind)]
    if not possible:
        message = f"kinds={chosen!r} must have a fault that can occur in files={data!r}"
        raise InvalidArgument(message)
    over = [error for error in data.tolerated_errors or () if type(error) in possible]
    likelier = [kind for kind in possible if kind not in map(type, over)]
    sorts = [*possible, *(kind for kind in likelier for _ in range(_OFTEN.get(kind, 0)))]
    # A tolerated error is as likely as all other faults, because a second fault can fire after it.
    repeated = itertools.islice(itertools.cycle(over), len(sorts))
    return _one_of_sorts(data, (*sorts, *repeated), max_workers)


@st.composite
def _one_of_sorts(
    draw: st.DrawFn, files: DataFiles, sorts: tuple[type[Any] | Transient, ...], max_workers: int
) -> Fault:
    """One of *sorts*: a kind of fault, or an error that the dataset tolerates.

    Not ``st.one_of``, which would need all these strategies to be created.
    """
    sort: Any = draw(st.sampled_from(sorts))
    if not isinstance(sort, type):
        # In the first epoch, so that its consequences show later.
        same: Domains = {"errno": (sort.errno,), "times": (sort.times,)}
        return draw(_operation_fault(type(sort), same, replace(files, epochs=1), max_workers))
    kind: type[Any] = sort
    drawn = _DRAWN.get(kind, {})
    if default_path(kind) is not None:
        return draw(_operation_fault(kind, drawn, files, max_workers))
    if hasattr(kind, "at"):
        return draw(_batch_fault(kind, files, max_workers))
    if kind is vocabulary.DescriptorExhaustion:
        # With a few descriptors left, a dataset may read its samples, and torch then lacks one to
        # pass the batch: the loader waits forever, regardless of the dataset.
        workers = st.sampled_from((None, *_single_workers(max_workers)))
        return draw(st.builds(vocabulary.DescriptorExhaustion, workers=workers))
    arguments = {name: st.sampled_from(values) for name, values in drawn.items()}
    count = sum(files.count_for(kind).values()) if kind.operation else _NTH
    fault: Fault = draw(st.builds(kind, nth=st.integers(1, count), **arguments))
    return fault


@st.composite
def _operation_fault(
    draw: st.DrawFn, kind: type[Any], drawn: Domains, files: DataFiles, max_workers: int
) -> Fault:
    target = draw(_targets(files, kind))
    nth = {"nth": draw(_nth_of(target))} if hasattr(kind, "nth") else {}
    single = _single_workers(max_workers)
    workers = (*[None] * 2 * len(single), *single) or (None,)  # All workers, mostly.
    fault: Fault = kind(path=target.path, **nth, **draw(_combinations(**drawn, workers=workers)))
    return fault


@st.composite
def _batch_fault(draw: st.DrawFn, kind: type[Any], files: DataFiles, max_workers: int) -> Fault:
    """In worker 0 or another, more often at its second batch, because the first may leave state."""
    last_batch = max(1, files.batches * files.epochs)
    at = draw(st.sampled_from([*range(1, last_batch + 1), min(2, last_batch)]))
    domains = {**_DRAWN.get(kind, {})}
    if hasattr(kind, "worker"):
        domains["worker"] = (*range(max_workers), None) if max_workers > 1 else (0,)
    fault: Fault = kind(at=at, **draw(_combinations(**domains)))
    return fault


def _single_workers(max_workers: int) -> tuple[tuple[int, ...], ...]:
    """Each worker alone, where there can be several."""
    return tuple((worker,) for worker in range(max_workers)) if max_workers > 1 else ()


@lru_cache
def _combinations(**domains: tuple[Hashable, ...]) -> st.SearchStrategy[dict[str, Any]]:
    """A value for each of *domains*, by name, drawn together; shrinks to the first of each."""
    places = itertools.product(*(range(len(values)) for values in domains.values()))
    simplest_first = sorted(places, key=lambda positions: (sum(map(bool, positions)), positions))
    names, values = domains.keys(), domains.values()
    return st.sampled_from(
        [
            {name: each[place] for name, each, place in zip(names, values, positions, strict=True)}
            for positions in simplest_first
        ]
    )


class _Target(NamedTuple):
    """A file, or all files, and how often a worker opens or reads it in an epoch, and in all."""

    path: Path
    in_epoch: int
    in_all: int


def _targets(files: DataFiles, kind: type[Fault]) -> st.SearchStrategy[_Target]:
    """One of the files that faults of *kind* can hit, or all of them. Shrinks to the first file."""
    counts = files.count_for(kind)
    paths = [path for path in counts if path == files.focus] or [*counts]
    targets = [_Target(path, counts[path], counts[path] * files.epochs) for path in paths]
    share = math.ceil(sum(counts.values()) / files.workers)
    together = files.together.get(kind.operation) or "*"
    all_files = [_Target(together, share, share * files.epochs)] * len(targets)
    # One file is likelier than all files. This is one list because a choice between two strategies
    # would shrink to the one that does not make a choice.
    once = targets if together == targets[0].path else [*targets, *all_files]
    return st.sampled_from([*once, *targets, *targets])


def _nth_of(target: _Target) -> st.SearchStrategy[int]:
    """The number of the operation. The first one of an epoch is as likely as all others together.

    If a worker runs several epochs, the second is likelier, because it shows what the first left
    behind. The numbers alternate, so that a choice means the same if there are more operations.
    """
    second = target.in_epoch + 1
    firsts = itertools.cycle([second, second, 1] if second <= target.in_all else [1])
    later = range(2, target.in_all + 1)
    return st.sampled_from([1, *(nth for each in later for nth in (each, next(firsts)))])


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
    _require(ints(0), min_workers=min_workers)
    _require(ints(max(1, min_workers)), max_workers=max_workers)
    _require(COUNT, max_batch_size=max_batch_size)
    methods: list[Any] = [None]
    if start_methods is not None:
        methods = choose_arguments(
            ("fork", "spawn", "forkserver"), InvalidArgument, start_methods=start_methods
        )
    _require(FLAG, shuffle=shuffle)
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
