"""Checks of what a worker keeps for its next epoch: which epochs they run, and what is healthy."""

import pytest
import torch
from torch.utils.data import DataLoader, get_worker_info

from pytest_dataloader_faults.battery.checks import CHECKS
from pytest_dataloader_faults.outcomes import Pass
from support.applicability import refusal_of
from support.corpus.streams import Shards
from support.datasets import COUNT, Records
from support.facts import EIO, EPOCH_1, fired, ordinary, revised
from support.results import failures_of, result_of

pytestmark = pytest.mark.usefixtures("engine")
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
    """In a kept worker, an epoch after a complete one lacks its last sample."""

    is_stale = False

    def __iter__(self):
        samples, was_stale = [*super().__iter__()], self.is_stale
        self.is_stale = False
        yield from samples[:-1] if was_stale else samples
        self.is_stale = get_worker_info() is not None


def test_an_epoch_after_a_complete_one_is_checked(records):
    (result,) = failures_of(lambda: LosesAfterWhole(records), [KEPT])
    assert (result.verdict, "in epoch 2" in result.sentence) == ("corrupted", True)


def _loader(sampler, records):
    """A factory of loaders with more batches than are requested from the workers at once."""
    return lambda: DataLoader(Records(records), sampler=sampler(), batch_size=2, num_workers=2)


def test_a_sampler_of_one_epoch_is_corrupted(records):
    for result in failures_of(_loader(lambda: iter(range(COUNT)), records), (KEPT, "two-epochs")):
        assert result.verdict == "corrupted", result.explanation
        assert "the sampler drew no indices" in result.explanation
        assert result.cause == "returns fewer samples in the second epoch"


def test_a_hang_in_the_first_epoch_is_judged():
    hung = revised(ordinary(Pass(EPOCH_1)), faults=fired(EIO), epochs=(), phase=EPOCH_1)

    assert refusal_of(CHECKS[ONE_ERROR].scenario.require_effect, None, hung) is None


def test_readers_give_whole_files_after_an_error(records):
    """The same workers give every sample in epoch 2."""
    result = result_of(lambda: Shards(records), ONE_ERROR)

    assert result.passed, result.explanation
    assert result.outcome.epochs[1].complete
    assert {firing.epoch for each in result.outcome.faults for firing in each.firings} == {1}


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


def test_a_kept_sample_that_changes_in_place_passes_in_new_workers(records):
    """Each worker starts from the samples as they were."""
    result = result_of(lambda: DarkensKept(records), "two-epochs")

    assert result.passed, result.explanation
