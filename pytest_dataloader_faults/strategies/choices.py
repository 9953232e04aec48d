"""Many small choices as one, so that a failing example is shrunk in few trials.

Some facts about shrinking. Hypothesis shrinks the sequence of choices that drew an example: it
makes the sequence shorter, then each choice smaller. One step removes at most five consecutive
choices, and each step is a trial of a few tenths of a second. So a fault that is drawn by seven
choices cannot be removed from a list of faults, but one that is drawn by four can be removed in one
step. Therefore all arguments of a fault, except for its file and its operation, are one choice
among all their combinations, ordered by how much they differ from the simplest.

Two choices remain: the file that the fault hits, and the operation on it.
"""

from __future__ import annotations

import glob
import itertools
import math
from collections.abc import Collection, Hashable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, NamedTuple, TypeAlias

from hypothesis import strategies as st
from hypothesis.errors import InvalidArgument

from pytest_dataloader_faults._arguments import ArgumentRule, choose_arguments
from pytest_dataloader_faults._settings import Files as Globs
from pytest_dataloader_faults._settings import parse_globs
from pytest_dataloader_faults.battery.targets import (
    count_starts,
    listed_folders,
    path_of,
    portable_globs,
)
from pytest_dataloader_faults.battery.workload import Workload
from pytest_dataloader_faults.exceptions import InvalidArgumentError
from pytest_dataloader_faults.faults import OpenError, ReadError
from pytest_dataloader_faults.faults.globs import NETWORK, is_network_glob


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


@dataclass(frozen=True, kw_only=True)
class DataFiles:
    """The files that a dataset reads, as globs, in alphabetical order.

    A glob is the end of a path, such as ``"*/03.rec"``, if it matches only one file. So a schedule
    stays valid if the data is in another folder, such as another ``tmp_path``.

    Attributes:
        opens: How often one worker opens each file in an epoch.
        reads: How often one worker reads each file in an epoch. Mapping it counts as one read.
        all_files: A glob, or globs, for all these files together.
        writes: How often one worker writes each file of the trial's own folder in an epoch.
        all_written: A glob, or globs, for all written files together.
        listings: How often one worker lists each folder in an epoch.
        locks: How often one worker locks each file in an epoch.
        starts: How many threads and processes one worker starts in an epoch.
        batches: How many batches one worker makes in an epoch.
        samples: How many samples the dataset has.
        workers: How many workers share the files.
        epochs: How many epochs a worker lives for.
        focus: The only file that single-file faults hit; by default each file.
        connections: How often one worker opens each TCP connection in an epoch, by its path.
        tolerated_errors: Transient errors that the dataset survives; None if unknown.
    """

    opens: Mapping[str, int]
    reads: Mapping[str, int]
    all_files: str | tuple[str, ...] = "*"
    batches: int = 4
    samples: int = 16
    workers: int = 1
    epochs: int = 1
    focus: str | None = None
    tolerated_errors: tuple[OpenError | ReadError, ...] | None = None
    connections: Mapping[str, int] = field(default_factory=dict)
    writes: Mapping[str, int] = field(default_factory=dict)
    all_written: str | tuple[str, ...] = "*"
    listings: Mapping[str, int] = field(default_factory=dict)
    locks: Mapping[str, int] = field(default_factory=dict)
    starts: int = 0

    @classmethod
    def of(cls, workload: Workload, samples: int) -> DataFiles:
        """The files of *workload*, for a dataset with this many *samples*."""
        opens, reads = workload.count_per_file("opens"), workload.count_per_file("reads")
        writes = workload.count_per_file("writes")
        locks = {path: count for path, count in workload.count_per_file("locks").items() if count}
        # The python engine cannot cut off responses.
        connections = {} if workload.is_python_engine else workload.count_per_file("connections")
        listings = listed_folders(workload.fault_free, workload.paths)
        names, all_files = portable_globs(sorted({*opens, *reads}), workload.known_paths)
        written_names, all_written = portable_globs(writes, workload.known_paths)
        return cls(
            opens={names[path]: count for path, count in opens.items()},
            reads={names[path]: count for path, count in reads.items()},
            all_files=all_files or "*",
            connections={glob.escape(path): count for path, count in connections.items()},
            writes={written_names[path]: count for path, count in writes.items()},
            all_written=all_written or "*",
            listings={glob.escape(path): count for path, count in listings.items()},
            locks={glob.escape(path): count for path, count in locks.items()},
            starts=count_starts(workload.fault_free),
            batches=max((each.fetches for each in workload.fault_free.workers), default=0) or 1,
            samples=samples,
        )

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

Path: TypeAlias = str | tuple[str, ...]
_NTH = 4


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
    files_meant = [each for each in globs if not is_network_glob(each)]
    counts = dict.fromkeys(files_meant, _NTH)
    connections = dict.fromkeys(filter(is_network_glob, globs), _NTH)
    return DataFiles(
        opens=counts,
        reads=counts,
        all_files=path_of(tuple(files_meant)),
        connections=connections,
        listings=counts,
        locks=counts,
        starts=_NTH,
    )


def count_operations(files: DataFiles, verb: str) -> Mapping[str, int]:
    """How often a worker does what *verb* says in an epoch, for each of *files*.

    *verb*: ``"open"``, ``"read"``, ``"write"``, ``"lock"`` or, for its descriptors, which may be
    inherited, ``"keep"``. With ``"list"``, one of the folders, and with ``"connect to"``, one of
    the TCP connections.
    """
    if verb == "keep":
        return {path: max(1, files.opens.get(path, 0)) for path in files.reads}
    counts_by_verb = {
        "open": files.opens,
        "write": files.writes,
        "list": files.listings,
        "lock": files.locks,
        "connect to": files.connections,
    }
    return counts_by_verb.get(verb, files.reads)


def operations(files: DataFiles, verb: str) -> st.SearchStrategy[Target]:
    """One of the files that workers *verb*, or all of them. It shrinks to the first file."""
    each_count = count_operations(files, verb)
    paths = [path for path in each_count if path == files.focus] or [*each_count]
    targets = [_target(path, each_count[path], files.epochs) for path in paths]
    share = math.ceil(sum(each_count.values()) / files.workers)
    together_by_verb = {
        "connect to": f"{NETWORK}*",
        "write": files.all_written,
        "list": path_of(tuple(files.listings)),
    }
    together = together_by_verb.get(verb, files.all_files)
    all_files = _target(together, share, files.epochs)
    # One file is likelier than all files. This is one list because a choice between two strategies
    # would shrink to the one that does not make a choice.
    once = (
        [*targets, *([all_files] * len(targets))] if all_files.path != targets[0].path else targets
    )
    return st.sampled_from([*once, *targets, *targets])


def _target(path: Path, in_epoch: int, epochs: int) -> Target:
    return Target(path, in_epoch, in_epoch * epochs)
