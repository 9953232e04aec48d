"""The samples of one batch, beside those that were asked for: which is wrong, and where. Pure."""

from __future__ import annotations

from typing import Any

from pytest_dataloader_faults._oracle._allowed import Allowed
from pytest_dataloader_faults.outcomes import Delivery, Reference
from pytest_dataloader_faults.outcomes._parts import Leaves

_LONG = 24
"""Digests have this length; what is shorter is the value itself."""


def wrong_rows(place: int, delivery: Delivery, reference: Reference, may: Allowed) -> str | None:
    """What is wrong with batch *place*, which came apart into samples; or None."""
    indices, rows = delivery.indices or (), delivery.rows or ()
    samples = dict(reference.samples)
    if len(rows) != len(indices):
        return _wrong_of_few(place, delivery, samples, may)
    pairs = enumerate(zip(indices, rows, strict=True))
    wrong = [at for at, (index, digest) in pairs if samples[index] != digest]
    if not wrong or may.content:
        return None
    at = wrong[0]
    return f"sample {indices[at]!r} in batch {place} {_instead(delivery, at, reference)}"


def _wrong_of_few(
    place: int, delivery: Delivery, samples: dict[Any, str], may: Allowed
) -> str | None:
    """Of a batch that has fewer samples than were asked for, in whatever order."""
    indices = list(delivery.indices or ())
    left = sorted(indices, key=lambda index: index in may.missing)
    for at, digest in enumerate(delivery.rows or ()):
        found = next((index for index in left if samples[index] == digest), None)
        if found is None and not may.content:
            return f"sample {at} of batch {place} is none of {indices}, which were asked for"
        left.remove(left[-1] if found is None else found)
    lost = [index for index in left if index not in may.missing]
    if not lost:
        return None
    said = f"batch {place} does not hold the samples {indices} that were asked for"
    return f"{said}: {sorted(lost, key=indices.index)} are missing"


def _instead(delivery: Delivery, at: int, reference: Reference) -> str:
    """What is in the place of the sample there."""
    assert delivery.rows is not None
    assert delivery.indices is not None
    owners = {digest: index for index, digest in reference.samples}
    if delivery.rows[at] in owners:
        return f"holds the content of sample {owners[delivery.rows[at]]!r}"
    expected = dict(reference.leaves).get(delivery.indices[at], ())
    came = delivery.leaves[at] if at < len(delivery.leaves) else ()
    return f"has wrong content{difference(expected, came)}"


def difference(expected: Leaves, came: Leaves) -> str:
    """What to add to "has wrong content": the first part that differs; empty if none is known."""
    if not expected or not came:
        return ""
    known = {path: (form, digest) for path, form, digest in expected}
    for path, form, digest in came:
        if path not in known:
            return f": {path} should not be there"
        if known[path] != (form, digest):
            return f": {path or 'it'} {_differs(known[path], (form, digest))}"
    there = {path for path, _, _ in came}
    absent = next((path for path in known if path not in there), None)
    return "" if absent is None else f": {absent} is not there"


def _differs(expected: tuple[str, str], came: tuple[str, str]) -> str:
    if expected[0] != came[0]:
        return f"is {came[0]} instead of {expected[0]}"
    if max(len(expected[1]), len(came[1])) < _LONG:
        return f"is {came[1]} instead of {expected[1]}"
    return f"({came[0]}) differs"
