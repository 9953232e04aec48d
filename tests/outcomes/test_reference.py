"""The ways to compare samples, and what a reference says where none of them helps."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pytest_dataloader_faults import Contract
from pytest_dataloader_faults.exceptions import InvalidArgumentError
from pytest_dataloader_faults.outcomes import Delivery, Pass, Reference
from pytest_dataloader_faults.outcomes.contract import (
    SHAPES,
    TYPES,
    Compared,
    Comparison,
    comparisons_for,
)
from pytest_dataloader_faults.outcomes.reference import nondeterminism_message, require_samples
from support.facts import delivery, map_reference, ordinary, stream_reference
from support.rows import rows

BATCHES = Reference("map", (), (((0, 1), "b01"),))


def _same(one, other):
    return one == other


@rows(
    ("comparison", "description", "allows"),
    [
        (Comparison(), "bytes", False),
        (Comparison(seeded=7), "bytes, seeded from 7", True),
        (Comparison(seeded=0), "bytes, seeded from 0", True),
        (Comparison(Compared.AUTHOR), "compare", False),
        (Comparison(Compared.AUTHOR, seeded=7), "compare, seeded from 7", True),
        (SHAPES, "shapes", True),
        (TYPES, "types", True),
        (Comparison(varying=(("[1]", SHAPES.what),)), "bytes without [1]", True),
        (Comparison(seeded=0, in_workers=True), "bytes of workers, seeded from 0", True),
        (replace(SHAPES, limit=64), "shapes, the first 64 of each worker", True),
        (replace(SHAPES, limit=64, own=True), "shapes, 64 of its own in each worker", True),
        (replace(SHAPES, limit=0), "shapes, the first 0 of each worker", True),
    ],
)
def test_a_comparison_has_a_description(comparison, description, allows):
    """For people; comparisons are told apart by their fields."""
    assert str(comparison) == description
    assert comparison.allows_for_randomness is allows


@rows(
    ("contract", "expected"),
    [
        (Contract(), "bytes; bytes, seeded from 7; shapes; types"),
        (Contract(deterministic=True), "bytes"),
        (Contract(deterministic=False), "bytes, seeded from 7; shapes; types"),
        (Contract(compare=_same), "compare; compare, seeded from 7"),
        (Contract(compare=_same, deterministic=True), "compare"),
        (
            Contract(compare=_same, deterministic=False),
            "compare, seeded from 7; shapes; types",
        ),
    ],
)
def test_the_most_exact_comparison_comes_first(contract, expected):
    """None is tried that the contract rules out."""
    assert "; ".join(map(str, comparisons_for(contract, 7))) == expected


@rows(
    ("contract", "says"),
    [
        (Contract(), "[0] differs. Not even types are the same"),
        (Contract(deterministic=True), "the contract promises deterministic=True, but sample 3"),
        (Contract(compare=_same), "[0] differs. The contract's compare has to say"),
    ],
)
def test_a_sample_that_is_never_the_same_is_told(contract, says):
    """With its index, with what differs, and with what to do under this contract."""
    reference = replace(map_reference(), unstable_index=3, unstable_part="[0] differs")
    text = nondeterminism_message(reference, contract)

    assert "sample 3 was different when it was read a second time in the same process: [0]" in text
    assert says in text


@rows(
    ("reference", "came", "unknown"),
    [
        (map_reference(2), (delivery((0, 1), ("d0", "d1")),), []),
        (map_reference(2), (delivery((0, 2), ("d0", "d2")),), [(0, 2)]),
        (BATCHES, (Delivery((0, 1), None, "b01"),), []),
        (BATCHES, (Delivery((1, 0), None, "b10"),), [(1, 0)]),
        (stream_reference("a b"), (delivery(None, ("x",)),), []),
    ],
)
def test_batches_that_are_not_known_are_found(reference, came, unknown):
    """Under the faults and after them; samplers may draw others, and a stream has no indices."""
    before = ordinary(Pass((), came))
    after = replace(ordinary(Pass()), recovery=Pass((), came))

    assert reference.unknown_batches(before) == reference.unknown_batches(after) == unknown


@pytest.mark.parametrize("contract", [Contract(may_skip=True), Contract(may_substitute=True)])
def test_what_is_missing_can_be_seen_in_samples_only(contract):
    """Batches that cannot be taken apart do not show it, and other contracts do not ask."""
    with pytest.raises(InvalidArgumentError, match="cannot be taken apart into samples"):
        require_samples(BATCHES, contract)
    require_samples(map_reference(), contract)
    require_samples(BATCHES, Contract())


@rows(
    ("change", "is_same"),
    [
        ({"nondeterministic_count": 3}, True),
        ({"duration": 1.0}, True),
        ({"draws_random_numbers": True}, False),
        ({"limit": 64}, False),
        ({"pickled_samples": ((0, "x"),)}, False),
    ],
)
def test_references_are_the_same_if_they_judge_alike(change, is_same):
    """How long it took, and how many samples were random, may differ from run to run."""
    assert (map_reference() == replace(map_reference(), **change)) is is_same


@rows(
    ("reference", "count"),
    [
        (stream_reference("a b"), 2),
        (replace(stream_reference("a b"), stream_limit=2), None),
        (map_reference(), None),
    ],
)
def test_only_a_stream_with_an_end_has_a_count(reference, count):
    """Indices are counted by their sampler."""
    assert reference.stream_count == count
