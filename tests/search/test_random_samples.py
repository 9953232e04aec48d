"""Searches among datasets whose samples are random: compared as the contract says."""

import pytest

from pytest_dataloader_faults import Contract, Verdict, explore, faults, run_trial
from pytest_dataloader_faults.exceptions import InvalidArgumentError
from pytest_dataloader_faults.outcomes.agreement import EXACT
from pytest_dataloader_faults.search._assertion import assert_survives_or_fails_cleanly
from support.corpus.state import Noisy
from support.planted import ALONE
from support.random_samples import Jittered, JitteredZeros, OwnNoise, rounded
from support.surveys import survey

pytestmark = [pytest.mark.usefixtures("engine"), pytest.mark.timeout(600)]
RANDOM, ROUNDED = Contract(), Contract(key=rounded)
SHORT = {
    "kinds": [faults.OpenError],
    "max_examples": 2,
    "database": None,
    "derandomize": True,
    "on_fail": None,
}
NARROW = {"loader": ALONE, "max_faults": 1, "max_epochs": 1}
OPEN = faults.OpenError("*/00.rec", times=1)


def test_noise_is_no_violation(records):
    found = explore(lambda: OwnNoise(records), contract=RANDOM, **SHORT)
    assert found.verdict in {Verdict.SURVIVED, Verdict.FAILED_CLEANLY}, found.failure
    assert "  samples were compared by shapes\n" in found.describe()


def test_what_is_put_in_the_place_of_noise_is_found(records):
    found = explore(lambda: JitteredZeros(records), contract=ROUNDED, **NARROW, **SHORT)
    assert found.verdict is Verdict.CORRUPTED
    assert repr(ROUNDED) in found.failure


def test_a_test_of_ones_own_takes_its_trials_from_the_survey(records):
    found = survey(lambda: Jittered(records), contract=ROUNDED)
    outcome = found.run_trial(OPEN)
    assert assert_survives_or_fails_cleanly(outcome, found).value == "failed_cleanly"
    assert outcome.comparison == EXACT


def test_what_cannot_be_imported_is_said_in_the_printed_test(records):
    loader = {**ALONE, "collate_fn": lambda samples: samples, "worker_init_fn": Idle()}
    contract = Contract(key=lambda sample: rounded(sample[0]))
    how = {**NARROW, **SHORT, "contract": contract, "loader": loader}
    printed = explore(lambda: JitteredZeros(records), **how).failure
    assert "# Insert here: your dataset factory, make_dataset, and other names of your" in printed
    assert "'worker_init_fn': worker_init_fn}" in printed
    compile(printed[printed.index("from pytest_data") :], "printed", "exec")


class Idle:
    """A callable object, which has no name."""

    def __call__(self, worker):
        """Do nothing."""


def test_trials_that_were_compared_otherwise_are_refused(records):
    """Their fingerprints mean something else: they would all look corrupted."""
    found = survey(lambda: Noisy(records), contract=RANDOM)
    outcome = run_trial(lambda: Noisy(records), OPEN)
    with pytest.raises(InvalidArgumentError, match=r"by 'bytes', but the reference by 'bytes, se"):
        assert_survives_or_fails_cleanly(outcome, found)
