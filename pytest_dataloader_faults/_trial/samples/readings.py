"""Two readings of the same samples, and the reference that they make.

A comparison is adapted to what both readings agree on: see ``outcomes/agreement.py``.
"""

from __future__ import annotations

import itertools
import operator
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace

from pytest_dataloader_faults._trial.samples.comparer import Fingerprint, SampleComparer
from pytest_dataloader_faults._trial.samples.reader import BatchReading, Reading
from pytest_dataloader_faults.outcomes import Reference
from pytest_dataloader_faults.outcomes.agreement import (
    Comparison,
    Sample,
    SampleParts,
    count_varying,
    difference,
    find_mask,
    without_content,
)
from pytest_dataloader_faults.outcomes.reference import count_rows


def build_reference(
    comparer: SampleComparer, kind: str, readings: Sequence[Reading], repeats: Sequence[Reading]
) -> Reference:
    """The reference from two readings of the same samples; those of a stream in any order."""
    comparison = comparer.comparison
    samples, repeated = record(readings, comparer), record(repeats, comparer)
    is_regrouped = have_same_rows(readings, repeats)
    unstable = None if is_regrouped else _find_unstable(kind, samples, repeated)
    differs = ""
    if unstable is not None:
        shown = (comparison.reduce(each[unstable].row.sample.parts) for each in (readings, repeats))
        differs = difference(*map(tuple, shown)).replace("the reference", "the first read")
    exact = [[each.row.exact for each in reading] for reading in (readings, repeats)]
    differing = sum(map(operator.ne, *exact))
    if kind == "iterable":
        differing = 0 if is_regrouped else operator.sub(*map(Counter, exact)).total()
    batch_parts = tuple(each.parts for each in readings)
    return Reference(
        kind,
        tuple(zip((each.name for each in readings), samples, strict=True)),
        unstable_index=None if unstable is None else readings[unstable].name,
        unstable_part=differs,
        nondeterministic_count=differing,
        varying=_count_varying(kind, readings, repeats) if differing else (),
        comparison=comparison,
        parts=batch_parts if all(batch_parts) else (),
    )


def have_same_rows(readings: Sequence[Reading], repeats: Sequence[Reading]) -> bool:
    """Whether both readings have the same rows, in a stream's own batches, which may differ."""
    rows, repeated = (
        count_rows([each.parts for each in reading]) for reading in (readings, repeats)
    )
    return rows is not None and rows == repeated


def adapt(
    comparer: SampleComparer, kind: str, readings: Sequence[Reading], repeats: Sequence[Reading]
) -> Comparison:
    """The closest comparison by which both readings are the same, if there is one."""
    comparison = comparer.comparison
    if len(readings) != len(repeats):
        return comparison
    first, second = _parts_by_sample(kind, readings), _parts_by_sample(kind, repeats)
    if not comparison.by_form:
        mask = comparison.mask | find_mask(first, second)
        if _is_sufficient(masked := replace(comparison, mask=mask), kind, first, second):
            return masked
    forms = (_without_content(each) for each in (first, second))
    mask = replace(comparison.mask, form_only=()) | find_mask(*forms)
    is_any = "" in mask.ignored  # Whatever the dataset returns would be right.
    return comparison if is_any else replace(comparison, by_form=True, mask=mask)


def agree(
    comparer: SampleComparer, readings: Sequence[Reading], batches: Sequence[BatchReading]
) -> bool:
    """Whether each row of the *batches* is equal to its sample in *readings*.

    A ready batch may hold fewer samples than requested: the judge says that some are missing.
    """
    rows_read = _digests(comparer, (each.row for each in readings))
    digests = dict(zip((each.name for each in readings), rows_read, strict=True))
    known = set(digests.values())
    for names, rows in batches:
        found = _digests(comparer, rows or ())
        is_whole = len(found) == len(names) and found == [digests[each] for each in names]
        is_part = 0 < len(found) < len(names) and known.issuperset(found)
        if not (is_whole or is_part):
            return False
    return True


def are_equal(
    comparer: SampleComparer, readings: Sequence[Reading], repeats: Sequence[Reading]
) -> bool:
    """Whether both readings have the same samples."""
    digests, repeated = (
        _digests(comparer, (each.row for each in reading)) for reading in (readings, repeats)
    )
    return digests == repeated


def _digests(comparer: SampleComparer, rows: Iterable[Fingerprint]) -> list[str]:
    """The digests of *rows* by the comparison that *comparer* has now."""
    return [comparer.record(each.parts).digest for each in rows]


def rows_in(batches: Sequence[BatchReading]) -> list[Reading]:
    """The samples of the *batches*, as far as these can be split."""
    return [
        Reading(name, row)
        for names, rows in batches
        for name, row in zip(names, rows or (), strict=False)
    ]


def _parts_by_sample(kind: str, readings: Sequence[Reading]) -> SampleParts:
    return [(each.name if kind == "map" else None, each.row.parts) for each in readings]


def _count_varying(
    kind: str, readings: Sequence[Reading], repeats: Sequence[Reading]
) -> tuple[tuple[str, int], ...]:
    pair = (_parts_by_sample(kind, each) for each in (readings, repeats))
    return tuple(count_varying(*pair).items())


def record(readings: Sequence[Reading], comparer: SampleComparer) -> list[Sample]:
    """The samples in *readings*, by the comparison that *comparer* has now."""
    return [comparer.record(each.row.parts, each.row.sample.parts) for each in readings]


def _is_sufficient(
    comparison: Comparison, kind: str, first: SampleParts, second: SampleParts
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
    is_varied = kind == "map" or len(set(compared)) * 2 >= len(compared)
    return has_content and is_varied and Counter(compared) == Counter(repeated)


def _without_content(reading: SampleParts) -> SampleParts:
    return [(key, list(map(without_content, parts))) for key, parts in reading]


def _find_unstable(kind: str, samples: list[Sample], repeated: list[Sample]) -> int | None:
    """The place of the first sample that was not the same twice, or None."""
    if kind == "map":
        differs = (one.digest != other.digest for one, other in zip(samples, repeated, strict=True))
        return next(itertools.compress(itertools.count(), differs), None)
    remaining = Counter(sample.digest for sample in repeated)
    for place, (digest, *_) in enumerate(samples[: len(repeated)]):
        if not remaining[digest]:
            return place
        remaining[digest] -= 1
    return None
