"""What a dataset gives when nothing is wrong, and the ways to compare samples with it. Pure."""

from __future__ import annotations

import functools
import re
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from pytest_dataloader_faults.exceptions import InvalidArgumentError
from pytest_dataloader_faults.outcomes.contract import EXACT, Compared, Comparison, Contract
from pytest_dataloader_faults.outcomes.records import ZEROS, Leaves

if TYPE_CHECKING:
    from pytest_dataloader_faults.outcomes.records import Pass, TrialFacts


@dataclass(frozen=True)
class Share:
    """What one worker gave of a stream in the run without a fault.

    Attributes:
        worker: Its id.
        samples: The digest of each sample.
        files: How many data files it opened or read.
    """

    worker: int
    samples: tuple[str, ...]
    files: int


@dataclass(frozen=True)
class Reference:
    """What a dataset gives when nothing is wrong, taken sample by sample in one process.

    Attributes:
        kind: ``"map"`` or ``"iterable"``.
        samples: A digest per index (map) or in order (iterable); empty if batches cannot be split.
        batches: A digest per tuple of indices, where batches do not come apart into samples.
        unstable_index: The index of a sample that was not the same twice, or None.
        unstable_part: What was different in that sample, for people.
        leaves: What the first samples are made of, by the same indices.
        nondeterministic_count: How many samples had other bytes in a second reading.
        varying: The parts that differed then; empty if too many did.
        draws_random_numbers: Whether samples draw numbers of torch's, NumPy's or Python's global
            generator; not asked where these are seeded.
        second_pass_count: How many samples a stream gave in a second pass, if fewer.
        pickled_samples: The samples, pickled and in base64, for the author's own ``compare``.
        comparison: What of samples is compared, as in an outcome.
        limit: About how many samples were asked for; None for all.
        total: How many samples there are to draw, as in a pass.
        whole_batches: Whether *limit* has room for batches of the size that the loader makes.
        stream_limit: After how many samples a stream was left that did not end; None if it did.
        shares: What each worker gave of a stream in the run without a fault, if that is known.
        drawn: How many samples the sampler drew in the run without a fault, if it drew as many
            batches as its length says.
        duration: Seconds from the start of its process to its end.
        asked: How many of the samples were asked for at first; the others were added later.
        is_whole: Whether each epoch has these samples, each of them once; a sampler may draw some
            at random.
        ranks: What each rank gives, if there are several.
        parts: Of a stream that makes its own batches: the digests of the rows of each.
        is_of_worker: Whether a worker has read the samples, since no other process could.
        whole: What all ranks give together of a stream, by digest; each may have another part of it
            in another epoch. Empty where this is the whole.
    """

    kind: str
    samples: tuple[tuple[Any, str], ...]
    batches: tuple[tuple[tuple[Any, ...], str], ...] = ()
    unstable_index: Any = None
    unstable_part: str = ""
    leaves: tuple[tuple[Any, Leaves], ...] = ()
    nondeterministic_count: int = field(default=0, compare=False)
    varying: tuple[Varying, ...] = field(default=(), compare=False)
    draws_random_numbers: bool = False
    second_pass_count: int | None = None
    pickled_samples: tuple[tuple[Any, str], ...] = field(default=(), repr=False)
    comparison: Comparison = EXACT
    limit: int | None = None
    total: int | None = None
    whole_batches: bool = field(default=False, compare=False)
    stream_limit: int | None = None
    shares: tuple[Share, ...] = field(default=(), compare=False)
    drawn: int | None = field(default=None, compare=False)
    duration: float = field(default=0.0, compare=False)
    asked: int | None = field(default=None, compare=False)
    is_whole: bool = field(default=True, compare=False)
    ranks: tuple[Reference, ...] = field(default=(), repr=False, compare=False)
    parts: tuple[tuple[str, ...], ...] = field(default=(), repr=False, compare=False)
    is_of_worker: bool = field(default=False, compare=False)
    whole: tuple[str, ...] = field(default=(), repr=False, compare=False)

    @functools.cached_property
    def digests(self) -> Mapping[Any, str]:
        """The digest of each sample, by its index."""
        return dict(self.samples)

    @property
    def has_content(self) -> bool:
        """Whether any content of its samples is compared, as far as their parts are known."""
        return any(digest for _, parts in self.leaves for _, _, digest in parts)

    @property
    def stream_count(self) -> int | None:
        """How many samples a stream has; None of one without an end, and of indices."""
        has_end = self.kind == "iterable" and self.stream_limit is None
        return len(self.samples) if has_end else None

    def unknown_batches(self, outcome: TrialFacts) -> list[tuple[Any, ...]]:
        """The batches of *outcome* that this reference does not know; samplers may draw others."""
        if self.kind == "iterable":
            return []
        samples, batches = self.digests, dict(self.batches)
        passes = [*outcome.passes, *([outcome.recovery] if outcome.recovery else [])]
        passes = [each for each in passes if not is_resized(each, outcome, self)]
        asked = dict.fromkeys(each.indices or () for one in passes for each in one.delivered)
        if samples:
            return [indices for indices in asked if not samples.keys() >= set(indices)]
        return [indices for indices in asked if indices not in batches]

    def merged_with(self, other: Reference) -> Reference:
        """This and what *other* knows."""
        names = ("samples", "batches", "leaves", "pickled_samples")
        asked = len(self.samples or self.batches) if self.asked is None else self.asked
        return replace(
            self,
            asked=asked,
            **{name: getattr(self, name) + getattr(other, name) for name in names},
        )


def is_resized(one: Pass, outcome: TrialFacts, reference: Reference) -> bool:
    """Whether the dataset of *one* was made under faults, or after them, and has another length."""
    is_known = one.length is not None and reference.total is not None
    return outcome.from_start and is_known and one.length != reference.total


def nondeterminism_message(reference: Reference, contract: Contract) -> str:
    """What to say where no comparison of *contract* finds a sample to be the same twice."""
    index = reference.unstable_index
    what = f"sample {index!r} was different when it was read a second time in the same process"
    if reference.unstable_part:
        what += f": {reference.unstable_part}"
    if contract.deterministic:
        return (
            f"the contract promises deterministic=True, but {what}. Seed samples by their index,"
            " turn augmentation off in the test, or leave deterministic out"
        )
    if contract.compare:
        return f"{what}. The contract's compare has to say that the two are the same"
    return (
        f"{what}. Not even types are the same, so a wrong sample could not be told. Say what is"
        " the same: Contract(compare=...)"
    )


def require_samples(reference: Reference, contract: Contract) -> None:
    """What is missing or replaced can be seen only where batches come apart into samples."""
    if (contract.may_skip or contract.may_substitute) and not reference.samples:
        message = (
            f"contract={contract!r}: the batches cannot be taken apart into samples, so the battery"
            " cannot see which are missing or replaced. Say how: Contract(split=...)"
        )
        raise InvalidArgumentError(message)


def difference(expected: Leaves, came: Leaves) -> str:
    """The first part of a sample that differs from the reference; empty if none is known."""
    if not expected or not came:
        return ""
    known = {path: (form, digest) for path, form, digest in expected}
    for path, form, digest in came:
        if path not in known:
            return f"it has {path}, which is not in the reference"
        if known[path] != (form, digest if known[path][1] else ""):
            return _differs(path, known[path], (form, digest))
    there = {path for path, _, _ in came}
    absent = next((path for path in known if path not in there), None)
    return "" if absent is None else f"{absent} is missing"


_LONG = 24
"""Digests have this length. What is shorter is the value itself."""


def _differs(path: str, expected: tuple[str, str], came: tuple[str, str]) -> str:
    if expected[0] != came[0]:
        return f"{path or 'it'} is {came[0]} instead of {expected[0]}"
    part = f"{path} ({came[0]})" if path else came[0]
    if came[1] == ZEROS:
        return f"{part} is all zeros, unlike in the reference"
    if expected[1] != ZEROS and max(len(expected[1]), len(came[1])) < _LONG:
        return f"{path or 'it'} is {came[1]} instead of {expected[1]}"
    return f"{part} differs from the reference"


# Some facts about samples that are never the same twice. Most parts of such a sample are: only the
# time that it took to load differs, or the crop and not the label. So each part is compared as
# closely as two readings without a fault agree on it. If the length of a list varies, its items are
# compared by their types. If the keys of a mapping vary, nothing in the mapping is compared.


_SHAPE = re.compile(r" \([\d, ]*\)| of \d+$")
_PLACE = re.compile(r"\[\d+\]")
_MOST, _MOST_IN_ONE = 64, 16
"""Parts that are listed, of all and of one list; of a list with more the types are compared."""


class Leaf(NamedTuple):
    """One part: ``['boxes'][0]``, ``Tensor torch.float32 (4, 4)``, and a digest of what is in it.

    Of a container the digest is empty: its items are parts of their own.
    """

    path: str
    form: str
    digest: str


class Varying(NamedTuple):
    """A part that was not the same in two readings.

    Attributes:
        path: Its path.
        compared: What of it was the same.
        samples: In how many samples it differed.
    """

    path: str
    compared: Compared
    samples: int = 0


Levels: TypeAlias = tuple[tuple[str, Compared], ...]
"""What of the parts that vary is compared, by path, as in a ``Comparison``."""
Reading: TypeAlias = Sequence[tuple[Hashable, Sequence[Leaf]]]
"""The parts of each sample, by its index; None is that of a stream, whose order may vary."""


def without_shape(part: Leaf) -> Leaf:
    """*part* with its type, and without its shape or length."""
    return part._replace(form=_SHAPE.sub("", part.form))


def types_of(parts: Iterable[Leaf]) -> list[Leaf]:
    """What types are where: items of a list have one place, and no shape or content counts."""
    return sorted(
        {Leaf(_PLACE.sub("[]", each.path), without_shape(each).form, "") for each in parts}
    )


def compared_parts(parts: Iterable[Leaf], levels: Levels) -> list[Leaf]:
    """*parts* without what is not compared of those that vary."""
    by_path = dict(levels)
    kept: list[Leaf] = []
    inside: defaultdict[str, list[Leaf]] = defaultdict(list)
    for part in parts:
        above = next((path for path, _ in _closed(levels) if is_inside(part.path, path)), None)
        if above is None:
            kept.append(_reduced(part, by_path.get(part.path, Compared.BYTES)))
        elif by_path[above] is Compared.TYPES:
            inside[above].append(part._replace(path=part.path.removeprefix(above)))
    for above, items in inside.items():
        kept += [each._replace(path=above + each.path) for each in types_of(items)]
    return kept


def comparable(parts: Leaves, levels: Levels) -> Leaves:
    """``compared_parts`` of what is reported of a sample."""
    if not levels:
        return parts
    compared = compared_parts((Leaf(*part) for part in parts), levels)
    return tuple((part.path, part.form, part.digest) for part in compared)


def is_inside(path: str, container: str) -> bool:
    """Whether the part at *path* is in the *container*, at whatever depth."""
    rest = path.removeprefix(container)
    return path != container and path.startswith(container) and rest[0] in "[. "


def merged(one: Levels, other: Levels) -> Levels:
    """The parts that vary in either, each compared by what is the same in both."""
    found: dict[str, Compared] = {}
    for path, level in (*one, *other):
        found[path] = max(level, found.get(path, level), key=_ORDER.index)
    return tuple(sorted(found.items()))


def find_varying(first: Reading, second: Reading) -> tuple[Varying, ...]:
    """The parts that differ in two readings of the same samples; empty if they are too many."""
    one, other = _by_path(first), _by_path(second)
    found: dict[str, Varying] = {}
    for path in dict.fromkeys((*one, *other)):
        is_closed = any(is_inside(path, name) for name, _ in _closed(_levels(found.values())))
        if is_closed or one[path] == other[path]:
            continue
        part = _varying_at(path, one, other)
        if part.compared is Compared.TYPES and not _has_same_types(path, first, second):
            part = part._replace(compared=Compared.NOTHING)
        found[part.path] = part
    return _in_few_parts(found)


_ORDER = (Compared.BYTES, Compared.AUTHOR, Compared.SHAPES, Compared.TYPES, Compared.NOTHING)
"""The closest comparison first."""
_CLOSED = (Compared.TYPES, Compared.NOTHING)
"""What is inside such a container has no level of its own."""
_Samples: TypeAlias = Counter[tuple[Hashable, Leaf]]
"""What is at one path in each sample."""


def _closed(levels: Levels) -> Levels:
    return tuple((path, level) for path, level in levels if level in _CLOSED)


def _levels(varying: Iterable[Varying]) -> Levels:
    return tuple((part.path, part.compared) for part in varying)


def _reduced(part: Leaf, level: Compared) -> Leaf:
    """*part* with no more than what is compared at *level*."""
    if level is Compared.NOTHING:
        return part._replace(form="", digest="")
    if level is Compared.TYPES:
        return without_shape(part)._replace(digest="")
    return part._replace(digest="") if level is Compared.SHAPES else part


def _by_path(reading: Reading) -> defaultdict[str, _Samples]:
    found: defaultdict[str, _Samples] = defaultdict(Counter)
    for key, parts in reading:
        for part in parts:
            found[part.path][key, part] += 1
    return found


def _varying_at(path: str, one: Mapping[str, _Samples], other: Mapping[str, _Samples]) -> Varying:
    """What differs at *path*, or in its container if the part itself is not always there."""
    count = max((one[path] - other[path]).total(), (other[path] - one[path]).total())
    if _with(Compared.NOTHING, one[path]) != _with(Compared.NOTHING, other[path]):
        containers = (name for name in (*one, *other) if is_inside(path, name))
        return Varying(max(containers, key=len, default=""), Compared.NOTHING, count)
    levels = (Compared.SHAPES, Compared.TYPES)
    same = (each for each in levels if _with(each, one[path]) == _with(each, other[path]))
    return Varying(path, next(same, Compared.NOTHING), count)


def _with(level: Compared, samples: _Samples) -> _Samples:
    found: _Samples = Counter()
    for (key, part), count in samples.items():
        found[key, _reduced(part, level)] += count
    return found


def _has_same_types(path: str, first: Reading, second: Reading) -> bool:
    """Whether the items of the container at *path* have the same types in both readings."""
    levels = ((path, Compared.TYPES),)
    one, other = (
        Counter(
            (key, part)
            for key, parts in reading
            for part in compared_parts(parts, levels)
            if is_inside(part.path, path)
        )
        for reading in (first, second)
    )
    return one == other


def _in_few_parts(found: Mapping[str, Varying]) -> tuple[Varying, ...]:
    """Those *found*, with a list in place of its items if many of them vary; none if too many."""
    lists: defaultdict[str, list[Varying]] = defaultdict(list)
    for part in found.values():
        if places := list(_PLACE.finditer(part.path)):
            lists[part.path[: places[-1].start()]].append(part)
    closed = dict(_closed(_levels(found.values())))
    kept = dict(found)
    for path, parts in lists.items():
        if len(parts) > _MOST_IN_ONE and path not in closed:
            closed[path] = Compared.TYPES
            kept[path] = Varying(path, Compared.TYPES, max(part.samples for part in parts))
    left = tuple(
        part for part in kept.values() if not any(is_inside(part.path, each) for each in closed)
    )
    return left if len(left) <= _MOST else ()
