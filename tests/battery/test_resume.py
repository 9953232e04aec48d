"""Loaders with a state: what is asked of them, and what is not."""

import functools
import time
from typing import Any

import pytest
from torchdata.stateful_dataloader import StatefulDataLoader

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
from support.results import result_of
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


HEALTHY = {
    "a state with a time": lambda folder: WithATime(Records(folder), batch_size=4, num_workers=2),
    "a stream with a state": ResumableStream,
    "batches that stay whole": lambda folder: _stateful(Records(folder), collate_fn=joined),
}


@pytest.mark.parametrize("name", [*map(slow, HEALTHY)])
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


class AnswersToAnyName(Records):
    """Has no state, although ``hasattr`` says so."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda *_: {}


def test_what_torchdata_cannot_ask_has_no_state(records):
    result = result_of(functools.partial(AnswersToAnyName, records), "resumes")

    assert not result.applies


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
