"""What a contract asks for and what it allows, in real trials."""

import functools
import random
import re
from typing import Any

import pytest
from torch.utils.data import DataLoader, Subset

from pytest_dataloader_faults import Contract, check_dataset
from pytest_dataloader_faults._trial import take_reference
from pytest_dataloader_faults.exceptions import (
    InvalidArgumentError,
    UnusableDatasetError,
)
from pytest_dataloader_faults.outcomes.agreement import EXACT
from support.corpus.state import Noisy
from support.corpus.swallowing import (
    NoneOnError,
    SkipsTooMany,
    without_nones,
)
from support.datasets import COUNT, Records, RecordStream, joined
from support.judging import judge_trial
from support.random_samples import (
    Jittered,
    JitteredZeros,
    NoisyZeros,
    OwnNoise,
    rounded,
)
from support.results import failure_of, result_of
from support.rows import rows
from support.tensor_dicts import ZeroTensorDicts, stack_samples

SKIPS = Contract(may_skip=True)


def _ask_all(make, checks, contract, **options):
    """The results of *checks*, which share a fault-free run, in the order of the battery."""
    return check_dataset(make, only=checks, contract=contract, on_fail=None, **options)


def _run_checks(make, check, contract, **options):
    return result_of(make, check, contract=contract, **options)


def _strictly(make, result):
    """The verdict on the same facts where nothing is allowed."""
    return judge_trial(result.outcome, take_reference(make)).verdict


def _filtered(dataset):
    return DataLoader(dataset, batch_size=4, num_workers=2, collate_fn=without_nones)


def test_samples_that_a_fault_hit_may_be_skipped(records):
    make = functools.partial(_filtered, NoneOnError(records))
    allowed = _run_checks(make, "open-error", SKIPS)

    assert (allowed.verdict, allowed.passed) == ("survived", True), allowed.explanation
    assert f"{COUNT} samples hit by a fault are missing" in allowed.explanation
    assert _strictly(make, allowed) == "corrupted"


def test_samples_made_together_are_indistinguishable(records):
    result = _run_checks(lambda: _filtered(SkipsTooMany(records)), "read-error-once", SKIPS)

    firings = [firing for each in result.outcome.faults for firing in each.firings]
    assert {None} == {firing.sample for firing in firings}
    assert result.passed


def test_loss_in_inseparable_batches_is_unknown(records):
    loader = {"num_workers": 2, "batch_size": 4, "collate_fn": joined}
    with pytest.raises(InvalidArgumentError, match=r"may_skip=True\): the batches cannot be split"):
        _run_checks(lambda: Records(records), "read-error", SKIPS, loader=loader)


def test_global_generators_are_seeded_by_the_sample(records):
    results = _ask_all(lambda: Noisy(records), ("workers-agree", "persistent-workers"), Contract())

    assert [each.verdict for each in results] == ["survived", "survived"]
    (control,) = results[0].outcome.epochs
    assert len({row for each in control.delivered for row in each.digests}) == COUNT


class ShortNoise(OwnNoise):
    """Gives half a sample for what it cannot read."""

    short = True


def test_what_stays_random_is_compared_by_its_shapes(records):
    result = failure_of(
        lambda: ShortNoise(records), "read-error", loader={"num_workers": 2, "batch_size": 1}
    )

    assert "(32,) instead of torch.Tensor torch.float32 (64,)" in result.explanation


def test_random_samples_of_a_subset_are_seeded_one_by_one(records):
    """Torch requests a whole batch of a subset, which requests it one by one, or of another."""
    dataset = Subset(Subset(NoisyZeros(records), range(16)), range(8))
    result = failure_of(lambda: dataset, "read-error")

    assert result.verdict == "corrupted", result.explanation
    assert str(result.outcome.comparison) == "bytes, seeded from 0"


class RandomType(Records):
    """Gives what it likes."""

    def __getitem__(self, index: int) -> Any:
        data, index = super().__getitem__(index)
        return random.SystemRandom().choice([[data], {"data": index}])


ONE = {"batch_size": 1, "num_workers": 2}


def test_types_that_are_random_are_refused(records):
    message = r"sample \d+ was different .*: .*key=\.\.\.\)"
    with pytest.raises(UnusableDatasetError, match=message):
        _run_checks(lambda: RandomType(records), "workers-agree", Contract(), loader=ONE)


def test_only_checks_that_leave_the_seeds_compare_by_shapes(records):
    checks = ("two-epochs", "read-error")
    epochs, error = _ask_all(lambda: Noisy(records), checks, Contract())

    assert (epochs.verdict, _how_compared(epochs)) == ("survived", ["shapes"])
    assert (error.verdict, _how_compared(error)) == ("failed_cleanly", ["bytes, seeded from 0"])


def _how_compared(result):
    return re.findall(r"^  samples were compared by (.*)$", result.explanation, re.MULTILINE)


def test_samples_that_refuse_iteration(records):
    loader = {"batch_size": 4, "collate_fn": stack_samples, "num_workers": 2}
    results = _ask_all(
        lambda: ZeroTensorDicts(records), ("workers-agree", "read-error"), Contract(), loader=loader
    )

    assert [each.verdict for each in results] == ["survived", "corrupted"]


class ShuffledStream(RecordStream):
    """Gives its samples in an order that no seed makes the same."""

    def __iter__(self) -> Any:
        samples = list(super().__iter__())
        random.SystemRandom().shuffle(samples)
        return iter(samples)


def test_order_of_a_stream_may_be_random(records):
    result = _run_checks(lambda: ShuffledStream(records), "workers-agree", Contract())

    assert (result.verdict, result.outcome.comparison) == ("survived", EXACT)


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
    "wrong",
    [
        {"may_skip": "yes"},
        {"may_substitute": 1},
        {"survives": 1},
        {"key": 3},
    ],
    ids=repr,
)
def test_impossible_contract_is_refused(wrong, records):
    ((name, value),) = wrong.items()
    with pytest.raises(InvalidArgumentError, match=f"{name}={value!r} must be "):
        _run_checks(lambda: Records(records), "workers-agree", Contract(**wrong))


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


class Flips(Records):
    """An augmentation that is rarely chosen: many readings show nothing of it."""

    def __getitem__(self, index: int) -> Any:
        data, index = super().__getitem__(index)
        return (data.flip(0) if random.random() < 1e-9 else data), index


def test_an_augmentation_that_is_rarely_chosen_has_a_seed(records):
    result = result_of(lambda: Flips(records), "workers-agree")

    assert (result.verdict, _how_compared(result)) == ("survived", ["bytes, seeded from 0"])
