"""What a contract asks for and what it allows, in real trials."""

import functools
import random
import re
from typing import Any

import pytest
from torch.utils.data import DataLoader

from pytest_dataloader_faults import Contract, check_dataset
from pytest_dataloader_faults._trial import take_reference
from pytest_dataloader_faults.exceptions import UnusableDatasetError
from support.corpus.state import Noisy
from support.corpus.swallowing import NoneOnError, without_nones
from support.datasets import COUNT, Records
from support.judging import judge_trial
from support.random_samples import Jittered, JitteredZeros, rounded
from support.results import result_of
from support.rows import rows

SKIPS = Contract(may_skip=True)


def _ask_all(make, checks, contract, **options):
    """The results of *checks*, which share a fault-free run, in the order of the battery."""
    return check_dataset(make, only=checks, contract=contract, on_fail=None, **options)


def _run_checks(make, check, contract, **options):
    return result_of(make, check, contract=contract, **options)


def _filtered(dataset):
    return DataLoader(dataset, batch_size=4, num_workers=2, collate_fn=without_nones)


def test_samples_that_a_fault_hit_may_be_skipped(records):
    make = functools.partial(_filtered, NoneOnError(records))
    allowed = _run_checks(make, "open-error", SKIPS)

    assert (allowed.verdict, allowed.passed) == ("survived", True), allowed.explanation
    assert f"{COUNT} samples hit by a fault are missing" in allowed.explanation
    assert judge_trial(allowed.outcome, take_reference(make)).verdict == "corrupted"


class RandomType(Records):
    def __getitem__(self, index: int) -> Any:
        data, index = super().__getitem__(index)
        return random.SystemRandom().choice([[data], {"data": index}])


ONE = {"batch_size": 1, "num_workers": 2}


def test_of_types_that_are_random_nothing_is_compared(records):
    result = _run_checks(lambda: RandomType(records), "workers-agree", Contract(), loader=ONE)

    assert result.verdict == "survived"
    assert "only their indices were compared" in " ".join(result.notes)


def test_only_checks_that_leave_the_seeds_compare_by_shapes(records):
    checks = ("two-epochs", "read-error")
    epochs, error = _ask_all(lambda: Noisy(records), checks, Contract())

    assert (epochs.verdict, _how_compared(epochs)) == ("survived", ["shapes"])
    assert (error.verdict, _how_compared(error)) == ("failed_cleanly", ["bytes, seeded from 0"])


def _how_compared(result):
    return re.findall(r"^  samples were compared by (.*)$", result.explanation, re.MULTILINE)


def test_the_key_says_which_samples_are_the_same(records):
    contract = Contract(may_skip=True, key=rounded)
    checks = ("workers-agree", "read-error")
    agrees, fails = _ask_all(lambda: JitteredZeros(records), checks, contract)

    assert (agrees.verdict, fails.verdict) == ("survived", "corrupted"), fails.explanation
    assert "contract=Contract(may_skip=True, key=rounded)" in fails.reproduce


@pytest.mark.parametrize(
    ("key", "message"),
    [
        (lambda sample: sample["data"], "The contract's key must return the same for both"),
        (lambda sample: sample["x"], "the contract's key"),
    ],
)
def test_a_key_that_cannot_be_right_is_refused(key, message, records):
    with pytest.raises(UnusableDatasetError, match=message):
        _run_checks(lambda: Jittered(records), "workers-agree", Contract(key=key))


@rows(
    ("contract", "code"),
    [
        (Contract(), "Contract()"),
        (Contract(survives=True, names_file=True), "Contract(survives=True, names_file=True)"),
        (Contract(key=rounded), "Contract(key=rounded)"),
    ],
)
def test_contract_is_shown_as_code(contract, code):
    assert repr(contract) == code
    assert eval(code, {"Contract": Contract, "rounded": rounded}) == contract  # noqa: S307  # our own
