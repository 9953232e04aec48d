"""Many small choices as one, so that a failing example is shrunk in few trials.

Some facts about shrinking. Hypothesis shrinks the sequence of choices that an example was drawn by:
it makes the sequence shorter, then each choice in it smaller. What goes in one step is a run of at
most five choices, and each step is a trial of a few tenths of a second. A fault that is drawn by
seven choices can thus not be taken out of a list of faults; one that is drawn by four can be, in
one step. So all arguments of a fault but its file and its place in time are one choice, among all
their combinations, those first that differ least from the simplest.

Two choices remain: the file that the fault hits, and which of the operations on it.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Hashable, Iterable, Mapping
from functools import lru_cache
from typing import Any, NamedTuple, TypeAlias

from hypothesis import strategies as st
from hypothesis.errors import InvalidArgument

from pytest_dataloader_faults._arguments import Rule, chosen
from pytest_dataloader_faults._settings import Files as Globs
from pytest_dataloader_faults._settings import parse_globs
from pytest_dataloader_faults.battery.survey import DataFiles, Survey
from pytest_dataloader_faults.battery.targets import path_of
from pytest_dataloader_faults.exceptions import InvalidArgumentError
from pytest_dataloader_faults.globs import NETWORK, is_of_network


def require(rule: Rule, **named: Any) -> None:
    """Refuse what *rule* does not allow, as Hypothesis refuses arguments of its strategies."""
    for name, value in named.items():
        rule.check(name, value, error=InvalidArgument)


def require_some(known: Collection[Any], **named: Iterable[Any]) -> list[Any]:
    """The one argument in *named* as a list: at least one of *known*."""
    return chosen(known, InvalidArgument, **named)


@lru_cache
def combinations(**domains: tuple[Hashable, ...]) -> st.SearchStrategy[dict[str, Any]]:
    """A value for each of *domains*, by name, drawn together; shrinks to the first of each."""
    places = itertools.product(*(range(len(values)) for values in domains.values()))
    simplest_first = sorted(places, key=lambda each: (sum(map(bool, each)), each))
    every = [
        {name: values[place] for (name, values), place in zip(domains.items(), each, strict=True)}
        for each in simplest_first
    ]
    return st.sampled_from(every)


Files: TypeAlias = DataFiles | Survey | Globs | None
"""The argument ``files`` of strategies."""

Path: TypeAlias = str | tuple[str, ...]
_NTH = 4


class Target(NamedTuple):
    """A file, or all files, and how often a worker opens or reads it: in one epoch, and in all."""

    path: Path
    in_epoch: int
    in_all: int


def nth_of(target: Target) -> st.SearchStrategy[int]:
    """Which of the operations: as often the first one of an epoch as any other.

    For a worker of two epochs it is rather the second one's: that epoch shows what the first left
    behind. They alternate, so that a place in the list means the same if there are more operations.
    """
    second = target.in_epoch + 1
    firsts = itertools.cycle([second, second, 1] if second <= target.in_all else [1])
    later = range(2, target.in_all + 1)
    return st.sampled_from([1, *(nth for each in later for nth in (each, next(firsts)))])


def data_files(files: Files) -> DataFiles:
    """*files* with what is known of them, which is little for globs."""
    if isinstance(files, Survey):
        return files.files
    if isinstance(files, DataFiles):
        return files
    try:
        globs = parse_globs(files)
    except InvalidArgumentError as error:
        raise InvalidArgument(str(error)) from error
    files_meant = [each for each in globs if not is_of_network(each)]
    counts = dict.fromkeys(files_meant, _NTH)
    connections = dict.fromkeys(filter(is_of_network, globs), _NTH)
    return DataFiles(
        opens=counts, reads=counts, all_files=path_of(tuple(files_meant)), connections=connections
    )


def counts(files: DataFiles, verb: str) -> Mapping[str, int]:
    """How often a worker does in an epoch, to each of *files*, what *verb* says.

    *verb*: ``"open"``, ``"read"``, ``"write"`` or, for its descriptors, which may be inherited,
    ``"keep"``. With ``"connect to"``, one of the TCP connections.
    """
    if verb == "keep":
        return {path: max(1, files.opens.get(path, 0)) for path in files.reads}
    every = {"open": files.opens, "write": files.writes, "connect to": files.connections}
    return every.get(verb, files.reads)


def operations(files: DataFiles, verb: str) -> st.SearchStrategy[Target]:
    """One of the files that workers *verb*, or all of them; the first one first."""
    each_count = counts(files, verb)
    named = [path for path in each_count if path == files.focus] or [*each_count]
    each = [_target(path, each_count[path], files.epochs) for path in named]
    share = math.ceil(sum(each_count.values()) / files.workers)
    together = {"connect to": f"{NETWORK}*", "write": files.all_written}.get(verb, files.all_files)
    every = _target(together, share, files.epochs)
    # Rather one file than all files. This is one list: a choice between two strategies would shrink
    # to the one that makes no choice of its own.
    once = [*each, *([every] * len(each))] if every.path != each[0].path else each
    return st.sampled_from([*once, *each, *each])


def _target(path: Path, in_epoch: int, epochs: int) -> Target:
    return Target(path, in_epoch, in_epoch * epochs)
