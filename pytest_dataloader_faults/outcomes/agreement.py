"""Which parts of its samples a dataset returns unchanged each time they are read. Pure.

Two passes without a fault deliver the same samples. Where they do not, the dataset varies: it
augments its samples, or adds the time to them. If both passes agree on the type and the shape of
such a part, these are compared; if only on the types in it, its types; and otherwise nothing of it.
All other parts are compared by content, so a time in a sample does not hide that its image is
wrong.
"""

from __future__ import annotations

import itertools
import math
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple, TypeAlias

from pytest_dataloader_faults.outcomes.text import join_some, pluralize

_DIGEST = 24
"""The length of digests. Anything shorter is the value itself."""
MANY = 16
"""Values in a part of a sample. Fewer values may be the same by accident."""
ZEROS = "all zeros"
"""The digest of ``MANY`` or more zeros, so that a report can name them."""
_SHAPE = re.compile(r" \([\d, ]*\)| of \d+$")
_DIMENSIONS = re.compile(r"\(([\d, ]*)\)")
_PLACE = re.compile(r"\[\d+\]")
_MOST_IN_LIST, _MOST = 16, 64
"""If more items of a list vary, or more parts of a sample, only the types in it are compared."""


class Part(NamedTuple):
    """One part: ``['boxes'][0]``, ``Tensor torch.float32 (4, 4)``, and a digest of its content.

    The digest of a container is empty, because its items are separate parts.
    """

    path: str
    form: str
    digest: str

    @property
    def is_large(self) -> bool:
        """Whether the part is too large to be equal to another one by accident."""
        if len(self.digest) < _DIGEST and self.digest != ZEROS:
            return False
        shape = _DIMENSIONS.search(self.form)
        return shape is None or math.prod(map(int, re.findall(r"\d+", shape[1]))) >= MANY


class Sample(NamedTuple):
    """A sample as it was delivered once.

    Attributes:
        digest: 24 hexadecimal digits of BLAKE2b, of what is compared of the sample.
        content: The digest of the large parts of that, such as an image but not its label, with
            "all zeros" before it if they are; "" if there are none.
        parts: The first parts of the sample, for the first samples of a pass.
    """

    digest: str
    content: str = ""
    parts: tuple[Part, ...] = ()


SampleParts: TypeAlias = Sequence[tuple[Hashable, Sequence[Part]]]
"""The parts of each sample, by its index; None for a stream, whose order may vary."""


@dataclass(frozen=True)
class Mask:
    """What is not compared, by the paths of parts.

    Attributes:
        form_only: The parts of which only type and shape are compared.
        types_only: The parts of which only the types in them are compared.
        ignored: The parts of which nothing is compared.
    """

    form_only: tuple[str, ...] = ()
    types_only: tuple[str, ...] = ()
    ignored: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.form_only or self.types_only or self.ignored)

    def __or__(self, other: Mask) -> Mask:
        ignored = {*self.ignored, *other.ignored}
        types_only = {*self.types_only, *other.types_only} - ignored
        form_only = {*self.form_only, *other.form_only} - types_only - ignored
        closed = ignored | types_only

        def visible(paths: Iterable[str]) -> tuple[str, ...]:
            return tuple(
                sorted(path for path in paths if not any(is_inside(path, each) for each in closed))
            )

        return Mask(visible(form_only), visible(types_only), visible(ignored))

    @property
    def paths(self) -> list[str]:
        """The paths of all parts of which something is not compared."""
        return sorted((*self.form_only, *self.types_only, *self.ignored))

    def apply(self, parts: Iterable[Part]) -> list[Part]:
        """What is compared of the *parts* of a sample."""
        compared: list[Part] = []
        types: defaultdict[str, list[Part]] = defaultdict(list)
        for part in parts:
            if any(_is_at_or_in(part.path, each) for each in self.ignored):
                continue
            container = next(
                (each for each in self.types_only if _is_at_or_in(part.path, each)), None
            )
            if container is not None:
                types[container].append(part)
            else:
                compared.append(without_content(part) if part.path in self.form_only else part)
        for container in sorted(types):
            compared += types_in(types[container])
        return compared


@dataclass(frozen=True)
class Comparison:
    """What counts as the same sample. Its ``str`` is meant for people.

    Attributes:
        seeded: The seed that random numbers start from at each sample of a map-style dataset; None
            if they are not seeded.
        mask: The parts that are not compared, because they differed between two reads.
        by_form: Whether only types and shapes are compared, of all parts.
        in_batches: Whether each batch is compared as one sample, because the samples in it depend
            on each other, as with padding.
        in_workers: Whether samples are compared with those of workers in a fault-free run, instead
            of those that the main process reads.
        limit: After how many samples of each worker an endless stream is stopped.
        differs_per_worker: Whether the stream would end there, and each worker returns different
            random samples.
    """

    seeded: int | None = None
    mask: Mask = field(default_factory=Mask)
    by_form: bool = False
    in_batches: bool = False
    in_workers: bool = False
    limit: int | None = None
    differs_per_worker: bool = False

    @property
    def is_loose(self) -> bool:
        """Whether some content of samples is not compared."""
        return bool(self.mask) or self.by_form

    @property
    def allows_for_randomness(self) -> bool:
        """Whether random samples can count as the same."""
        return self.seeded is not None or self.is_loose

    @property
    def form(self) -> str:
        """What is compared of a part whose content is not."""
        if "" in self.mask.ignored:
            return "indices"
        return "types" if self.mask else "types and shapes"

    def reduce(self, parts: Iterable[Part]) -> Sequence[Part]:
        """What is compared of the *parts* of a sample."""
        parts = map(without_content, parts) if self.by_form else parts
        return self.mask.apply(parts)

    def __str__(self) -> str:
        text = ("types" if self.mask else "shapes") if self.by_form else "bytes"
        if self.in_workers:
            text += " of workers"
        if self.mask and not self.by_form:
            text += f" without {join_some(path or 'all' for path in self.mask.paths)}"
        if self.differs_per_worker:
            return f"{text}, {pluralize(self.limit or 0, 'different sample')} per worker"
        if self.limit is not None:
            return f"{text}, the first {self.limit} of each worker"
        return text if self.seeded is None else f"{text}, seeded from {self.seeded}"


EXACT = Comparison()
BY_FORM = Comparison(by_form=True)
"""The comparison for random samples that differ in all parts."""


def types_in(parts: Iterable[Part]) -> list[Part]:
    """The types at each path; all items of a list share one."""
    return sorted(set(map(_type_of, parts)))


def find_mask(first: SampleParts, second: SampleParts) -> Mask:
    """The mask under which two readings of the same samples agree on each part."""
    ours, theirs = _group_by_path(first), _group_by_path(second)
    mask = Mask()
    for path in dict.fromkeys((*ours, *theirs)):  # Containers come before what is in them.
        is_masked = any(_is_at_or_in(path, each) for each in (*mask.types_only, *mask.ignored))
        if not is_masked and ours[path] != theirs[path]:
            form_mask = _mask_at(path, ours, theirs)
            is_typed = path in form_mask.types_only
            is_mixed = is_typed and _types_at(path, first) != _types_at(path, second)
            mask |= Mask(ignored=(path,)) if is_mixed else form_mask
    return _limit(mask)


def closest(
    comparison: Comparison, first: SampleParts, second: SampleParts, *, is_stream: bool
) -> Comparison:
    """The closest comparison by which both readings are the same."""
    if not comparison.by_form:
        mask = comparison.mask | find_mask(first, second)
        masked = replace(comparison, mask=mask)
        if _is_sufficient(masked, first, second, is_stream=is_stream):
            return masked
    forms = (
        [(key, list(map(without_content, parts))) for key, parts in reading]
        for reading in (first, second)
    )
    mask = replace(comparison.mask, form_only=()) | find_mask(*forms)
    return replace(comparison, by_form=True, mask=mask)


def _is_sufficient(
    comparison: Comparison, first: SampleParts, second: SampleParts, *, is_stream: bool
) -> bool:
    """Whether both readings are the same by *comparison*, which compares content.

    The parts of a stream that are left may be labels, which many samples have.
    """
    compared, repeated = (
        [(key, tuple(comparison.reduce(parts))) for key, parts in reading]
        for reading in (first, second)
    )
    if not comparison.mask:
        return Counter(compared) == Counter(repeated)
    has_content = any(part.digest for _, parts in compared for part in parts)
    is_varied = not is_stream or len(set(compared)) * 2 >= len(compared)
    return has_content and is_varied and Counter(compared) == Counter(repeated)


def spread(mask: Mask, reading: SampleParts) -> Mask:
    """*mask*, with the same parts of all samples in the batches of a *reading*.

    A list of a batch has an item for each sample, which varies as the others do.
    """
    alike: defaultdict[Part, set[str]] = defaultdict(set)
    for _, parts in reading:
        for part in parts:
            alike[_type_of(part)].add(part.path)

    def all_of(paths: Iterable[str]) -> tuple[str, ...]:
        groups = [group for group in alike.values() if not group.isdisjoint(paths)]
        return tuple({*paths, *itertools.chain(*groups)})

    return Mask() | Mask(*map(all_of, (mask.form_only, mask.types_only, mask.ignored)))


def count_varying(first: SampleParts, second: SampleParts) -> dict[str, int]:
    """In how many samples each part differs between two readings, if it does."""
    ours, theirs = _group_by_path(first), _group_by_path(second)
    differing = ((path, (ours[path] - theirs[path]).total()) for path in ours)
    return {path: count for path, count in differing if count}


def is_inside(path: str, container: str) -> bool:
    """Whether the part at *path* is in the *container*, at any depth."""
    suffix = path.removeprefix(container)
    return path != container and path.startswith(container) and suffix[0] in "[. "


def _is_at_or_in(path: str, container: str) -> bool:
    return path == container or is_inside(path, container)


_Samples: TypeAlias = Counter[tuple[Hashable, Part]]
"""The parts at one path, by sample."""


def _group_by_path(reading: SampleParts) -> defaultdict[str, _Samples]:
    samples_by_path: defaultdict[str, _Samples] = defaultdict(Counter)
    for key, parts in reading:
        for part in parts:
            samples_by_path[part.path][key, part] += 1
    return samples_by_path


def _mask_at(path: str, ours: dict[str, _Samples], theirs: dict[str, _Samples]) -> Mask:
    """What is not compared at *path*, or of its container if some samples lack the part."""
    if not _agree(ours[path], theirs[path], lambda part: part.path):
        containers = (each for each in (*ours, *theirs) if is_inside(path, each))
        return Mask(ignored=(max(containers, key=len, default=""),))
    has_form = _agree(ours[path], theirs[path], without_content)
    return Mask(form_only=(path,)) if has_form else Mask(types_only=(path,))


def _agree(ours: _Samples, theirs: _Samples, reduce: Callable[[Part], Hashable]) -> bool:
    """Whether what *reduce* leaves of the parts is the same for each sample."""
    left, other = (
        Counter((key, reduce(part)) for key, part in samples.elements())
        for samples in (ours, theirs)
    )
    return left == other


def _types_at(path: str, reading: SampleParts) -> Counter[tuple[Hashable, Part]]:
    """How many samples have each type at *path* or in there."""
    return Counter(
        (key, part)
        for key, parts in reading
        for part in types_in(each for each in parts if _is_at_or_in(each.path, path))
    )


def without_content(part: Part) -> Part:
    """*part* with its type and shape only."""
    return part._replace(digest="")


def _type_of(part: Part) -> Part:
    """Its type without shape or length, at a path that all items of a list share."""
    return Part(_PLACE.sub("[]", part.path), _SHAPE.sub("", part.form), "")


def _limit(mask: Mask) -> Mask:
    """*mask*, with the types of a list or of the sample in place of many parts of it."""
    lists = Counter(each for each in map(_list_of, mask.paths) if each is not None)
    many = [path for path, count in lists.items() if count > _MOST_IN_LIST]
    limited = mask | Mask(types_only=tuple(many))
    return limited if len(limited.paths) <= _MOST else Mask(types_only=("",))


def _list_of(path: str) -> str | None:
    """The innermost list that the part at *path* is in."""
    places = list(_PLACE.finditer(path))
    return path[: places[-1].start()] if places else None


def difference(expected: Sequence[Part], delivered: Sequence[Part]) -> str:
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


def _differs(path: str, expected: tuple[str, str], delivered: tuple[str, str]) -> str:
    if expected[0] != delivered[0]:
        return f"{path or 'it'} is {delivered[0]} instead of {expected[0]}"
    part = f"{path} ({delivered[0]})" if path else delivered[0]
    if delivered[1] == ZEROS:
        return f"{part} is all zeros, unlike in the reference"
    if expected[1] != ZEROS and max(len(expected[1]), len(delivered[1])) < _DIGEST:
        return f"{path or 'it'} is {delivered[1]} instead of {expected[1]}"
    return f"{part} differs from the reference"
