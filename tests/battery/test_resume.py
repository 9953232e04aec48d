"""Loaders with a state: what is asked of them, and what is not."""

import functools
import os
import time
from typing import Any

import pytest
import torch
from torch.utils.data import RandomSampler
from torchdata.stateful_dataloader import StatefulDataLoader
from torchdata.stateful_dataloader.sampler import StatefulDistributedSampler

from pytest_dataloader_faults._settings import Settings
from pytest_dataloader_faults._trial import samplers
from pytest_dataloader_faults.battery._battery import Battery
from pytest_dataloader_faults.battery.checks import CHECKS
from pytest_dataloader_faults.battery.checks.resume import FROM_LAST_STATE, SaveStates, save_states
from pytest_dataloader_faults.outcomes import LoadedState
from pytest_dataloader_faults.outcomes.stages import Stage
from pytest_dataloader_faults.steps import TrialOptions
from support.corpus.resume import CountingLoader, ResumableStream, counting
from support.datasets import Records, joined, write_records
from support.results import failure_of, result_of
from support.rows import slow


def _stateful(dataset: Any, **options: Any) -> Any:
    return StatefulDataLoader(dataset, batch_size=4, num_workers=2, **options)


class AnotherTimeEach:
    """Is pickled in another way each time."""

    def __reduce__(self) -> Any:
        return float, (time.perf_counter(),)


class WithATime(CountingLoader):
    """Has such a thing in its state."""

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "time": AnotherTimeEach()}


def _asked_before(folder: Any) -> Any:
    """Its workers were started for a state, as by accelerate."""
    loader = _stateful(Records(folder))
    loader.state_dict()
    return loader


HEALTHY = {
    "a state that was asked for before": _asked_before,
    "a state with a time": lambda folder: _of(WithATime, folder),
    "a stream with a state": ResumableStream,
    "a snapshot now and then": lambda folder: _stateful(Records(folder), snapshot_every_n_steps=3),
    "batches that stay whole": lambda folder: _stateful(Records(folder), collate_fn=joined),
}
SLOW = [each for each in HEALTHY if each != "a stream with a state"]


@pytest.mark.parametrize("name", [slow(each) if each in SLOW else each for each in HEALTHY])
def test_a_healthy_loader_resumes(name, records):
    result = result_of(functools.partial(HEALTHY[name], records), "resumes")

    assert result.passed, result.explanation


@pytest.fixture(name="make_counting", scope="module")
def _make_counting(tmp_path_factory):
    """A factory of healthy loaders."""
    return functools.partial(counting, write_records(tmp_path_factory.mktemp("states") / "records"))


@pytest.fixture(name="counted", scope="module")
def _counted(make_counting):
    """The result for such a loader."""
    return result_of(make_counting, "resumes")


def test_each_state_is_named_from_which_a_process_continued(counted):
    assert counted.sentence == (
        "resumed from 6 states, the loader delivered the remaining samples, each exactly once."
    )
    # Nine states of the first process, and eight of the one that resumed after one batch.
    loaded = [each.number for each in counted.outcome.of(LoadedState)]
    assert loaded == [0, 3, 7, 8, 9 + 2, 9 + 8 + 3]


def test_a_short_epoch_is_stopped_once(records):
    make = lambda: CountingLoader(Records(records), batch_size=8, num_workers=2)  # noqa: E731

    result = result_of(make, "resumes")

    assert result.passed
    assert [each.number for each in result.outcome.of(LoadedState)] == [0, 1, 2]


class ForgetsInTheNextEpoch(CountingLoader):
    """Counts from zero after a state that was taken after an epoch."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.is_new = not state["batches"]

    def state_dict(self) -> dict[str, Any]:
        return {"batches": 1} if getattr(self, "is_new", False) else super().state_dict()


def test_a_state_in_the_next_epoch_counts_as_well(records):
    make = lambda: ForgetsInTheNextEpoch(Records(records), batch_size=2, num_workers=2)  # noqa: E731

    result = failure_of(make, "resumes")

    assert result.verdict == "corrupted"
    assert "after the epoch and again 4 batches later, the loader repeated" in result.sentence
    assert result.cause == "returns a wrong state after it has resumed"


def test_the_second_trial_is_killed(counted):
    _, killed = counted.trials

    assert killed.passes_in(Stage.UNINTERRUPTED)[0].complete
    assert not killed.epochs[0].complete
    assert {str(each.phase): len(each.delivered) for each in killed.passes} == {
        "epoch 1": 5,
        "resumed 1": 4,
        "uninterrupted": 8,
    }
    assert type(killed).from_dict(killed.to_dict()) == killed


def test_a_sampler_of_torchs_own_does_not_go_on(records):
    """StatefulDataLoader asks a sampler for a state, and torch's has none."""
    dataset = Records(records)
    make = lambda: _stateful(dataset, sampler=RandomSampler(dataset))  # noqa: E731

    result = failure_of(make, "resumes")

    assert result.verdict == "corrupted"
    assert result.cause == "does not restore its shuffled order"


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


class TakesArguments(ResumableStream):
    """Has a state for a loader of its own library, which says how many samples it has had."""

    def state_dict(self, samples: int) -> dict[str, Any]:  # type: ignore[override]
        return {"given": samples}


class AnswersToAnyName(Records):
    """Has no state, although ``hasattr`` says so."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda *_: {}


@pytest.mark.parametrize("kind", [AnswersToAnyName, TakesArguments])
def test_what_torchdata_cannot_ask_has_no_state(kind, records):
    result = result_of(functools.partial(kind, records), "resumes")

    assert not result.applies


class DiesWhenItGoesOn(CountingLoader):
    """Ends its process."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        os.abort()


def _of(kind, folder):
    return kind(Records(folder), batch_size=4, num_workers=2)


def test_a_loader_that_does_not_continue(records):
    result = failure_of(functools.partial(_of, DiesWhenItGoesOn, records), "resumes")

    assert result.verdict == "crashed"
    assert "resumed from its state after 1 of 4 batches" in result.sentence
    assert "SIGABRT" in result.sentence


@pytest.fixture(name="save", scope="module")
def _save(make_counting):
    """A function that asks such a loader for states in another way: the trial, and the finding."""
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


def test_a_state_that_no_process_continued_from_shows_nothing(save):
    _, finding = save(SaveStates((1000,)), following=FROM_LAST_STATE[:1])

    assert finding.verdict == "not_exercised"
    assert finding.sentence.startswith("no epoch was interrupted, resumed, and compared")


def test_a_sampler_with_a_state_ends_its_epoch():
    dataset = torch.utils.data.TensorDataset(torch.arange(65))
    make = lambda: _stateful(  # noqa: E731
        dataset, sampler=StatefulDistributedSampler(dataset, num_replicas=1, rank=0)
    )

    result = result_of(make, "resumes")

    assert result.passed, result.explanation
