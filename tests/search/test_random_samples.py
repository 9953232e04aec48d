"""Searches among datasets whose samples are random: compared as the contract says."""

import pytest
import torch

from pytest_dataloader_faults import Contract, Verdict, explore, faults, run_trial
from pytest_dataloader_faults.exceptions import CheckFailedError, InvalidArgumentError
from pytest_dataloader_faults.outcomes.agreement import EXACT
from pytest_dataloader_faults.search import replay
from pytest_dataloader_faults.search._assertion import assert_survives_or_fails_cleanly
from support.corpus.state import Noisy
from support.datasets import Records
from support.planted import ALONE
from support.random_samples import Jittered, JitteredZeros, NoisyZeros, OwnNoise, rounded
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
    assert "from support.random_samples import rounded\n" in found.failure


def test_what_is_printed_fails_again(records):
    options = {"loader": {"shuffle": True}, "contract": RANDOM, "seed": 3}
    with pytest.raises(CheckFailedError, match=r"\Acorrupted"):
        replay(lambda: NoisyZeros(records), OPEN, **options)


def test_a_test_of_ones_own_takes_its_trials_from_the_survey(records):
    found = survey(lambda: Jittered(records), contract=ROUNDED)
    outcome = found.run_trial(OPEN)
    assert assert_survives_or_fails_cleanly(outcome, found).value == "failed_cleanly"
    assert outcome.comparison == EXACT


def test_what_was_not_compared_is_not_praised(records):
    found = survey(lambda: OwnNoise(records), contract=RANDOM)
    late = faults.SlowRead("*/00.rec", seconds=0.01)
    sentence = found.judge(found.run_trial(late)).sentence
    assert sentence == (
        "every sample was delivered with the right types and shapes; the contents were not compared"
    )


class Jitters(Noisy):
    """Waits for a random time before it tries again, as one should."""

    def __getitem__(self, index):
        try:
            return super().__getitem__(index)
        except OSError:
            torch.rand(1)
            return super().__getitem__(index)


def test_a_retry_that_draws_is_explained(records):
    found = survey(lambda: Jitters(records), contract=RANDOM)
    judgement = found.judge(found.run_trial(OPEN))
    assert judgement.verdict is Verdict.CORRUPTED
    assert "a retry that draws more of them produces a different sample" in judgement.sentence


def test_a_trial_has_the_options_that_were_surveyed(records):
    """Batches that are made otherwise could not be compared."""
    found = survey(lambda: Records(records), loader={"batch_size": 2, "collate_fn": list})
    late = faults.SlowRead("*/00.rec", seconds=0.01)
    assert found.judge(found.run_trial(late)).verdict is Verdict.SURVIVED
    assert found.run_trial(late, loader={"batch_size": 8}).request.loader["batch_size"] == 8


def test_what_cannot_be_imported_is_said_in_the_printed_test(records):
    loader = {**ALONE, "collate_fn": lambda samples: samples, "worker_init_fn": Idle()}
    contract = Contract(key=lambda sample: rounded(sample[0]))
    how = {**NARROW, **SHORT, "contract": contract, "loader": loader}
    printed = explore(lambda: JitteredZeros(records), **how).failure
    assert "# key: the contract's key\n" in printed
    assert "# collate_fn: the loader's collate_fn\n" in printed
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
