"""What the saved states of a loader show, and the epochs of processes that resume from one."""

from dataclasses import replace

import pytest

from pytest_dataloader_faults import Contract, Outcome, Verdict
from pytest_dataloader_faults.battery.checks.resume import resumes, rules
from pytest_dataloader_faults.outcomes import (
    ChangedState,
    Comparison,
    LoadedState,
    Pass,
    SavedState,
)
from pytest_dataloader_faults.outcomes.judge.causes import likely_cause
from support.facts import (
    EPOCH_1,
    WHOLE,
    batch_of,
    map_reference,
    ordinary,
    part,
    raised,
    resumed,
    revised,
    stream_reference,
)
from support.judging import judge_trial
from support.rows import rows

BY_FORM = Comparison(by_form=True)


def judged(outcome: Outcome):
    """The finding, by a stream that has all eight samples."""
    reference = stream_reference("d0 d1 d2 d3 d4 d5 d6 d7")
    reference = replace(reference, comparison=outcome.comparison)
    return _judge(outcome, reference)


def _judge(outcome, reference):
    """By the check that saves states."""
    return resumes.refine(judge_trial(outcome, reference, Contract()), outcome, reference)


RESTS = [
    (part(*range(8)), "3 samples (0, 1, 2)", rules.RESTARTED),
    (part(2, 3, 4, 5, 6, 7), "1 sample (2)", rules.STATE_BEHIND),
    (part(5, 6, 7), "2 samples (3, 4)", rules.STATE_AHEAD),
    (part(), "5 samples (3, 4, 5, 6, 7)", rules.STATE_AHEAD),
    (part(0, 4, 5, 6, 7), "1 sample (0) and skipped 1 sample (3)", rules.ORDER_NOT_RESTORED),
]


@rows(("epoch", "ending", "cause"), RESTS)
def test_samples_that_are_repeated_or_missing(epoch, ending, cause):
    """They are named, and their kind decides the cause."""
    outcome = resumed(epoch)
    finding = judged(outcome)

    assert finding.verdict is Verdict.CORRUPTED
    assert finding.cause is cause
    assert "after 3 of 8 batches" in finding.sentence
    assert finding.sentence.endswith(ending)
    assert likely_cause(outcome, finding, outcome).advice


def _text_cases():
    """An outcome for each sentence about saved states."""
    killed = {"epochs": (part(0, 1, 2, 3, complete=False),), "uninterrupted": WHOLE}
    yield "the rest", resumed(part(3, 4, 5, 6, 7))
    yield "the rest of several", resumed(part(3, 4, 5, 6, 7), part(*range(8)), batches=(3, 9))
    yield from ((f"rest {text}", resumed(epoch)) for epoch, text, _ in RESTS)
    yield from ((f"next epoch {text}", resumed(epoch, batches=(9,))) for epoch, text in NEXT_EPOCHS)
    yield "another order", resumed(part(4, 3, 5, 6, 7), part(*range(8)), batches=(3, 9))
    yield "whole epoch again", resumed(part(*range(8)), batches=(8,))
    for name, rest in (("as many", part(*[0] * 5)), ("more", part(*[0] * 6)), ("fewer", part(0))):
        yield f"random samples, {name}", resumed(rest, comparison=BY_FORM)
    yield "error", resumed(Pass(EPOCH_1, exception=raised("KeyError", "'place'")))
    yield "killed", resumed(part(3, 4, 5, 6, 7), **killed)
    yield "killed, skipped", resumed(part(4, 5, 6, 7), **killed)
    for facts in NOTHING_SHOWN:
        yield f"nothing shown {[*facts]}", resumed(part(3, 4, 5, 6, 7), **facts)
    yield "not saved", _not_saved()
    yield "changed", _changed()
    sizes = enumerate(range(10, 90, 10), 1)
    states = [SavedState(number, size) for number, size in sizes]
    yield "grows", resumed(part(3, 4, 5, 6, 7), notes=(*states, LoadedState(2)))


def test_texts_about_states(golden):
    findings = {title: judged(outcome) for title, outcome in _text_cases()}
    golden(
        "states",
        {title: f"{finding.verdict}: {finding.sentence}" for title, finding in findings.items()},
    )


def test_order_counts_if_a_complete_epoch_repeats_it():
    """Different seeds have not changed it."""
    same_order = resumed(part(4, 3, 5, 6, 7), part(*range(8)), batches=(3, 9))
    shuffled = resumed(part(4, 3, 5, 6, 7), part(*reversed(range(8))), batches=(3, 9))

    assert judged(same_order).cause is rules.ORDER_NOT_RESTORED
    assert judged(shuffled).passed


NEXT_EPOCHS = [
    (part(), "no samples instead of 8 in the next epoch"),
    (part(0), "1 sample instead of 8 in the next epoch"),
    (part(0, 0, 2, 3, 4, 5, 6, 7), "1 of 8"),
]


def test_samples_of_an_epoch_that_draws_others_are_counted():
    """The sampler draws with replacement, without a seed."""
    drawn = ((0,), (0,), (1,))
    epoch = Pass(EPOCH_1, drawn, tuple(batch_of(each, (f"d{each[0]}",)) for each in drawn))
    killed = {"kind": "map", "epochs": (epoch,), "uninterrupted": WHOLE}
    enough, fewer = (resumed(part(*[0] * count), **killed) for count in (5, 4))

    assert _judge(enough, map_reference(8)).passed
    assert not _judge(fewer, map_reference(8)).passed


def _not_saved():
    states = SavedState(1, 10), SavedState(2, error="TypeError: no")
    return resumed(notes=states, epochs=(WHOLE,))


def _changed():
    outcome = resumed(part(3, 4, 5, 6, 7))
    return revised(outcome, notes=(*outcome.notes[:2], ChangedState(), *outcome.notes[2:]))


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
    """A counter that gets another byte, or a buffer that is filled, does not count."""
    states = [SavedState(number, size) for number, size in enumerate(sizes, 1)]
    finding = judged(resumed(part(3, 4, 5, 6, 7), notes=(*states, LoadedState(2))))

    assert (finding.verdict is Verdict.LEAKED) == grows
    if grows:
        assert "from 10 bytes after 1 batch to" in finding.sentence


CUT = part(0, 1, complete=False)
NOTHING_SHOWN = [
    {"resumed": ()},
    {"uninterrupted": WHOLE},
    {"epochs": (CUT,), "uninterrupted": CUT},
]


def test_names_of_a_map_style_dataset_are_its_indices():
    """Its batches are split."""
    batches = [(0, 1), (2, 3)]
    deliveries = tuple(batch_of(each, tuple(f"d{index}" for index in each)) for each in batches)
    epoch = Pass(EPOCH_1, tuple(batches), deliveries, complete=True)
    notes = SavedState(1, 10), SavedState(2, 10), LoadedState(0)
    outcome = revised(ordinary(epoch), notes=notes, resumed=(Pass(EPOCH_1, complete=True),))

    sentence = _judge(outcome, map_reference()).sentence
    assert "after 1 of 2 batches" in sentence
    assert sentence.endswith("2 samples (2, 3)")
