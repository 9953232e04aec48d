"""What the checks of two epochs conclude, from facts made by hand and from real trials."""

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from torch.utils.data import DataLoader, Sampler

from pytest_dataloader_faults._settings import Settings
from pytest_dataloader_faults._trial import run_trial_job
from pytest_dataloader_faults._trial.job import Job
from pytest_dataloader_faults.battery.checks import CHECKS
from pytest_dataloader_faults.battery.checks._epochs import SAME_AGAIN
from pytest_dataloader_faults.faults import ReadError
from pytest_dataloader_faults.outcomes import Batch, Pass, Sample
from pytest_dataloader_faults.outcomes.agreement import Part
from pytest_dataloader_faults.outcomes.judge.rules import USED_UP
from pytest_dataloader_faults.steps import Action, Epoch, TrialOptions, arm_workers
from support.corpus.handles import H5StaysOpen
from support.datasets import COUNT, SIZE, Records
from support.facts import EIO, EPOCH_1, fired, map_reference, ordinary, raised, revised
from support.random_samples import OwnGenerator
from support.results import failure_of, result_of
from support.rows import rows


class Resumes(Sampler[int]):
    def __init__(self, indices: Any) -> None:
        self.indices = list(indices)
        self.place = 0

    def __len__(self) -> int:
        return len(self.indices)

    def __iter__(self) -> Any:
        while self.place < len(self.indices):
            self.place += 1
            yield self.indices[self.place - 1]
        self.place = 0


OTHER = raised("KeyError", "7")
INDICES = tuple(range(COUNT))


def _pass(salt, count=COUNT):
    """An epoch whose samples all have the same shape, and content that *salt* decides."""
    samples = (
        Sample("same", parts=(Part("", "Tensor", f"{salt}{key}"),)) for key in INDICES[:count]
    )
    batch = Batch(INDICES[:count], tuple(samples))
    return Pass(EPOCH_1, (INDICES[:count],), (batch,), complete=True)


def _stream(salt, step=1):
    """The same of a stream, whose samples have no indices; by a *step* of -1, the last is first."""
    epoch = _pass(salt)
    (batch,) = epoch.delivered
    return replace(epoch, delivered=(replace(batch, keys=None, samples=batch.samples[::step]),))


def _found(first_epoch, second, **reference):
    outcome = revised(ordinary(first_epoch), epochs=(first_epoch, second))
    reference_facts = replace(map_reference(COUNT), **reference)
    return CHECKS["two-epochs"].rule(outcome, reference_facts)


@pytest.mark.parametrize(
    ("first_epoch", "second", "varied", "repeats"),
    [
        (_pass("a"), _pass("a"), COUNT, True),
        (_pass("a"), _pass("b"), COUNT, False),
        (_pass("a"), _pass("a"), 0, False),
        (_pass("a"), _pass("a"), 3, False),
        (_pass("a", 4), _pass("a", 4), COUNT, False),
        (_stream("a"), _stream("a", -1), COUNT, True),
        (_stream("a"), _stream("b"), COUNT, False),
    ],
    ids="same other not_random hardly_random too_few same_stream other_stream".split(),
)
def test_epoch_that_repeats_the_random_numbers(first_epoch, second, varied, repeats):
    assert repeats == bool(_found(first_epoch, second, varying=(("", varied),)))


@pytest.mark.parametrize(
    ("kind", "second", "reference_facts", "cause"),
    [
        ("map", Pass(EPOCH_1, complete=True), {}, None),
        ("iterable", Pass(EPOCH_1, complete=True), {}, None),
        ("iterable", _pass("b"), {"second_pass_count": 3}, USED_UP),
        ("map", _pass("b"), {"varying": (("", COUNT),)}, None),
        ("map", _pass("a"), {"varying": (("", COUNT),)}, SAME_AGAIN),
        ("map", _pass("a", 8), {"varying": (("", 8),)}, SAME_AGAIN),
        ("map", _pass("a", 7), {"varying": (("", 8),)}, None),
        ("map", _pass("a", 8), {"varying": (("", 7),)}, None),
    ],
)
def test_what_is_wrong_with_a_second_epoch(kind, second, reference_facts, cause):
    outcome = revised(ordinary(_pass("a")), kind=kind, epochs=(_pass("a"), second))
    finding = CHECKS["two-epochs"].rule(outcome, replace(map_reference(COUNT), **reference_facts))

    assert (finding and finding.cause) == cause


@pytest.mark.parametrize(
    ("epochs", "is_violation"), [((1,), True), ((1, 2), False), ((2,), False), ((None,), False)]
)
def test_error_of_an_epoch_without_a_failing_read_was_remembered(epochs, is_violation):
    (facts,) = fired(EIO, len(epochs))
    firings = tuple(
        replace(firing, epoch=epoch) for firing, epoch in zip(facts.firings, epochs, strict=True)
    )
    failed = replace(_pass("a"), exception=OTHER, complete=False)
    outcome = ordinary(failed, (replace(facts, firings=firings),))
    finding = CHECKS["read-error-once"].rule(
        revised(outcome, epochs=(failed, failed)), map_reference()
    )

    assert is_violation == bool(finding)
    assert not finding or "the same workers raised KeyError: 7" in finding.sentence


def test_the_read_that_failed_is_named(records):
    """By its number, its length and its place, as the run without a fault had them.

    HDF5 keeps the buffer that it could not fill, and gives zeros later.
    """
    result = failure_of(lambda: H5StaysOpen(records), "read-error-once")

    assert result.verdict == "corrupted"
    (fault,) = result.outcome.schedule
    match = re.search(
        r"read (\d+) of rows\.h5, which is the longest: (\d+) bytes at (\d+) \(corrupted\)",
        result.explanation,
    )
    nth, length, offset = map(int, match.groups())
    assert (fault.nth, fault.times) == (nth, 1)
    assert nth > 1
    assert (offset + length, length >= COUNT * SIZE / 2) == (H5StaysOpen(records).size, True)
    assert "close the file and reopen it" in result.explanation
    assert result.cause == "does not recover after the fault is removed"


def test_no_read_fails_in_the_second_epoch(records):
    epoch = Epoch(keep_workers=True)
    outcome = run_trial_job(
        Job(
            make_dataset=lambda: Records(records),
            faults=(ReadError("*.rec", times=1),),
            settings=Settings(
                loader={"num_workers": 2, "batch_size": 4, "sampler": _FirstThenAll()}
            ),
            changes={"persistent_workers": True},
            options=TrialOptions(processes=arm_workers(epoch, Action.END_FAULTS, epoch)),
        )
    )

    assert [bool(epoch.exception) for epoch in outcome.epochs] == [True, False]
    assert {firing.epoch for each in outcome.faults for firing in each.firings} == {1}
    assert {firing.worker for each in outcome.faults for firing in each.firings} == {0}


class _FirstThenAll(Sampler[int]):
    def __init__(self) -> None:
        self.counts = iter([4, COUNT])

    def __iter__(self) -> Iterator[int]:
        return iter(range(next(self.counts)))

    def __len__(self) -> int:
        return COUNT


def test_random_numbers_that_repeat_are_found_in_a_shuffled_epoch(records):
    result = failure_of(lambda: OwnGenerator(records), "two-epochs", loader={"shuffle": True})

    assert result.verdict == "corrupted", result.explanation
    first_pass, second = result.outcome.epochs
    assert first_pass.drawn == second.drawn
    assert "the random samples of epoch 2 are identical to those of epoch 1" in result.sentence


@rows(
    ("second", "varying", "repeats"),
    [("b", (("", COUNT),), False), ("a", (("", COUNT),), True), ("a", (("", 3),), False)],
)
def test_a_large_part_that_repeats_is_found_beside_a_time(second, varying, repeats):
    def epoch(salt, time):
        epoch = _pass(salt)
        (batch,) = epoch.delivered
        samples = tuple(
            Sample(
                "same",
                parts=(
                    Part("", "Tensor (64,)", f"{salt}{index:023}"),
                    Part("['t']", "float", f"{time}{index}"),
                ),
            )
            for index in INDICES
        )
        return replace(epoch, delivered=(replace(batch, samples=samples),))

    assert bool(_found(epoch("a", 1), epoch(second, 2), varying=varying)) is repeats


def test_a_sampler_that_resumes_is_not_advanced_by_a_look(records: Any) -> None:
    result = result_of(
        lambda: DataLoader(Records(records), num_workers=1, sampler=Resumes(range(COUNT))),
        "read-before-fork",
    )

    assert result.verdict == "survived", result.explanation
