"""Loaders with a state: what is asked of them, and what is not."""

from __future__ import annotations

import functools
import os
import time
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, RandomSampler
from torchdata.stateful_dataloader import StatefulDataLoader

from pytest_dataloader_faults import check_dataset
from pytest_dataloader_faults._settings import Settings
from pytest_dataloader_faults._settings.jobs import Resume, TrialOptions
from pytest_dataloader_faults._trial import loader_state
from pytest_dataloader_faults.battery._battery import Battery
from pytest_dataloader_faults.battery.checks import CHECKS
from pytest_dataloader_faults.faults import WorkerKilled
from support.corpus.resume import CountingLoader, ResumableStream, counting
from support.datasets import Records, RecordStream, joined

BOTH = "resumes, resumes-after-death"


def _asked(make, only=BOTH, **options):
    return check_dataset(make, only=only, on_fail=None, **options)


class ManySquares(torch.utils.data.Dataset[Any]):
    """Far more samples than a battery looks at."""

    def __len__(self) -> int:
        return 5000

    def __getitem__(self, index: int) -> Any:
        return torch.full((32,), index * index)


class RandomSquares(ManySquares):
    """Samples that draw random numbers."""

    def __getitem__(self, index: int) -> Any:
        return super().__getitem__(index) + torch.rand(32)


def _stateful(dataset: Any, **options: Any) -> Any:
    return StatefulDataLoader(dataset, batch_size=4, num_workers=2, **options)


class CountingSamples(CountingLoader):
    """Its state is the number of samples, by which it finds its batch."""

    def state_dict(self) -> dict[str, Any]:
        """Batches have the size that was asked for."""
        return {"samples": self.had["batches"] * self.batch_size}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on after as many."""
        self.begin = state["samples"] // self.batch_size


class Consumed(torch.utils.data.Sampler[int]):
    """Begins where its loader says, as those of language models do."""

    begin = 0

    def __len__(self) -> int:
        return 5000

    def __iter__(self) -> Any:
        begin, self.begin = self.begin, 0
        return iter(range(begin, 5000))


class TellsItsSampler(DataLoader[Any]):
    """Counts samples, and tells its sampler where to begin."""

    had = 0

    def __iter__(self) -> Any:
        for batch in super().__iter__():
            object.__setattr__(self, "had", self.had + len(batch))
            yield batch
        object.__setattr__(self, "had", 0)

    def state_dict(self) -> dict[str, Any]:
        """How many there were."""
        return {"had": self.had}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Begin after as many."""
        object.__setattr__(self, "had", state["had"])
        self.sampler.begin = state["had"]  # type: ignore[attr-defined]


class AnotherTimeEach:
    """Is pickled in another way each time."""

    def __reduce__(self) -> Any:
        return float, (time.perf_counter(),)


class WithATime(CountingLoader):
    """Has such a thing in its state."""

    def state_dict(self) -> dict[str, Any]:
        """The count, and the time."""
        return {**super().state_dict(), "time": AnotherTimeEach()}


def _asked_before(folder: Any) -> Any:
    """Its workers were started for a state, as by accelerate."""
    loader = _stateful(Records(folder))
    loader.state_dict()
    return loader


HEALTHY = {
    "a count of samples": lambda _: CountingSamples(ManySquares(), batch_size=32, num_workers=2),
    "a sampler that is told": lambda _: TellsItsSampler(
        ManySquares(), batch_size=4, num_workers=2, sampler=Consumed()
    ),
    "a state that was asked for before": _asked_before,
    "a state with a time": lambda folder: _of(WithATime, folder),
    "in order": lambda folder: _stateful(Records(folder)),
    "shuffled": lambda folder: _stateful(Records(folder), shuffle=True),
    "many": lambda _: _stateful(ManySquares()),
    "many, shuffled": lambda _: _stateful(ManySquares(), shuffle=True),
    "many, random": lambda _: _stateful(RandomSquares(), shuffle=True),
    "persistent workers": lambda folder: _stateful(Records(folder), persistent_workers=True),
    "a snapshot now and then": lambda folder: _stateful(Records(folder), snapshot_every_n_steps=3),
    "batches that stay whole": lambda folder: _stateful(Records(folder), collate_fn=joined),
    "a stream that is iterated anew": lambda folder: _stateful(RecordStream(folder)),
    "a stream with a state": lambda folder: _stateful(ResumableStream(folder)),
    "torch's loader over such a stream": lambda folder: DataLoader(ResumableStream(folder)),
    "such a stream alone": ResumableStream,
    "a loader that counts": counting,
}


@pytest.mark.parametrize("name", HEALTHY)
def test_a_healthy_loader_gives_the_rest(name, records):
    """Whatever its order, its samples and its workers are."""
    results = _asked(functools.partial(HEALTHY[name], records))

    assert [each.explanation for each in results if not each.passed] == []


def test_each_state_is_named_from_which_a_process_went_on(records):
    """Not only one of them."""
    (result,) = _asked(functools.partial(counting, records), "resumes")

    assert result.sentence == (
        "begun again with its state after 1, 4 and 8 batches and after the epoch, the loader gave"
        " the rest, each sample once."
    )
    assert [each.resumed for each in result.outcome.states] == [
        number in (0, 3, 7, 8) for number in range(9)
    ]


def test_death_is_tried_in_two_ways(records):
    """The process, and a worker."""
    (result,) = _asked(functools.partial(counting, records), "resumes-after-death")

    process, worker = result.trials
    assert process.uninterrupted.complete
    assert not process.passes[0].complete
    assert [each.fired for each in worker.faults] == [1]
    assert "SIGKILL" in str(worker.deaths[0])


def test_a_sampler_of_torchs_own_does_not_go_on(records):
    """StatefulDataLoader asks a sampler for a state, and torch's has none."""
    dataset = Records(records)
    make = lambda: _stateful(dataset, sampler=RandomSampler(dataset))  # noqa: E731

    for result in _asked(make):
        assert result.verdict == "corrupted"
        assert result.cause == "does not restore its random order"


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (Records, "its loader has no state_dict()"),
        (lambda folder: _stateful(Records(folder), prefetch_factor=2), None),
        (lambda folder: StatefulDataLoader(Records(folder), batch_size=16), "one batch only"),
    ],
)
def test_where_it_does_not_apply_the_reason_is_told(make, reason, records):
    """A loader without a state, and an epoch without a rest."""
    for result in _asked(functools.partial(make, records)):
        assert result.applies == (reason is None)
        assert reason is None or reason in result.explanation


def test_without_torchdata_a_dataset_cannot_be_asked(records, monkeypatch):
    """The reason says what to install."""
    monkeypatch.setattr(loader_state, "_STATEFUL", "not_installed.stateful_dataloader")

    for result in _asked(functools.partial(ResumableStream, records)):
        assert not result.applies
        assert "pip install torchdata" in result.explanation


class TakesArguments(ResumableStream):
    """Has a state for a loader of its own library, which says how many samples it has had."""

    def state_dict(self, samples: int) -> dict[str, Any]:  # type: ignore[override]
        """With what the loader knows."""
        return {"given": samples}


class AnswersToAnyName(Records):
    """Has no state, although ``hasattr`` says so."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda *_: {}


@pytest.mark.parametrize("kind", [AnswersToAnyName, TakesArguments])
def test_what_torchdata_cannot_ask_has_no_state(kind, records):
    """Its class counts, and what its methods take."""
    (result,) = _asked(functools.partial(kind, records), "resumes")

    assert not result.applies


class HangsWhenItGoesOn(CountingLoader):
    """Waits for what only the process has that was before."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Never comes back."""
        time.sleep(10**6)


class DiesWhenItGoesOn(CountingLoader):
    """Ends its process."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Crashes, as a reader in C may."""
        os.abort()


def _of(kind, folder):
    return kind(Records(folder), batch_size=4, num_workers=2)


def test_a_loader_that_hangs_when_it_goes_on(records):
    """The sentence says with which state."""
    (result,) = _asked(functools.partial(_of, HangsWhenItGoesOn, records), "resumes", deadline=2)

    assert result.verdict == "hung"
    assert result.sentence.startswith("begun again with its state after 1 of 4 batches: no")


def test_a_loader_that_dies_when_it_goes_on(records):
    """Likewise."""
    (result,) = _asked(functools.partial(_of, DiesWhenItGoesOn, records), "resumes")

    assert result.verdict == "crashed"
    assert "begun again with its state after 1 of 4 batches" in result.sentence
    assert "SIGABRT" in result.sentence


def _outcome(folder, resume, *faults):
    """A trial of a healthy loader that is asked for states in another way, and the judgement."""
    battery = Battery(functools.partial(counting, folder), Settings(samples=64))
    options = TrialOptions(resume=resume)
    changes = {"prefetch_factor": 1}
    outcome = battery.baseline.run_trial(*faults, options=options, changes=changes)
    return outcome, battery.baseline.judge(outcome)


def test_a_process_that_is_not_killed_shows_nothing(records):
    """Disarmed, the check is not exercised."""
    outcome, judgement = _outcome(records, Resume((4,), of_last=True, killed_after=1000))

    assert outcome.passes[0].complete
    assert judgement.verdict == "not_exercised"


def test_a_worker_that_is_not_killed_shows_nothing(records):
    """Likewise."""
    fault = WorkerKilled(at=1000)
    outcome, judgement = _outcome(records, Resume((4,), of_last=True), fault)

    assert not outcome.fired
    assert judgement.verdict == "not_exercised"


def test_a_state_that_no_process_went_on_from_shows_nothing(records):
    """No state was kept."""
    _, judgement = _outcome(records, Resume((1000,)))

    assert judgement.verdict == "not_exercised"
    assert "no state was kept" in judgement.sentence


def test_the_same_trial_passes_where_the_process_was_killed(records):
    """What the three above lack."""
    outcome, judgement = _outcome(records, Resume((4,), of_last=True, killed_after=5))

    assert judgement.passed
    assert [len(each.delivered) for each in (*outcome.passes, *outcome.resumed)] == [5, 4]


def test_states_of_outcomes_are_facts(records):
    """To JSON and back."""
    outcome, _ = _outcome(records, Resume((4,), of_last=True, killed_after=5))

    assert type(outcome).from_dict(outcome.to_dict()) == replace(outcome, packed_draws=())


def test_checks_of_states_have_no_faults_of_files():
    """Their plans need a state, and so no file."""
    assert {name for name in CHECKS if name.startswith("resumes")} == set(BOTH.split(", "))
