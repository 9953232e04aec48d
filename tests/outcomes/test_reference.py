"""The ways to compare samples, and the message if none of them works."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pytest_dataloader_faults import Contract
from pytest_dataloader_faults.exceptions import InvalidArgumentError
from pytest_dataloader_faults.outcomes import Delivery, Pass, Reference
from pytest_dataloader_faults.outcomes.comparison import SHAPES, TYPES, Comparison
from pytest_dataloader_faults.outcomes.contract import comparisons_for
from pytest_dataloader_faults.outcomes.reference import nondeterminism_message, require_samples
from pytest_dataloader_faults.outcomes.stages import RECOVERY
from support.facts import EPOCH_1, delivery, map_reference, ordinary, revised, stream_reference
from support.rows import rows

BATCHES = Reference("map", (), (((0, 1), ("b01",)),))
MIXED = replace(
    map_reference(3),
    leaves=tuple((index, (("", f"({size},)", ""),)) for index, size in enumerate((4, 8, 8))),
)
"""The first sample has another shape."""


def _label(sample):
    return sample["label"]


@rows(
    ("comparison", "description", "allows"),
    [
        (Comparison(), "bytes", False),
        (Comparison(seeded=7), "bytes, seeded from 7", True),
        (SHAPES, "shapes", True),
        (TYPES, "types", True),
        (Comparison(varying=(("[1]", SHAPES.level),)), "bytes without [1]", True),
        (Comparison(seeded=0, in_workers=True), "bytes of workers, seeded from 0", True),
        (replace(SHAPES, limit=64), "shapes, the first 64 of each worker", True),
        (
            replace(SHAPES, limit=64, differs_per_worker=True),
            "shapes, 64 different samples per worker",
            True,
        ),
    ],
)
def test_a_comparison_has_a_description(comparison, description, allows):
    """It is meant for people; code distinguishes comparisons by their fields."""
    assert str(comparison) == description
    assert comparison.allows_for_randomness is allows


@rows(
    ("contract", "expected"),
    [
        (Contract(), "bytes; bytes, seeded from 7; shapes; types"),
        (Contract(key=_label), "bytes; bytes, seeded from 7"),
    ],
)
def test_the_most_exact_comparison_comes_first(contract, expected):
    """Comparisons that the contract rules out are not tried."""
    assert "; ".join(map(str, comparisons_for(contract, 7))) == expected


@rows(
    ("contract", "says"),
    [
        (Contract(), "Contract(key=...)"),
        (Contract(key=_label), "The contract's key"),
    ],
)
def test_a_sample_that_is_never_the_same_is_reported(contract, says):
    """The message has its index, the difference, and what to do under this contract."""
    reference = replace(map_reference(), unstable_index=3, unstable_part="[0] differs")
    text = nondeterminism_message(reference, contract)

    assert "sample 3 " in text
    assert ": [0] differs" in text
    assert says in text


@rows(
    ("reference", "batches", "unknown"),
    [
        (map_reference(2), (delivery((0, 1), ("d0", "d1")),), []),
        (map_reference(2), (delivery((0, 2), ("d0", "d2")),), [(0, 2)]),
        (BATCHES, (Delivery((0, 1), None, "b01"),), []),
        (BATCHES, (Delivery((1, 0), None, "b10"),), [(1, 0)]),
        (stream_reference("a b"), (delivery(None, ("x",)),), []),
        (MIXED, (delivery((0,), ("d0",)), delivery((1, 2), ("d1", "d2"))), []),
        (MIXED, (delivery((0, 1), ("d0", "d1")), delivery((2, 0), ("d2", "d0"))), [(0, 1)]),
        (replace(MIXED, splits_mixed=True), (delivery((0, 1), ("d0", "d1")),), []),
        (MIXED.merge_with(MIXED), (delivery((0, 1), ("d0", "d1")),), []),
    ],
)
def test_unknown_batches_are_found(reference, batches, unknown):
    """They may be delivered under the faults or after them; a stream has no indices.

    The first batch of samples of different shapes is read as well.
    """
    under_faults = ordinary(Pass(EPOCH_1, (), batches))
    recovered = revised(ordinary(Pass(EPOCH_1)), recovery=Pass(RECOVERY, (), batches))

    for outcome in (under_faults, recovered):
        assert [each.indices for each in reference.unknown_batches(outcome)] == unknown


@pytest.mark.parametrize("contract", [Contract(may_skip=True), Contract(may_substitute=True)])
def test_contracts_about_samples_need_split_batches(contract):
    """Other contracts do not need them."""
    with pytest.raises(InvalidArgumentError, match=r"Contract\(split=...\)"):
        require_samples(BATCHES, contract)
    require_samples(map_reference(), contract)
    require_samples(BATCHES, Contract())
