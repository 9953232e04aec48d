"""What the states of a loader show, and what comes of a process that goes on from one."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pytest_dataloader_faults import Contract, Outcome, Verdict
from pytest_dataloader_faults.outcomes import Compared, Comparison, Pass, SavedState, Wrong
from pytest_dataloader_faults.outcomes.judge.causes import likely_cause
from support.facts import (
    delivery,
    map_reference,
    ordinary,
    raised,
    stream,
    stream_reference,
)

SHAPES = Comparison(Compared.SHAPES)


def part(*numbers: int, complete: bool = True) -> Pass:
    """A pass that gave the samples of these numbers, each as a batch."""
    came = tuple(one for number in numbers for one in stream(f"d{number}").delivered)
    return Pass(delivered=came, complete=complete)


WHOLE = part(*range(8))


def resumed(*rests: Pass, after: tuple[int, ...] = (3,), **facts) -> Outcome:
    """An outcome of a whole epoch, with the *rests* from states after so many batches."""
    states = [
        SavedState(number, size=100, resumed=number in after, at_end=number == 9)
        for number in range(1, 10 if 9 in after else 9)
    ]
    made = replace(ordinary(WHOLE), kind="iterable", states=tuple(states), resumed=rests)
    return replace(made, **facts)


def judged(outcome: Outcome):
    """The judgement, by the stream that has all eight samples."""
    reference = stream_reference("d0 d1 d2 d3 d4 d5 d6 d7")
    reference = replace(reference, comparison=outcome.comparison)
    return outcome.judge(reference, Contract())


def test_the_rest_is_right():
    """Each sample once, in whatever order."""
    found = judged(resumed(part(7, 6, 5, 4, 3)))

    assert found.verdict is Verdict.SURVIVED
    assert found.sentence == (
        "begun again with its state after 3 batches, the loader gave the rest, each sample once"
    )


@pytest.mark.parametrize(
    ("rest", "told", "kind"),
    [
        (part(*range(8)), "gave 3 samples (0, 1, 2) twice", Wrong.BEGAN_ANEW),
        (part(2, 3, 4, 5, 6, 7), "gave 1 sample (2) twice", Wrong.STATE_BEHIND),
        (part(5, 6, 7), "left out 2 samples (3, 4)", Wrong.STATE_AHEAD),
        (part(), "left out 5 samples (3, 4, 5, 6, 7)", Wrong.STATE_AHEAD),
        (
            part(0, 4, 5, 6, 7),
            "gave 1 sample (0) twice, and left out 1 sample (3)",
            Wrong.ORDER_NOT_RESTORED,
        ),
    ],
)
def test_samples_that_come_twice_or_never(rest, told, kind):
    """They are named, and tell the cause."""
    outcome = resumed(rest)
    found = judged(outcome)

    assert found.verdict is Verdict.CORRUPTED
    assert found.kind is kind
    assert found.sentence == (f"begun again with its state after 3 of 8 batches, the loader {told}")
    assert likely_cause(outcome, found, outcome).advice


def test_order_counts_where_a_whole_epoch_has_it_again():
    """Other seeds have not changed it."""
    same_order = resumed(part(4, 3, 5, 6, 7), part(*range(8)), after=(3, 9))
    shuffled = resumed(part(4, 3, 5, 6, 7), part(*reversed(range(8))), after=(3, 9))

    assert judged(same_order).kind is Wrong.ORDER_NOT_RESTORED
    assert judged(shuffled).passed


@pytest.mark.parametrize(
    ("epoch", "told"),
    [
        (part(), "had a next epoch of no sample, and a whole one has 8"),
        (part(0), "had a next epoch of 1 sample, and a whole one has 8"),
        (part(0, 0, 2, 3, 4, 5, 6, 7), "had other samples in the next epoch: 1 of 8"),
    ],
)
def test_the_next_epoch_has_to_be_whole(epoch, told):
    """As any other one."""
    found = judged(resumed(epoch, after=(9,)))

    assert found.kind is Wrong.NO_NEXT_EPOCH
    assert found.sentence == f"begun again with its state after the epoch, the loader {told}"


def test_samples_without_content_are_counted():
    """Of random ones it is not known which they are."""
    right = judged(resumed(part(0, 0, 0, 0, 0), comparison=SHAPES))
    more = judged(resumed(part(0, 0, 0, 0, 0, 0), comparison=SHAPES))
    fewer = judged(resumed(part(0), comparison=SHAPES))

    assert right.passed
    assert right.sentence.endswith("the loader gave the rest, as many samples")
    assert more.sentence.endswith("the loader gave 9 samples in all, and an epoch has 8")
    assert (more.kind, fewer.kind) == (Wrong.STATE_BEHIND, Wrong.STATE_AHEAD)


def test_samples_of_an_epoch_that_draws_others_are_counted():
    """As a sampler does that draws with replacement, and is seeded by nobody."""
    drawn = ((0,), (0,), (1,))
    one = Pass(drawn, tuple(delivery(each, (f"d{each[0]}",)) for each in drawn))
    killed = {"kind": "map", "passes": (one,), "uninterrupted": WHOLE}
    enough, fewer = (resumed(part(*[0] * count), **killed) for count in (5, 4))

    assert enough.judge(map_reference(8), Contract()).passed
    assert not fewer.judge(map_reference(8), Contract()).passed


def test_an_error_of_the_new_process_is_told():
    """It had no fault."""
    rest = Pass(exception=raised("KeyError", "'place'"))

    found = judged(resumed(rest))

    assert (found.verdict, found.kind) == (Verdict.BROKEN, Wrong.STATE_NOT_LOADED)
    assert found.sentence == (
        "begun again with its state after 3 of 8 batches, the loader raised KeyError: 'place'"
    )


def test_a_state_that_could_not_be_saved():
    """The error that ended the epoch is that of the state."""
    states = SavedState(1, 10), SavedState(2, error="TypeError: no")
    one = replace(part(0, 1, complete=False), exception=raised("TypeError", "no"))
    found = judged(resumed(states=states, passes=(one,)))

    assert (found.verdict, found.kind) == (Verdict.BROKEN, Wrong.STATE_NOT_SAVED)
    assert found.sentence == "its state after 2 batches cannot be saved: TypeError: no"


def test_a_state_that_changes_later():
    """It counts although the rest was right."""
    outcome = resumed(part(3, 4, 5, 6, 7))
    states = [replace(each, changed=each.batches == 2) for each in outcome.states]
    found = judged(replace(outcome, states=tuple(states)))

    assert found.kind is Wrong.STATE_CHANGES
    assert "taken after 2 batches changed" in found.sentence


@pytest.mark.parametrize(
    ("sizes", "grows"),
    [
        ([10, 20, 30, 40, 50, 60, 70, 80], True),
        ([10, 20, 30, 40, 50, 60, 70, 70, 80, 90], True),
        ([10, 10, 30, 30, 50, 50, 70, 70, 90, 90], True),
        ([10, 10, 30, 30, 50, 50, 50, 50, 70, 70], False),
        ([100, 100, 100, 100, 100, 101, 101, 102], False),  # A counter.
        ([10, 20, 30, 40, 80, 80, 80, 80], False),  # A buffer that is full.
        ([10, 20, 30, 40, 50, 40, 60, 80], False),
        ([10, 20, 30, 40], False),
    ],
)
def test_a_state_that_grows_with_each_batch(sizes, grows):
    """Not one whose numbers get a digit, or whose buffer is filled."""
    states = [SavedState(number, size, resumed=number == 3) for number, size in enumerate(sizes, 1)]
    found = judged(resumed(part(3, 4, 5, 6, 7), states=tuple(states)))

    assert (found.verdict is Verdict.LEAKED) == grows
    if grows:
        assert "from 10 bytes after 1 batch to" in found.sentence


def test_a_process_that_was_killed_is_told_of():
    """And the epoch of the process that was not is the measure."""
    killed = {"passes": (part(0, 1, 2, 3, complete=False),), "uninterrupted": WHOLE}

    assert judged(resumed(part(3, 4, 5, 6, 7), **killed)).sentence == (
        "after its process was killed, begun again with its state after 3 batches, the loader gave"
        " the rest, each sample once"
    )
    assert judged(resumed(part(4, 5, 6, 7), **killed)).sentence.endswith("left out 1 sample (3)")


@pytest.mark.parametrize(
    ("facts", "told"),
    [
        ({"resumed": ()}, "no state was kept"),
        ({"uninterrupted": WHOLE}, "the epoch was over before"),
        (
            {
                "passes": (part(0, 1, complete=False),),
                "uninterrupted": part(0, 1, complete=False),
            },
            "no epoch came to its end",
        ),
    ],
)
def test_what_shows_nothing_is_not_exercised(facts, told):
    """Never a pass."""
    found = judged(resumed(part(3, 4, 5, 6, 7), **facts))

    assert found.verdict is Verdict.NOT_EXERCISED
    assert found.sentence.startswith(told)


def test_names_of_a_map_style_dataset_are_its_indices():
    """Batches are taken apart."""
    batches = [(0, 1), (2, 3)]
    came = tuple(delivery(each, tuple(f"d{index}" for index in each)) for each in batches)
    whole = Pass(tuple(batches), came, complete=True)
    states = SavedState(1, 10, resumed=True), SavedState(2, 10)
    outcome = replace(ordinary(whole), states=states, resumed=(Pass(complete=True),))

    assert outcome.judge(map_reference(), Contract()).sentence.endswith(
        "after 1 of 2 batches, the loader left out 2 samples (2, 3)"
    )
