"""Loaders with a state, and workers that keep one: what is asked of them, and what is not."""

import functools
import pickle
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, get_worker_info
from torchdata.stateful_dataloader import StatefulDataLoader
from torchdata.stateful_dataloader.sampler import StatefulDistributedSampler

from pytest_dataloader_faults._settings import Settings
from pytest_dataloader_faults._trial import samplers
from pytest_dataloader_faults.battery._battery import Battery
from pytest_dataloader_faults.battery.checks import CHECKS
from pytest_dataloader_faults.battery.checks.resume import FROM_LAST_STATE, SaveStates, save_states
from pytest_dataloader_faults.outcomes import LoadedState, Pass
from pytest_dataloader_faults.outcomes.stages import Stage
from pytest_dataloader_faults.steps import TrialOptions
from support.corpus.resume import ResumableStream, counting
from support.corpus.streams import Shards
from support.datasets import COUNT, Records, write_records
from support.facts import EIO, EPOCH_1, fired, ordinary, revised
from support.judging import refusal_of
from support.results import failures_of, result_of

pytestmark = pytest.mark.usefixtures("engine")


@pytest.fixture(name="make_counting", scope="module")
def _make_counting(tmp_path_factory):
    return functools.partial(counting, write_records(tmp_path_factory.mktemp("states") / "records"))


@pytest.fixture(name="counted", scope="module")
def _counted(make_counting):
    return result_of(make_counting, "resumes")


def test_each_state_is_named_from_which_a_process_continued(counted):
    assert counted.sentence == (
        "resumed from 6 states, the loader delivered the remaining samples, each exactly once."
    )
    # Nine states of the first process, and eight of the one that resumed after one batch.
    loaded = [each.number for each in counted.outcome.of(LoadedState)]
    assert loaded == [0, 3, 7, 8, 9 + 2, 9 + 8 + 3, 3], "the last one has one more worker"


def test_the_second_trial_is_killed(counted):
    _, killed = counted.trials

    assert killed.passes_in(Stage.UNINTERRUPTED)[0].complete
    assert not killed.epochs[0].complete
    assert {str(each.phase): len(each.delivered) for each in killed.passes} == {
        "epoch 1": 5,
        "resumed 1": 4,
        "uninterrupted": 8,
    }
    assert pickle.loads(pickle.dumps(killed)) == killed


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (Records, "its loader has no state_dict()"),
        (lambda folder: StatefulDataLoader(Records(folder), batch_size=16), "only one batch"),
    ],
)
def test_a_skipped_resume_check_has_a_reason(make, reason, records):
    result = result_of(functools.partial(make, records), "resumes")

    assert not result.applies
    assert reason in result.explanation
    assert not result.cause, "a loader without a state lacks nothing that it was to have"


def test_a_state_of_a_dataset_needs_torchdata(records, monkeypatch):
    monkeypatch.setattr(samplers, "STATEFUL", "not_installed.stateful_dataloader")

    result = result_of(functools.partial(ResumableStream, records), "resumes")

    assert not result.applies
    assert "pip install torchdata" in result.explanation


def test_a_sampler_with_a_state_ends_its_epoch():
    """It saves how many samples it drew, and a trial draws 64 of its 65."""
    data = torch.utils.data.TensorDataset(torch.arange(65))

    def make() -> Any:
        sampler = StatefulDistributedSampler(data, num_replicas=1, rank=0)
        return StatefulDataLoader(data, batch_size=4, num_workers=2, sampler=sampler)

    result = result_of(make, "resumes")

    assert result.passed, result.explanation


@pytest.fixture(name="save", scope="module")
def _save(make_counting):
    run = Battery(make_counting, Settings(samples=64)).fault_free_run

    def save(states, following=FROM_LAST_STATE):
        options = TrialOptions(processes=save_states(states, *following))
        outcome = run.run_trial(options=options)
        finding, reference = run.judge(outcome), run.reference_for(outcome)
        return outcome, CHECKS["resumes"].refine(finding, outcome, reference)

    return save


def test_a_process_that_is_not_killed_shows_nothing(save):
    outcome, finding = save(SaveStates((4,), killed_after=1000))

    assert outcome.epochs[0].complete
    assert finding.verdict == "not_exercised"


KEPT, ONE_ERROR = "persistent-workers", "read-error-once"


def test_healthy_datasets_can_be_left(records):
    """One trial shows that, and that complete epochs are right and use no more with each."""
    result = result_of(lambda: Shards(records), KEPT)

    assert (result.applies, result.passed, len(result.trials)) == (True, True, 1)
    assert result.outcome.footprints
    rounds = result.outcome.epochs[2:]
    short_passes, full_passes = rounds[::2], rounds[1::2]
    assert {(len(epoch.delivered), epoch.complete) for epoch in short_passes} == {(1, False)}
    assert {(len(epoch.delivered), epoch.complete) for epoch in full_passes} == {(4, True)}
    assert (
        f"{len(short_passes)} epochs left early, {len(full_passes) + 2} epochs complete"
        in result.explanation
    )


class LosesAfterWhole(Shards):
    is_stale = False

    def __iter__(self):
        samples, was_stale = [*super().__iter__()], self.is_stale
        self.is_stale = False
        yield from samples[:-1] if was_stale else samples
        self.is_stale = get_worker_info() is not None


def test_an_epoch_after_a_complete_one_is_checked(records):
    (result,) = failures_of(lambda: LosesAfterWhole(records), [KEPT])
    assert (result.verdict, "in epoch 2" in result.sentence) == ("corrupted", True)


def test_a_sampler_of_one_epoch_is_corrupted(records):
    make = lambda: DataLoader(  # noqa: E731  # with more batches than are requested at once
        Records(records), sampler=iter(range(COUNT)), batch_size=2, num_workers=2
    )
    (result,) = failures_of(make, [KEPT])
    assert result.verdict == "corrupted", result.explanation
    assert "the sampler drew no indices" in result.explanation
    assert result.cause == "returns fewer samples in the second epoch"


def test_a_hang_in_the_first_epoch_is_judged():
    hung = revised(ordinary(Pass(EPOCH_1)), faults=fired(EIO), epochs=(), phase=EPOCH_1)

    assert refusal_of(CHECKS[ONE_ERROR].scenario.require_effect, None, hung) is None


class DarkensKept(Records):
    """Changes the sample that it keeps, in place; with *copies*, a copy of it: healthy."""

    def __init__(self, folder, *, copies=False):
        super().__init__(folder)
        self.kept = [Records.__getitem__(self, index)[0].float() for index in range(len(self))]
        self.copies = copies

    def __getitem__(self, index):
        sample = self.kept[index].clone() if self.copies else self.kept[index]
        return sample.mul_(float(torch.empty(1).uniform_(0.5, 1)))


@pytest.mark.parametrize("copies", [False, True])
def test_a_kept_sample_that_changes_in_place_fails_in_persistent_workers(records, copies):
    dataset = DarkensKept(records, copies=copies)
    result = result_of(lambda: dataset, "persistent-workers")

    assert result.passed == copies, result.explanation
    assert result.cause == ("" if copies else "changes a sample that it keeps")
