"""Many small choices as one, so that a failing example is shrunk in few trials."""

from __future__ import annotations

import glob
import itertools
import math
from collections import defaultdict
from collections.abc import Collection, Hashable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, NamedTuple, TypeAlias

from hypothesis import strategies as st
from hypothesis.errors import InvalidArgument

from pytest_dataloader_faults._arguments import ArgumentRule, choose_arguments
from pytest_dataloader_faults._settings import Files as Globs
from pytest_dataloader_faults._settings import parse_globs
from pytest_dataloader_faults.battery.targets import path_of, portable_globs
from pytest_dataloader_faults.battery.workload import Workload
from pytest_dataloader_faults.exceptions import InvalidArgumentError
from pytest_dataloader_faults.faults import (
    KINDS,
    ClosedDescriptor,
    Fault,
    OpenError,
    ReadError,
)
from pytest_dataloader_faults.faults.base import Place, default_path
from pytest_dataloader_faults.faults.globs import is_address

# Some facts about shrinking. Hypothesis shrinks the sequence of choices that drew an example: it
# makes the sequence shorter, then each choice smaller. One step removes at most five consecutive
# choices, and each step is a trial of a few tenths of a second. So a fault that is drawn by seven
# choices cannot be removed from a list of faults, but one that is drawn by four can be removed in
# one step. Therefore all arguments of a fault, except for its file and its operation, are one
# choice among all their combinations, ordered by how much they differ from the simplest.
#
# Two choices remain: the file that the fault hits, and the operation on it.


def require(rule: ArgumentRule, **arguments: Any) -> None:
    """Raise Hypothesis' InvalidArgument for *arguments* that *rule* does not allow."""
    for name, value in arguments.items():
        rule.check(name, value, error=InvalidArgument)


def require_some(options: Collection[Any], **argument: Iterable[Any]) -> list[Any]:
    """The value of *argument* as a list: at least one of *options*."""
    return choose_arguments(options, InvalidArgument, **argument)


@lru_cache
def combinations(**domains: tuple[Hashable, ...]) -> st.SearchStrategy[dict[str, Any]]:
    """A value for each of *domains*, by name, drawn together; shrinks to the first of each."""
    places = itertools.product(*(range(len(values)) for values in domains.values()))
    simplest_first = sorted(places, key=lambda positions: (sum(map(bool, positions)), positions))
    choices = [
        {
            name: values[place]
            for (name, values), place in zip(domains.items(), positions, strict=True)
        }
        for positions in simplest_first
    ]
    return st.sampled_from(choices)


def operations_on(glob: str | None = None) -> tuple[str, ...]:
    """What workers may do to paths, named as by ``Fault.operation``.

    *glob*: only to what it matches. Whether they change a file, it does not say.
    """
    kinds = [each for each in KINDS.values() if each.operation and default_path(each)]
    if glob is not None:
        readers = (each for each in kinds if each.happens_in & Place.OF_READERS)
        kinds = [
            each for each in readers if is_address(str(default_path(each))) == is_address(glob)
        ]
    return tuple(dict.fromkeys(each.operation for each in kinds))


Path: TypeAlias = str | tuple[str, ...]
_OF_SOURCES: tuple[str, ...] = ("opens", "reads")
"""Operations of which a glob for all files means those of either: some are open before."""


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
    tolerated_errors: tuple[OpenError | ReadError, ...] | None = None

    @classmethod
    def of(cls, workload: Workload, samples: int) -> DataFiles:
        """The files of *workload*, for a dataset with this many *samples*."""
        by_path = {each: workload.count_per_file(each) for each in operations_on()}
        sources = {path for each in _OF_SOURCES for path in by_path[each]}
        counts: dict[str, Mapping[str, int]] = {}
        together: dict[str, Path] = {}
        for operation, path_counts in by_path.items():
            paths = sources if operation in _OF_SOURCES else {*path_counts}
            names, all_paths = _name_paths(paths, workload, operation)
            counts[operation] = {names[path]: count for path, count in path_counts.items()}
            together[operation] = all_paths
        starts = workload.count_busiest("starts")
        return cls(
            counts={**counts, "starts": {"": starts} if starts else {}},
            together=together,
            batches=max((each.fetches for each in workload.fault_free.workers), default=0) or 1,
            samples=samples,
        )

    def count(self, operation: str) -> Mapping[str, int]:
        """How often one worker does *operation* in an epoch, by glob."""
        return self.counts.get(operation, {})

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


Files: TypeAlias = DataFiles | Globs | None
"""The argument ``files`` of strategies."""

_NTH = 4


def _name_paths(
    paths: Collection[str], workload: Workload, operation: str
) -> tuple[dict[str, str], Path]:
    """A glob for each of *paths*, and one or several for all of them together."""
    if workload.known_paths.issuperset(paths):
        return portable_globs(sorted(paths), workload.known_paths)
    return {path: glob.escape(path) for path in paths}, workload.path_of(operation)


class Target(NamedTuple):
    """A file, or all files, and how often a worker opens or reads it: in one epoch, and in all."""

    path: Path
    in_epoch: int
    in_all: int


def nth_of(target: Target) -> st.SearchStrategy[int]:
    """The number of the operation. The first one of an epoch is as likely as all others together.

    If a worker runs several epochs, the second is likelier, because it shows what the first left
    behind. The numbers alternate, so that a choice means the same if there are more operations.
    """
    second = target.in_epoch + 1
    firsts = itertools.cycle([second, second, 1] if second <= target.in_all else [1])
    later = range(2, target.in_all + 1)
    return st.sampled_from([1, *(nth for each in later for nth in (each, next(firsts)))])


def data_files(files: Files) -> DataFiles:
    """*files* as ``DataFiles``; for globs, the number of operations is a guess."""
    if isinstance(files, DataFiles):
        return files
    try:
        globs = parse_globs(files)
    except InvalidArgumentError as error:
        raise InvalidArgument(str(error)) from error
    counts: defaultdict[str, dict[str, int]] = defaultdict(dict)
    for each in globs:
        for operation in operations_on(each):
            counts[operation][each] = _NTH
    together = {operation: path_of(tuple(paths)) for operation, paths in counts.items()}
    return DataFiles(counts={**counts, "starts": {"": _NTH}}, together=together)


def count_operations(files: DataFiles, kind: type[Fault]) -> Mapping[str, int]:
    """How often a worker does what faults of *kind* are about in an epoch, by glob."""
    if kind is ClosedDescriptor:  # The descriptor may be inherited.
        opens = files.count("opens")
        return {path: max(1, opens.get(path, 0)) for path in files.count("reads")}
    return files.count(kind.operation)


def operations(files: DataFiles, kind: type[Fault]) -> st.SearchStrategy[Target]:
    """One of the files that faults of *kind* can hit, or all of them. Shrinks to the first file."""
    each_count = count_operations(files, kind)
    paths = [path for path in each_count if path == files.focus] or [*each_count]
    targets = [_target(path, each_count[path], files.epochs) for path in paths]
    share = math.ceil(sum(each_count.values()) / files.workers)
    all_files = _target(files.together.get(kind.operation) or "*", share, files.epochs)
    # One file is likelier than all files. This is one list because a choice between two strategies
    # would shrink to the one that does not make a choice.
    once = (
        [*targets, *([all_files] * len(targets))] if all_files.path != targets[0].path else targets
    )
    return st.sampled_from([*once, *targets, *targets])


def _target(path: Path, in_epoch: int, epochs: int) -> Target:
    return Target(path, in_epoch, in_epoch * epochs)
