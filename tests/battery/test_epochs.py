"""What the checks of two epochs conclude, from facts made by hand and from real trials."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch.utils.data import Sampler

from pytest_dataloader_faults import check_dataset
from pytest_dataloader_faults._settings import Settings
from pytest_dataloader_faults._settings.jobs import TrialJob, TrialOptions
from pytest_dataloader_faults._trial import run_trial_job
from pytest_dataloader_faults.battery.checks import CHECKS
from pytest_dataloader_faults.faults import ReadError
from pytest_dataloader_faults.outcomes import Delivery, Pass, Wrong
from pytest_dataloader_faults.outcomes.contract import Compared
from pytest_dataloader_faults.outcomes.reference import Varying
from support.corpus.handles import H5StaysOpen
from support.corpus.state import Noisy
from support.datasets import COUNT, SIZE, Records
from support.facts import (
    EIO,
    TRUNCATED,
    fired,
    map_reference,
    ordinary,
    raised,
    stream,
    unfired,
)
from support.random_samples import OwnGenerator, SeedsItself
from support.rows import rows

OTHER = raised("KeyError", "7")
INDICES = tuple(range(COUNT))


def _pass(salt, count=COUNT):
    """An epoch whose samples all have the same shape, and content that *salt* decides."""
    parts = tuple(((("", "Tensor", f"{salt}{index}"),)) for index in INDICES[:count])
    came = Delivery(INDICES[:count], ("same",) * count, "whole", parts)
    return Pass((INDICES[:count],), (came,), complete=True)


def _stream(salt, step=1):
    """The same of a stream, whose samples have no indices; by a *step* of -1, the last is first."""
    whole = _pass(salt)
    (came,) = whole.delivered
    return replace(whole, delivered=(replace(came, indices=None, leaves=came.leaves[::step]),))


def _found(first, second, **reference):
    outcome = replace(ordinary(first), passes=(first, second))
    known = replace(map_reference(COUNT), **reference)
    return CHECKS["two-epochs"].extra_rule(outcome, known)


@pytest.mark.parametrize(
    ("first", "second", "varied", "repeats"),
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
def test_epoch_that_repeats_the_random_numbers(first, second, varied, repeats):
    """It fails where many samples are random, and all of them are the same again."""
    assert repeats == bool(_found(first, second, nondeterministic_count=varied))


@pytest.mark.parametrize(
    ("kind", "second", "known", "wrong"),
    [
        ("map", Pass(complete=True), {}, None),
        ("iterable", Pass(complete=True), {}, None),
        ("iterable", _pass("b"), {"second_pass_count": 3}, Wrong.USED_UP),
        ("map", _pass("b"), {"nondeterministic_count": COUNT}, None),
        ("map", _pass("a"), {"nondeterministic_count": COUNT}, Wrong.SAME_AGAIN),
        ("map", _pass("a", 8), {"nondeterministic_count": 8}, Wrong.SAME_AGAIN),
        ("map", _pass("a", 7), {"nondeterministic_count": 8}, None),
        ("map", _pass("a", 8), {"nondeterministic_count": 7}, None),
    ],
)
def test_what_is_wrong_with_a_second_epoch(kind, second, known, wrong):
    """It is used up, or it is the first one; that one gives nothing, the judge says."""
    outcome = replace(ordinary(_pass("a")), kind=kind, passes=(_pass("a"), second))
    found = CHECKS["two-epochs"].extra_rule(outcome, replace(map_reference(COUNT), **known))

    assert (found and found.kind) == wrong


@pytest.mark.parametrize(
    ("epochs", "is_violation"), [((1,), True), ((1, 2), False), ((2,), False), ((None,), False)]
)
def test_error_of_an_epoch_without_a_failing_read_was_remembered(epochs, is_violation):
    """One that a read of its own had is none."""
    (facts,) = fired(EIO, len(epochs))
    told = tuple(
        replace(one, epoch=epoch) for one, epoch in zip(facts.firings, epochs, strict=True)
    )
    failed = replace(_pass("a"), exception=OTHER, complete=False)
    outcome = ordinary(failed, (replace(facts, firings=told),))
    found = CHECKS["read-error-next-epoch"].extra_rule(
        replace(outcome, passes=(failed, failed)), map_reference()
    )

    assert is_violation == bool(found)
    assert not found or "the same workers raised KeyError: 7" in found[1]


@rows(
    ("facts", "passes", "is_told"),
    [
        (fired(TRUNCATED), (stream("a x"), stream("a b")), True),
        (fired(TRUNCATED), (stream("b a"), stream("a b")), False),
        (fired(TRUNCATED), (stream("a", error=OTHER), stream("a b")), False),
        (fired(TRUNCATED), (), False),
        (unfired(TRUNCATED), (stream("a x"), stream("a b")), False),
    ],
)
def test_who_takes_cut_files_shows_nothing_by_a_later_epoch(facts, passes, is_told):
    """It gave other samples, and no error, while the files were cut off."""
    outcome = replace(ordinary(Pass(), facts), passes=passes)

    assert is_told == bool(CHECKS["truncated-next-epoch"].skip_reason(None, outcome))


def _asked(make, **options):
    (result,) = check_dataset(make, only="read-error-next-epoch", on_fail=None, **options)
    return result


def test_the_read_that_failed_is_named(records):
    """By its number, its length and its place, as the run without a fault had them.

    The first read is of the header; what keeps a buffer gives zeros later, but not of a cut file.
    """
    only = ["read-error-next-epoch", "truncated-next-epoch"]
    result, cut = check_dataset(lambda: H5StaysOpen(records), only=only, on_fail=None)

    assert (result.verdict, result.passed, cut.passed) == ("corrupted", False, True)
    assert "the first read (survived);" in result.explanation
    (fault,) = result.outcome.schedule
    found = re.search(
        r"; read (\d+) of rows\.h5, which is the longest: (\d+) bytes at (\d+) \(corrupted\)",
        result.explanation,
    )
    nth, length, offset = map(int, found.groups())
    assert (fault.nth, fault.times) == (nth, 1)
    assert nth > 1
    assert (offset + length, length >= COUNT * SIZE / 2) == (H5StaysOpen(records).size, True)
    assert "close the file, and open it again" in result.explanation
    assert result.cause == "stays broken after the fault is gone"


class _OneRead(Records):
    """Each worker reads one file by one system call, and keeps it."""

    data: Any = None

    def __getitem__(self, index: int) -> Any:
        if self.data is None:
            with open(self.paths[0], "rb", buffering=0) as file:
                self.data = file.read(SIZE)
        if len(self.data) != SIZE:
            raise ValueError(self.paths[0])
        return torch.tensor(list(self.data)), index


def test_a_worker_that_reads_once_is_asked_once(records):
    """There is no later read that could fail."""
    result = _asked(lambda: _OneRead(records))

    assert (result.passed, len(result.trials)) == (True, 1)
    assert "tried:" not in result.explanation


@pytest.mark.parametrize("engine", ["kernel", "python"])
def test_no_read_fails_in_the_second_epoch(engine, records):
    """Not even of a worker that reads the file for the first time then."""
    outcome = run_trial_job(
        TrialJob(
            make_dataset=lambda: Records(records),
            faults=(ReadError("*.rec", times=1),),
            settings=Settings(
                loader={"num_workers": 2, "batch_size": 4, "sampler": _FirstThenAll()},
                engine=engine,
            ),
            changes={"persistent_workers": True},
            options=TrialOptions(epochs=2, faulty_epochs=1, keep_workers=True),
        )
    )

    assert [bool(one.exception) for one in outcome.passes] == [True, False]
    assert {one.epoch for each in outcome.faults for one in each.firings} == {1}
    assert {one.worker for each in outcome.faults for one in each.firings} == {0}


class _FirstThenAll(Sampler[int]):
    """Draws one batch, which is for worker 0, and all of them in the next epoch."""

    def __init__(self) -> None:
        self.counts = iter([4, COUNT])

    def __iter__(self) -> Iterator[int]:
        return iter(range(next(self.counts)))

    def __len__(self) -> int:
        return COUNT


def test_workers_that_live_on_are_asked_again(records):
    """The second epoch is that of the same processes, and their reads work again."""
    result = _asked(lambda: Records(records))

    assert (result.passed, result.verdict) == (True, "survived")
    assert re.search(r"the first read \(survived\);.* read \d+", result.explanation)
    first, second = result.outcome.passes
    assert (first.exception.type, second.exception) == ("OSError", None)
    assert len(result.outcome.workers) == 2
    assert {each.fetches > 2 for each in result.outcome.workers} == {True}
    assert result.outcome.fired == 2


@pytest.mark.parametrize(
    ("kind", "verdict"),
    [(SeedsItself, "corrupted"), (OwnGenerator, "corrupted"), (Noisy, "survived")],
)
def test_random_numbers_that_repeat_are_found_in_a_shuffled_epoch(kind, verdict, records):
    """The sampler draws the order of epoch 1 again; a time in each sample hides nothing."""
    (result,) = check_dataset(
        lambda: kind(records), only="two-epochs", loader={"shuffle": True}, on_fail=None
    )

    assert result.verdict == verdict, result.explanation
    first, second = result.trials[-1].passes
    assert first.drawn == second.drawn
    if verdict == "corrupted":
        assert "the random samples of epoch 2 are, bit by bit, those of epoch 1" in result.sentence
        assert "epoch 2 in the order of epoch 1 (corrupted)" in result.explanation


@rows(
    ("second", "varying", "repeats"),
    [
        ("b", (Varying("", Compared.SHAPES, COUNT),), False),
        ("a", (Varying("", Compared.SHAPES, COUNT),), True),
        ("a", (Varying("", Compared.SHAPES, 3),), False),
    ],
)
def test_a_large_part_that_repeats_is_found_beside_a_time(second, varying, repeats):
    """If it differs between two readings of many samples."""

    def epoch(salt, time):
        whole = _pass(salt)
        (came,) = whole.delivered
        parts = tuple(
            (("", "Tensor (64,)", f"{salt}{index:023}"), ("['t']", "float", f"{time}{index}"))
            for index in INDICES
        )
        return replace(whole, delivered=(replace(came, leaves=parts),))

    known = {"varying": varying, "nondeterministic_count": COUNT}
    assert bool(_found(epoch("a", 1), epoch(second, 2), **known)) is repeats
