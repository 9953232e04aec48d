"""The samples of a fault-free run, and the ways to compare samples with them. Pure."""

from __future__ import annotations

import functools
import itertools
import re
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, TypeAlias

from pytest_dataloader_faults.exceptions import InvalidArgumentError
from pytest_dataloader_faults.outcomes.comparison import EXACT, Compared, Comparison
from pytest_dataloader_faults.outcomes.contract import Contract
from pytest_dataloader_faults.outcomes.records import ZEROS, Leaves


@dataclass(frozen=True)
class Share:
    """The part of a stream that one worker returned in the fault-free run.

    Attributes:
        worker: The worker's id.
        samples: The digest of each sample.
        files: How many data files it opened or read.
        parts: The digest of each row, if a stream makes its own batches.
    """

    worker: int
    samples: tuple[str, ...]
    files: int
    parts: tuple[str, ...] = ()


@dataclass(frozen=True)
class Reference:
    """The samples of a dataset without faults, read one by one in one process.

    Attributes:
        kind: ``"map"`` or ``"iterable"``.
        samples: A digest per index (map) or in order (iterable); empty if batches cannot be split.
        batches: The digests of the rows, or of the whole, per tuple of indices, if batches cannot
            be split into samples: rows depend on the other samples of a batch, as with padding.
        unstable_index: The index of a sample that differed between two reads, or None.
        unstable_part: What was different in that sample, as text.
        leaves: The parts of the first samples, by the same indices.
        nondeterministic_count: How many samples had different bytes when they were read again.
        varying: The parts that differed; empty if there were too many.
        draws_random_numbers: Whether samples draw numbers from the global generators of torch,
            NumPy or Python; unknown, and False, if these are seeded.
        second_pass_count: How many samples a stream returned in a second pass, if fewer.
        comparison: How samples are compared, as in an outcome.
        limit: About how many samples were requested; None for all.
        total: How many samples there are to draw.
        readable: The same, or the length of the dataset if the loader has a custom sampler.
        whole_batches: Whether *limit* leaves room for batches of the loader's own size.
        stream_limit: After how many samples an endless stream was stopped; None if it ended.
        shares: The part of a stream that each worker returned in the fault-free run, if known.
        drawn: How many samples the sampler drew in the fault-free run, if it drew as many batches
            as its length promises.
        duration: Seconds from the start of its process to its end.
        draws: What the sampler drew for each batch, pickled and in base64; empty for a stream.
        is_whole: Whether each epoch has each of these samples exactly once; a sampler may draw some
            at random.
        members: The reference of each member of a group of jobs, if this is that of the group.
        parts: The digests of the rows of each batch, for a stream that makes its own batches.
        is_of_worker: Whether a worker has read the samples, because no other process could.
        is_of_all_workers: Whether all workers have read them, because one worker alone could not.
        undivided_samples: The digests that all members of a group return together of a stream; the
            part of each may differ from epoch to epoch. Empty if this reference is complete.
        lacks_workers: Whether the loader has ``num_workers=0``, torch's default.
        displaced: What may be at an index, or in a batch, if the dataset lacks a file of an earlier
            sample: samples of later indices, with the random numbers of these.
    """

    kind: str
    samples: tuple[tuple[Any, str], ...]
    batches: tuple[tuple[tuple[Any, ...], tuple[str, ...]], ...] = ()
    unstable_index: Any = None
    unstable_part: str = ""
    leaves: tuple[tuple[Any, Leaves], ...] = ()
    nondeterministic_count: int = field(default=0, compare=False)
    varying: tuple[Varying, ...] = field(default=(), compare=False)
    draws_random_numbers: bool = False
    second_pass_count: int | None = None
    comparison: Comparison = EXACT
    limit: int | None = None
    total: int | None = None
    readable: int | None = field(default=None, compare=False)
    whole_batches: bool = field(default=False, compare=False)
    stream_limit: int | None = None
    shares: tuple[Share, ...] = field(default=(), compare=False)
    drawn: int | None = field(default=None, compare=False)
    duration: float = field(default=0.0, compare=False)
    draws: tuple[str, ...] = field(default=(), repr=False, compare=False)
    is_whole: bool = field(default=True, compare=False)
    members: tuple[Reference, ...] = field(default=(), repr=False, compare=False)
    parts: tuple[tuple[str, ...], ...] = field(default=(), repr=False, compare=False)
    is_of_worker: bool = field(default=False, compare=False)
    is_of_all_workers: bool = field(default=False, compare=False)
    undivided_samples: tuple[str, ...] = field(default=(), repr=False, compare=False)
    lacks_workers: bool = field(default=False, compare=False)
    displaced: tuple[tuple[Any, Any], ...] = field(default=(), repr=False, compare=False)

    @functools.cached_property
    def digests(self) -> Mapping[Any, str]:
        """The digest of each sample, by its index."""
        return dict(self.samples)

    @property
    def has_content(self) -> bool:
        """Whether any content of its samples is compared, as far as their parts are recorded."""
        return any(digest for _, parts in self.leaves for _, _, digest in parts)

    @property
    def stream_count(self) -> int | None:
        """How many samples a stream has; None if it is endless, and for a map-style dataset."""
        has_end = self.kind == "iterable" and self.stream_limit is None
        return len(self.samples) if has_end else None

    def mixes(self, indices: Iterable[Any]) -> bool:
        """Whether the samples with these *indices* differ in their shapes, as far as recorded."""
        names = set(indices)
        forms = (tuple(each[1] for each in parts) for name, parts in self.leaves if name in names)
        return len(set(forms)) > 1


def join_references(of_workers: Sequence[Reference]) -> Reference:
    """The reference of a stream whose parts the workers have read, in their order."""
    begins = itertools.accumulate((len(each.samples) for each in of_workers), initial=0)
    parts = list(zip(begins, of_workers, strict=False))
    begin, unstable = next((each for each in parts if each[1].unstable_index is not None), parts[0])
    is_stable = unstable.unstable_index is None
    is_short = any(each.second_pass_count is not None for each in of_workers)
    limits = [each.stream_limit for each in of_workers if each.stream_limit is not None]
    has_parts = all(each.parts for each in of_workers)
    return replace(
        unstable,
        samples=_renumber((begin, each.samples) for begin, each in parts),
        leaves=_renumber((begin, each.leaves) for begin, each in parts),
        unstable_index=None if is_stable else begin + unstable.unstable_index,
        nondeterministic_count=sum(each.nondeterministic_count for each in of_workers),
        varying=_merge_varying(of_workers),
        second_pass_count=sum(map(_count_again, of_workers)) if is_short else None,
        stream_limit=max(limits, default=None),
        parts=tuple(part for each in of_workers for part in each.parts) if has_parts else (),
    )


def _renumber(parts: Iterable[tuple[int, Sequence[tuple[int, Any]]]]) -> tuple[Any, ...]:
    return tuple((begin + number, value) for begin, part in parts for number, value in part)


def _count_again(reference: Reference) -> int:
    """How many samples a stream returned in its second pass."""
    count = reference.second_pass_count
    return len(reference.samples) if count is None else count


def _merge_varying(references: Sequence[Reference]) -> tuple[Varying, ...]:
    """The parts that vary in any of the *references*; none if one has too many."""
    if any(each.nondeterministic_count and not each.varying for each in references):
        return ()
    counts = Counter[str]()
    for part in (part for each in references for part in each.varying):
        counts[part.path] += part.samples
    levels: Levels = ()
    for reference in references:
        levels = merge_levels(levels, _levels(reference.varying))
    return tuple(Varying(path, level, counts[path]) for path, level in levels)


def nondeterminism_message(reference: Reference, contract: Contract) -> str:
    """The error if a sample differs between two reads under every comparison of *contract*."""
    index = reference.unstable_index
    text = f"sample {index!r} was different when it was read a second time in the same process"
    if reference.unstable_part:
        text += f": {reference.unstable_part}"
    if contract.key:
        return f"{text}. The contract's key must return the same for both"
    return (
        f"{text}. Not even the types are the same, so a wrong sample could not be recognized."
        " Declare what counts as the same sample: Contract(key=...)"
    )


def require_samples(reference: Reference, contract: Contract) -> None:
    """Reject a contract about single samples if batches cannot be split into samples."""
    if (contract.may_skip or contract.may_substitute) and not reference.samples:
        message = (
            f"contract={contract!r}: the batches cannot be split into samples, so the battery"
            " cannot see which samples are missing or replaced. Declare how to split them:"
            " Contract(split=...)"
        )
        raise InvalidArgumentError(message)


def difference(expected: Leaves, delivered: Leaves) -> str:
    """The first part of a sample that differs from the reference; empty if none is known."""
    if not expected or not delivered:
        return ""
    expected_parts = {path: (form, digest) for path, form, digest in expected}
    for path, form, digest in delivered:
        if path not in expected_parts:
            return f"it has {path}, which is not in the reference"
        if expected_parts[path] != (form, digest if expected_parts[path][1] else ""):
            return _differs(path, expected_parts[path], (form, digest))
    paths = {path for path, _, _ in delivered}
    absent = next((path for path in expected_parts if path not in paths), None)
    return "" if absent is None else f"{absent} is missing"


_LONG = 24
"""The length of digests. Anything shorter is the value itself."""


def _differs(path: str, expected: tuple[str, str], delivered: tuple[str, str]) -> str:
    if expected[0] != delivered[0]:
        return f"{path or 'it'} is {delivered[0]} instead of {expected[0]}"
    part = f"{path} ({delivered[0]})" if path else delivered[0]
    if delivered[1] == ZEROS:
        return f"{part} is all zeros, unlike in the reference"
    if expected[1] != ZEROS and max(len(expected[1]), len(delivered[1])) < _LONG:
        return f"{path or 'it'} is {delivered[1]} instead of {expected[1]}"
    return f"{part} differs from the reference"


# Some facts about samples that differ each time they are read. Most of their parts are the same:
# only the load time differs, or the crop but not the label. So each part is compared as closely as
# two reads without a fault agree on it. If the length of a list varies, its items are compared by
# type. If the keys of a mapping vary, nothing in the mapping is compared.


_SHAPE = re.compile(r" \([\d, ]*\)| of \d+$")
_PLACE = re.compile(r"\[\d+\]")
_MOST, _MOST_IN_ONE = 64, 16
"""The most parts in all, and in one list; of a longer list, the types are compared."""


class Leaf(NamedTuple):
    """One part: ``['boxes'][0]``, ``Tensor torch.float32 (4, 4)``, and a digest of its content.

    The digest of a container is empty, because its items are separate parts.
    """

    path: str
    form: str
    digest: str


class Varying(NamedTuple):
    """A part that differed between two reads.

    Attributes:
        path: The path of the part.
        compared: Which aspect of it was the same.
        samples: In how many samples it differed.
    """

    path: str
    compared: Compared
    samples: int = 0


Levels: TypeAlias = tuple[tuple[str, Compared], ...]
"""How each part that varies is compared, by path, as in a ``Comparison``."""
Reading: TypeAlias = Sequence[tuple[Hashable, Sequence[Leaf]]]
"""The parts of each sample, by its index; None for a stream, whose order may vary."""


def without_shape(part: Leaf) -> Leaf:
    """*part* with its type, and without its shape or length."""
    return part._replace(form=_SHAPE.sub("", part.form))


def types_of(parts: Iterable[Leaf]) -> list[Leaf]:
    """The types at each path: items of a list share one, and shapes and content are ignored."""
    return sorted(
        {Leaf(_PLACE.sub("[]", each.path), without_shape(each).form, "") for each in parts}
    )


def compared_parts(parts: Iterable[Leaf], levels: Levels) -> list[Leaf]:
    """*parts*, reduced to what is compared of those that vary."""
    by_path = dict(levels)
    reduced: list[Leaf] = []
    inside: defaultdict[str, list[Leaf]] = defaultdict(list)
    for part in parts:
        above = next(
            (path for path, _ in _close_levels(levels) if is_inside(part.path, path)), None
        )
        if above is None:
            reduced.append(_reduce(part, by_path.get(part.path, Compared.BYTES)))
        elif by_path[above] is Compared.TYPES:
            inside[above].append(part._replace(path=part.path.removeprefix(above)))
    for above, items in inside.items():
        reduced += [each._replace(path=above + each.path) for each in types_of(items)]
    return reduced


def comparable(parts: Leaves, levels: Levels) -> Leaves:
    """``compared_parts`` of the reported parts of a sample."""
    if not levels:
        return parts
    compared = compared_parts((Leaf(*part) for part in parts), levels)
    return tuple((part.path, part.form, part.digest) for part in compared)


def is_inside(path: str, container: str) -> bool:
    """Whether the part at *path* is in the *container*, at any depth."""
    suffix = path.removeprefix(container)
    return path != container and path.startswith(container) and suffix[0] in "[. "


def merge_levels(levels: Levels, additions: Levels) -> Levels:
    """The parts that vary in either, each compared by what is the same in both."""
    by_path: dict[str, Compared] = {}
    for path, level in (*levels, *additions):
        by_path[path] = max(level, by_path.get(path, level), key=_ORDER.index)
    return tuple(sorted(by_path.items()))


def find_varying(first: Reading, second: Reading) -> tuple[Varying, ...]:
    """The parts that differ between two reads of the same samples; empty if there are too many."""
    first_parts, second_parts = _by_path(first), _by_path(second)
    varying: dict[str, Varying] = {}
    for path in dict.fromkeys((*first_parts, *second_parts)):
        is_closed = any(
            is_inside(path, name) for name, _ in _close_levels(_levels(varying.values()))
        )
        if is_closed or first_parts[path] == second_parts[path]:
            continue
        part = _varying_at(path, first_parts, second_parts)
        if part.compared is Compared.TYPES and not _has_same_types(path, first, second):
            part = part._replace(compared=Compared.NOTHING)
        varying[part.path] = part
    return _in_few_parts(varying)


_ORDER = (Compared.BYTES, Compared.SHAPES, Compared.TYPES, Compared.NOTHING)
"""The closest comparison first."""
_CLOSED = (Compared.TYPES, Compared.NOTHING)
"""Parts inside such a container have no separate level."""
_Samples: TypeAlias = Counter[tuple[Hashable, Leaf]]
"""The parts at one path, by sample."""


def _close_levels(levels: Levels) -> Levels:
    return tuple((path, level) for path, level in levels if level in _CLOSED)


def _levels(varying: Iterable[Varying]) -> Levels:
    return tuple((part.path, part.compared) for part in varying)


def _reduce(part: Leaf, level: Compared) -> Leaf:
    """*part*, reduced to what is compared at *level*."""
    if level is Compared.NOTHING:
        return part._replace(form="", digest="")
    if level is Compared.TYPES:
        return without_shape(part)._replace(digest="")
    return part._replace(digest="") if level is Compared.SHAPES else part


def _by_path(reading: Reading) -> defaultdict[str, _Samples]:
    samples_by_path: defaultdict[str, _Samples] = defaultdict(Counter)
    for key, parts in reading:
        for part in parts:
            samples_by_path[part.path][key, part] += 1
    return samples_by_path


def _varying_at(
    path: str, first_parts: Mapping[str, _Samples], second_parts: Mapping[str, _Samples]
) -> Varying:
    """What differs at *path*, or in its container if the part is sometimes missing."""
    count = max(
        (first_parts[path] - second_parts[path]).total(),
        (second_parts[path] - first_parts[path]).total(),
    )
    if _reduce_samples(Compared.NOTHING, first_parts[path]) != _reduce_samples(
        Compared.NOTHING, second_parts[path]
    ):
        containers = (name for name in (*first_parts, *second_parts) if is_inside(path, name))
        return Varying(max(containers, key=len, default=""), Compared.NOTHING, count)
    levels = (Compared.SHAPES, Compared.TYPES)
    same = (
        each
        for each in levels
        if _reduce_samples(each, first_parts[path]) == _reduce_samples(each, second_parts[path])
    )
    return Varying(path, next(same, Compared.NOTHING), count)


def _reduce_samples(level: Compared, samples: _Samples) -> _Samples:
    reduced: _Samples = Counter()
    for (key, part), count in samples.items():
        reduced[key, _reduce(part, level)] += count
    return reduced


def _has_same_types(path: str, first: Reading, second: Reading) -> bool:
    """Whether the items of the container at *path* have the same types in both reads."""
    levels = ((path, Compared.TYPES),)
    first_types, second_types = (
        Counter(
            (key, part)
            for key, parts in reading
            for part in compared_parts(parts, levels)
            if is_inside(part.path, path)
        )
        for reading in (first, second)
    )
    return first_types == second_types


def _in_few_parts(varying: Mapping[str, Varying]) -> tuple[Varying, ...]:
    """*varying*, with a list instead of its items if many of them vary; empty if too many do."""
    lists: defaultdict[str, list[Varying]] = defaultdict(list)
    for part in varying.values():
        if places := list(_PLACE.finditer(part.path)):
            lists[part.path[: places[-1].start()]].append(part)
    closed = dict(_close_levels(_levels(varying.values())))
    parts_by_path = dict(varying)
    for path, parts in lists.items():
        if len(parts) > _MOST_IN_ONE and path not in closed:
            closed[path] = Compared.TYPES
            parts_by_path[path] = Varying(path, Compared.TYPES, max(part.samples for part in parts))
    remaining = tuple(
        part
        for part in parts_by_path.values()
        if not any(is_inside(part.path, each) for each in closed)
    )
    return remaining if len(remaining) <= _MOST else ()
