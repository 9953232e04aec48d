"""The ways to compare samples, and the message if none of them works."""

from dataclasses import replace

import pytest

from pytest_dataloader_faults import Contract
from pytest_dataloader_faults.exceptions import InvalidArgumentError
from pytest_dataloader_faults.outcomes.agreement import BY_FORM, Comparison, Mask
from pytest_dataloader_faults.outcomes.reference import describe_unstable, require_samples
from support.facts import batch_reference, map_reference
from support.rows import rows

BATCHES = batch_reference(b01=(0, 1))


def _label(sample):
    return sample["label"]


@rows(
    ("comparison", "description", "allows"),
    [
        (Comparison(), "bytes", False),
        (Comparison(seeded=7), "bytes, seeded from 7", True),
        (BY_FORM, "shapes", True),
        (replace(BY_FORM, mask=Mask(types_only=("[1]",))), "types", True),
        (Comparison(mask=Mask(form_only=("[1]",))), "bytes without [1]", True),
        (Comparison(seeded=0, in_workers=True), "bytes of workers, seeded from 0", True),
        (replace(BY_FORM, limit=64), "shapes, the first 64 of each worker", True),
        (
            replace(BY_FORM, limit=64, differs_per_worker=True),
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
    ("contract", "says"),
    [
        (Contract(), "Contract(key=...)"),
        (Contract(key=_label), "The contract's key"),
    ],
)
def test_a_sample_that_is_never_the_same_is_reported(contract, says):
    """The message has its index, the difference, and what to do under this contract."""
    text = describe_unstable(3, "[0] differs", contract)

    assert "sample 3 " in text
    assert ": [0] differs" in text
    assert says in text


@pytest.mark.parametrize("contract", [Contract(may_skip=True), Contract(may_substitute=True)])
def test_contracts_about_samples_need_split_batches(contract):
    """Other contracts do not need them."""
    with pytest.raises(InvalidArgumentError, match=r"Contract\(split=...\)"):
        require_samples(BATCHES, contract)
    require_samples(map_reference(), contract)
    require_samples(BATCHES, Contract())
